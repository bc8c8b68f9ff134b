"""The metrics of a node for others: its listeners, from the bound socket to the end, and the export by OTLP."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.model.broker_catalog.own import OTLP_ENDPOINT
from klamm.model.errors import ConfigError
from klamm.telemetry.http_listener import ScrapeListener, ScrapeRequest, ScrapeResponse
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.net import NetServer
    from klamm.server.boot.config import NodeConfig
    from klamm.server.boot.environment import Environment
    from klamm.server.boot.listeners import Listener
    from klamm.server.cluster.lifecycle import BrokerLifecycle
    from klamm.server.login.counts import LoginCounts
    from klamm.server.metrics.collector import NodeMetrics
    from klamm.server.metrics.endpoint import MetricsEndpoint
    from klamm.server.metrics.otlp_exporter import OtlpExporter
    from klamm.server.services import Services

log = get_logger("metrics")


class MetricsPortTakenError(ConfigError):
    """The port of a metrics listener has another listener."""


class MetricsService:
    """Binds the addresses first, as the node does with its other listeners, and serves when the node is composed."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._metrics: NodeMetrics | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._listeners: list[ScrapeListener] = []
        self._exporter: OtlpExporter | None = None
        # Before a port is bound: a wrong URL or a missing package stops the start with a sentence.
        self._otlp_endpoint = _check_otlp(config)
        try:
            for listener in config.metrics_listeners:
                self._listeners.append(self._bind(listener))
        except ConfigError:
            self.close()
            raise

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses."""
        return [listener.address for listener in self._listeners]

    def _bind(self, listener: Listener) -> ScrapeListener:
        try:
            return ScrapeListener(listener.host, listener.port, self._handle)
        except OSError as error:
            where = f"{listener.host}:{listener.port}"
            problem = f"cannot serve metrics on {where} (metrics.listeners)"
            if error.errno == errno.EADDRINUSE:
                raise MetricsPortTakenError(
                    f"{problem}: the port is taken by another process; choose another one"
                ) from error
            raise ConfigError(f"{problem}: {os.strerror(error.errno or 0)}") from error

    def compose(
        self,
        services: Services,
        net: NetServer,
        logins: LoginCounts,
        lifecycle: BrokerLifecycle,
        environment: Environment,
        failure: Callable[[], BaseException | None],
    ) -> None:
        """Connect the listeners with the parts of the node."""
        # Here: a node without metrics listeners does not pay for the import.
        from klamm.server.metrics.collector import NodeMetrics  # noqa: PLC0415
        from klamm.server.metrics.endpoint import MetricsEndpoint  # noqa: PLC0415
        from klamm.telemetry.exposition import Naming  # noqa: PLC0415

        broker = lifecycle if services.config.is_broker else None
        self._metrics = NodeMetrics(services, net, logins, broker, environment.disk.sync_seconds)
        naming = Naming(self._config.text("klamm.metrics.naming"))
        self._endpoint = MetricsEndpoint(services, self._metrics, broker, naming, failure)
        if self._otlp_endpoint:
            from klamm.server.metrics.otlp_exporter import OtlpExporter  # noqa: PLC0415

            interval_s = self._config.integer("klamm.otlp.interval.ms") / 1000
            self._exporter = OtlpExporter(self._otlp_endpoint, interval_s, self._endpoint.take_snapshot)
            self._metrics.otlp = self._exporter.counts

    def start(self) -> None:
        """Serve."""
        for listener in self._listeners:
            listener.start()
            host, port = listener.address
            log.info("metrics served", address=f"http://{host}:{port}/metrics")
        if self._exporter is not None:
            self._exporter.start()

    def tick(self, late_s: float) -> None:
        """Record what has happened in the last second; called on the loop."""
        if self._metrics is not None:
            self._metrics.tick(late_s)

    def close(self) -> None:
        """Serve and export no more; waits for the listeners' threads, not for clients or a collector."""
        if self._exporter is not None:
            self._exporter.close()
        for listener in self._listeners:
            listener.close()
        if self._metrics is not None:
            self._metrics.close()

    def _handle(self, request: ScrapeRequest) -> ScrapeResponse:
        if self._endpoint is None:
            return ScrapeResponse(503, b"the node is starting\n")
        return self._endpoint.handle(request)


def has_metrics(config: NodeConfig) -> bool:
    """Return whether metrics are served or exported; a node without either does not collect them."""
    return bool(config.metrics_listeners or config.text("klamm.otlp.endpoint"))


def _check_otlp(config: NodeConfig) -> str:
    """Return the URL of the collector, "" for none; ConfigError for a wrong one, or without the extra."""
    text = config.text("klamm.otlp.endpoint")
    if not text:
        return ""
    from klamm.server.metrics.otlp_exporter import parse_endpoint  # noqa: PLC0415

    try:
        import klamm.telemetry.otlp  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{OTLP_ENDPOINT}: {error.name} is not installed: pip install 'klamm[otlp]'") from None
    return parse_endpoint(OTLP_ENDPOINT, text)
