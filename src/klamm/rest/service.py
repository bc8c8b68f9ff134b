"""The clients of the cluster behind a proxy, started and stopped together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import klamm
from klamm.client.errors import IllegalStateError
from klamm.http.metrics import ServiceMetric
from klamm.registry.client import shared_registry
from klamm.registry.client_settings import parse_settings
from klamm.rest.callers import CallerPool
from klamm.rest.clients import RestClients, RoleSettings
from klamm.rest.core.callers import CallerLogin
from klamm.rest.instances import ConsumerInstances
from klamm.rest.producing import RecordCounts
from klamm.telemetry import get_logger

_log = get_logger("rest")


@dataclass(frozen=True, slots=True)
class RestConfig:
    """Settings of a proxy; `client` are those of all its clients, `producer` and `consumer` add to them."""

    client: Mapping[str, Any]
    producer: Mapping[str, Any] = field(default_factory=dict)
    consumer: Mapping[str, Any] = field(default_factory=dict)
    registry: str | Mapping[str, str] | None = None
    """Address or settings of a schema registry."""
    advertised_url: str | None = None
    """Where clients reach the proxy; by default the address that a request came to."""
    instances_max: int = 500
    instance_timeout_ms: int = 300_000
    request_timeout_ms: int = 1000
    """How long a read waits for records."""
    response_bytes_max: int = 16 << 20
    """Bytes of keys and values that a read returns at most."""
    record_bytes_max: int = 2 << 20
    """Of the JSON of a streamed record."""
    body_bytes_max: int = 16 << 20
    stream_s: float = 24 * 3600.0
    """After so long a stream of records ends."""
    stream_idle_s: float = 300.0
    """Without a record for so long it ends, too."""
    streams_max: int = 500
    """Streams of records at a time."""
    caller_login: CallerLogin | None = None
    """How callers log in to the cluster, each for itself; None lets all of them act as the proxy."""
    callers_max: int = 200
    """Callers whose clients are open at a time."""
    caller_idle_ms: int = 300_000
    """Without a request for so long, the clients of a caller are closed."""


class RestService:
    """What the routes use."""

    def __init__(self, config: RestConfig) -> None:
        self.config = config
        self.counts = RecordCounts()
        settings = RoleSettings(
            config.client, {**config.client, **config.producer}, {**config.client, **config.consumer}
        )
        registry = None if config.registry is None else parse_settings(config.registry)
        self.own = RestClients(settings, None if registry is None else shared_registry(registry), self.counts)
        """The proxy's own clients. With logins of callers, requests use those instead."""
        self.callers: CallerPool | None = None
        if config.caller_login is not None:
            self.callers = CallerPool(
                config.caller_login,
                settings,
                registry,
                self.counts,
                callers_max=config.callers_max,
                idle_ms=config.caller_idle_ms,
            )
        self.instances = ConsumerInstances(
            instances_max=config.instances_max, instance_timeout_ms=config.instance_timeout_ms
        )
        self.streams = 0
        """Streams of records that are open."""
        self.stopping = False
        self._started = False

    async def start(self) -> None:
        """Connect to the cluster; BrokersUnreachableError when no broker answers."""
        await self.own.start()
        if self.callers is None:
            await self.own.open_producer()
        self.instances.start()
        self._started = True
        _log.info("REST proxy started", cluster_id=self.cluster_id)

    async def stop(self) -> None:
        """Close consumer instances, deliver what is buffered, disconnect."""
        self.stopping = True
        self._started = False
        await self.instances.stop()
        if self.callers is not None:
            await self.callers.stop()
        await self.own.close()

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self.own.admin.cluster.table.cluster_id or ""

    def check_liveness(self) -> None:
        """Raise if the producer cannot go on."""
        if self._started:
            self.own.check()

    def describe_readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the cluster is known."""
        try:
            cluster_id = self.cluster_id
        except IllegalStateError:
            return False, {"version": klamm.__version__}
        return self._started, {"cluster_id": cluster_id, "version": klamm.__version__}

    def list_metrics(self) -> Iterable[ServiceMetric]:
        """Return the values of the proxy."""
        yield ServiceMetric("consumer_instances", "gauge", "Consumer instances.", len(self.instances.table))
        yield ServiceMetric(
            "consumer_instances_expired_total", "counter", "Instances closed because idle.", self.instances.expired
        )
        yield ServiceMetric("record_streams", "gauge", "Streams of records that are open.", self.streams)
        yield ServiceMetric("records_total", "counter", "Records sent to the cluster.", self.counts.records)
        yield ServiceMetric(
            "record_failures_total", "counter", "Records that were not acknowledged.", self.counts.failures
        )
        if self.callers is not None:
            yield ServiceMetric("callers", "gauge", "Callers whose clients are open.", len(self.callers.table))
            yield ServiceMetric(
                "logins_refused_total", "counter", "Logins that the cluster refused.", self.callers.refused
            )
