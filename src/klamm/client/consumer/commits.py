"""Committing what was handed out: when asked, every auto.commit.interval.ms, and before partitions go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from klamm.client.config import ClientSettings
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.offsets import GroupCoordinator, commit, fetch_committed
from klamm.client.errors import KafkaError
from klamm.client.metrics import CoordinatorWork
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.types import OffsetAndMetadata, Record, as_offsets
from klamm.model.ids import TopicPartition

_log = logging.getLogger(__name__)
_QUIETLY_S = 5.0


class Commits:
    """The offsets of one group; `member` tells who commits, at every attempt anew."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        subscription: Subscription,
        settings: ClientSettings,
        member: Callable[[], GroupMetadata],
        work: CoordinatorWork,
    ) -> None:
        self.automatic: bool = settings["enable.auto.commit"]
        self._coordinator = coordinator
        self._subscription = subscription
        self._member = member
        self._work = work
        self._api_s = settings.seconds("default.api.timeout.ms")
        self._interval_s = settings.seconds("auto.commit.interval.ms")
        self._stable = settings["isolation.level"] == "read_committed"
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None) -> None:
        """Commit offsets, those of all that was handed out without any; CommitFailedError when the group went on."""
        wanted = self._consumed() if offsets is None else as_offsets(offsets)
        if wanted:
            await self._store(wanted, self._api_s)

    async def _store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        began = time.monotonic()
        await commit(self._coordinator, offsets, self._member, timeout_s)
        self._work.committed(time.monotonic() - began)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where nothing is."""
        wanted = list(partitions)
        offsets = await fetch_committed(self._coordinator, wanted, self._api_s, stable=self._stable)
        return {where: offsets.get(where) for where in wanted}

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            where: OffsetAndMetadata(state.position, "", state.position_epoch)
            for where, state in self._subscription.assigned.items()
            if state.position is not None
        }

    def due(self) -> None:
        """Commit in the background when it is time to, with enable.auto.commit."""
        if not self.automatic:
            return
        now = asyncio.get_running_loop().time()
        if not self._next:
            self._next = now + self._interval_s
        idle = self._task is None or self._task.done()
        if now >= self._next and idle:
            self._next = now + self._interval_s
            consumed = self._consumed()
            if consumed:
                self._task = asyncio.create_task(self._in_background(consumed), name="klamm auto commit")

    async def _in_background(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self._store(offsets, self._interval_s or 1.0)
        except KafkaError as error:
            _log.warning("offsets were not committed, the next attempt will: %s", error)

    async def before_leaving(self) -> None:
        """What was handed out, before partitions go (with enable.auto.commit); a failure costs duplicates."""
        if not self.automatic:
            return
        if self._task is not None and not self._task.done():
            await asyncio.gather(self._task, return_exceptions=True)
        consumed = self._consumed()
        if not consumed:
            return
        try:
            await self._store(consumed, min(_QUIETLY_S, self._api_s))
        except KafkaError as error:
            _log.warning("offsets were not committed before partitions were given up: %s", error)

    async def stop(self) -> None:
        """Leave off what is going on in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
