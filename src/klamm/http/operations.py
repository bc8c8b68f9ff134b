"""Routes for operators, the same for every service: liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from klamm.http.messages import HttpRequest, HttpResponse, json_response
from klamm.http.metrics import CONTENT_TYPE, RequestMetrics, ServiceMetric
from klamm.http.router import PathRouter


class ObservedService(Protocol):
    """What the routes ask of a service."""

    def check_liveness(self) -> None:
        """Raise if the service cannot go on, so that a restart helps."""

    def describe_readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether requests can be answered, and what else an operator wants to see."""

    def list_metrics(self) -> Iterable[ServiceMetric]:
        """Return the values of the service."""


class OperationRoutes:
    """Health and metrics."""

    def __init__(self, service: ObservedService, metrics: RequestMetrics) -> None:
        self._service = service
        self._metrics = metrics

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes; health needs no login, since probes have none."""
        router.add("GET", "/health/live", self.get_liveness, public=True, quiet=True)
        router.add("GET", "/health/ready", self.get_readiness, public=True, quiet=True)
        router.add("GET", "/metrics", self.get_metrics, quiet=True)

    async def get_liveness(self, _: HttpRequest) -> HttpResponse:
        """GET /health/live: whether the process answers; a restart helps if it does not."""
        self._service.check_liveness()
        return json_response({"status": "live"})

    async def get_readiness(self, _: HttpRequest) -> HttpResponse:
        """GET /health/ready: 503 until requests can be answered."""
        ready, more = self._service.describe_readiness()
        return json_response({"status": "ready" if ready else "not ready"} | more, 200 if ready else 503)

    async def get_metrics(self, _: HttpRequest) -> HttpResponse:
        """GET /metrics."""
        text = self._metrics.render(self._service.list_metrics())
        return HttpResponse(body=text.encode(), content_type=CONTENT_TYPE)
