"""Serves the metrics and the health of a node over HTTP.

A request is handled in the thread of its connection. Only the snapshot, or the view of the cluster, is taken on the
loop; walking partitions, building the families, formatting and sending happen in the thread.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.server.metrics.families import ScrapeLines, build_families
from klamm.server.metrics.health import (
    ClusterView,
    Health,
    cluster_health,
    cluster_readiness,
    node_health,
    node_readiness,
    view_cluster,
)
from klamm.telemetry.exposition import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    Family,
    Naming,
    RenderedRows,
    accepts_openmetrics,
    render,
    served_name,
)
from klamm.telemetry.http_listener import ScrapeRequest, ScrapeResponse

if TYPE_CHECKING:
    from klamm.server.cluster.lifecycle import BrokerLifecycle
    from klamm.server.metrics.collector import NodeMetrics
    from klamm.server.metrics.snapshot import NodeSnapshot
    from klamm.server.services import Services

T = TypeVar("T")

ANSWER_SECONDS_MAX: Final = 10.0
"""How long a scrape waits for the loop."""
HEALTH_SECONDS_MAX: Final = 2.0
"""How long a health check waits for it: a loop that is held up longer serves no request in time."""

INDEX: Final = b"""Klamm: /metrics, /health, /ready, /health/cluster, /ready/cluster
"""


class MetricsEndpoint:
    """The paths of the metrics listener of one node."""

    def __init__(
        self,
        services: "Services",
        metrics: "NodeMetrics",
        lifecycle: "BrokerLifecycle | None",
        naming: Naming,
        failure: Callable[[], BaseException | None],
    ) -> None:
        self._services = services
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._naming = naming
        self._failure = failure
        self._kept_lines = ScrapeLines()
        self._rendered: RenderedRows = {}
        """Both of the last scrape: most lines of partitions are the same in the next."""
        self._checks: dict[str, Callable[[], Health]] = {
            "/health": self._node_health,
            "/ready": self._node_readiness,
        }
        self._cluster_checks: dict[str, Callable[[ClusterView], Health]] = {
            "/health/cluster": cluster_health,
            "/ready/cluster": cluster_readiness,
        }

    def handle(self, request: ScrapeRequest) -> ScrapeResponse:
        """Answer a request; runs in a thread."""
        if request.path == "/metrics":
            return self._respond_metrics(request)
        path = request.path.rstrip("/")
        if path in self._checks:
            return _respond_health(self._call_on_loop(self._checks[path]))
        if path in self._cluster_checks:
            view = self._call_on_loop(self._view_cluster)
            return _respond_health(view if isinstance(view, Health) else self._cluster_checks[path](view))
        if request.path == "/":
            return ScrapeResponse(200, INDEX)
        return ScrapeResponse(404, b"not found; " + INDEX)

    def take_snapshot(self) -> "NodeSnapshot":
        """Return the state of the node; for other threads than the loop's. TimeoutError if the loop does not answer."""
        try:
            return self._on_loop(self._metrics.collect(), ANSWER_SECONDS_MAX)
        except (FutureTimeout, TimeoutError, CancelledError, RuntimeError):
            raise TimeoutError("the event loop does not answer") from None

    def _respond_metrics(self, request: ScrapeRequest) -> ScrapeResponse:
        try:
            snapshot = self.take_snapshot()
        except TimeoutError as error:
            return ScrapeResponse(503, f"{error}\n".encode())
        families = build_families(snapshot, self._kept_lines)
        names = request.query.get("name[]")
        if names:
            families = self._select(families, set(names))
        openmetrics = accepts_openmetrics(request.headers.get("accept", ""))
        body = b"".join(render(families, openmetrics=openmetrics, naming=self._naming, rendered=self._rendered))
        return ScrapeResponse(200, body, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)

    def _select(self, families: list[Family], names: set[str]) -> list[Family]:
        """Keep the families of these names, as Prometheus' own exporters do with `name[]`."""
        return [family for family in families if family.name in names or served_name(family, self._naming) in names]

    def _call_on_loop(self, function: Callable[[], T]) -> T | Health:
        """Call a function that is quick; a failing health if the loop does not answer."""

        async def run() -> T:
            return function()

        try:
            return self._on_loop(run(), HEALTH_SECONDS_MAX)
        except (FutureTimeout, TimeoutError, CancelledError, RuntimeError):
            return Health(["the event loop does not answer"])

    def _on_loop(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        loop = self._services.loop
        if loop.is_closed():
            work.close()
            raise TimeoutError
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise

    def _node_health(self) -> Health:
        return node_health(self._services, self._lifecycle, self._failure())

    def _node_readiness(self) -> Health:
        return node_readiness(self._services, self._lifecycle, self._failure())

    def _view_cluster(self) -> ClusterView:
        return view_cluster(self._services)


def _respond_health(health: Health) -> ScrapeResponse:
    body = {"status": "ok" if health.good else "failing", "problems": health.problems, **health.facts}
    text = json.dumps(body, indent=2) + "\n"
    return ScrapeResponse(200 if health.good else 503, text.encode(), "application/json")
