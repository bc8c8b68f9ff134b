"""The clients of the cluster that requests of one identity share: the proxy's own, or those of a caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError
from klamm.client.producer import AsyncProducer
from klamm.registry.client import Registry
from klamm.rest.producing import RecordCounts, RecordProducer
from klamm.rest.schemas import RecordSchemas
from klamm.telemetry import get_logger

_log = get_logger("rest")

_PRODUCER: Final[Mapping[str, Any]] = {
    # A request waits for its records: a cluster that does not take them must be reported before the client gives up.
    "delivery.timeout.ms": 30_000,
    "request.timeout.ms": 15_000,
    "max.block.ms": 15_000,
    "allow.auto.create.topics": False,
    # Requests wait for their records, and the default of 5 ms would be most of the time of a small one. Without any,
    # requests of many records are split into more batches and cost the proxy 40 % more CPU.
    "linger.ms": 1,
}


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """Settings of the clients of one identity, by role."""

    admin: Mapping[str, Any]
    producer: Mapping[str, Any]
    consumer: Mapping[str, Any]

    def map(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> RoleSettings:
        """Return them with a change to each."""
        return RoleSettings(change(self.admin), change(self.producer), change(self.consumer))


class RestClients:
    """An admin client, a producer that is started when it is needed, and schemas."""

    def __init__(self, settings: RoleSettings, registry: Registry | None, counts: RecordCounts) -> None:
        self.settings = settings
        self.admin = AsyncAdmin(settings.admin)
        self.schemas = RecordSchemas(registry)
        self._counts = counts
        self._producer = AsyncProducer({**_PRODUCER, **settings.producer})
        self._producing: RecordProducer | None = None
        self._opening = asyncio.Lock()
        self.closed = False

    async def start(self) -> None:
        """Connect and log in; AuthenticationError if the cluster refuses the login."""
        await self.admin.start()

    async def open_producer(self) -> RecordProducer:
        """Return the producer, started by the first request that needs it."""
        if self._producing is not None:
            return self._producing
        async with self._opening:
            if self._producing is None:
                await self._producer.start()
                self._producing = RecordProducer(self._producer, self.admin, self._counts)
        return self._producing

    def check(self) -> None:
        """Raise if the producer cannot go on."""
        if self._producing is not None:
            self._producer.cluster  # noqa: B018 - raises when it was closed

    async def close(self) -> None:
        """Deliver what is buffered, and disconnect."""
        self.closed = True
        try:
            await self._producer.close()
        except (KafkaError, TimeoutError) as error:
            _log.warning("producer closed with an error", error=str(error))
        await self.admin.close()
