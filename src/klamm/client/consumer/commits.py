"""Commits of consumed positions: on request, every auto.commit.interval.ms, and before partitions are revoked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from klamm.client.client_settings import ClientSettings
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.offsets import GroupCoordinator, commit, fetch_committed
from klamm.client.errors import KafkaError
from klamm.client.metrics import CoordinatorWork
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.types import OffsetAndMetadata, Record, as_offsets
from klamm.model.ids import TopicPartition

_log = logging.getLogger(__name__)
# A rebalance of the whole group waits for this commit; default.api.timeout.ms (60 s) would be too long.
_COMMIT_ON_REVOKE_S = 5.0


class Commits:
    """The committed offsets of one group; `member` returns generation and member id, called for every attempt."""

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
        """Commit offsets, or all positions without; CommitFailedError when another generation owns the partitions."""
        wanted = self._list_consumed() if offsets is None else as_offsets(offsets)
        if wanted:
            await self._store(wanted, self._api_s)

    async def _store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        began = time.monotonic()
        await commit(self._coordinator, offsets, self._member, timeout_s)
        self._work.count_commit(time.monotonic() - began)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group; None for a partition without."""
        wanted = list(partitions)
        offsets = await fetch_committed(self._coordinator, wanted, self._api_s, stable=self._stable)
        return {where: offsets.get(where) for where in wanted}

    def _list_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            where: OffsetAndMetadata(state.position, "", state.position_epoch)
            for where, state in self._subscription.assigned.items()
            if state.position is not None
        }

    def commit_if_due(self) -> None:
        """Commit in the background when auto.commit.interval.ms has passed, with enable.auto.commit."""
        if not self.automatic:
            return
        now = asyncio.get_running_loop().time()
        if not self._next:
            self._next = now + self._interval_s
        # One commit at a time: two in flight could arrive in either order and move the committed offset back.
        idle = self._task is None or self._task.done()
        if now >= self._next and idle:
            self._next = now + self._interval_s
            consumed = self._list_consumed()
            if consumed:
                self._task = asyncio.create_task(self._commit_in_background(consumed), name="klamm auto commit")

    async def _commit_in_background(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self._store(offsets, self._interval_s or 1.0)
        except KafkaError as error:
            _log.warning("auto commit of offsets failed; retried after auto.commit.interval.ms: %s", error)

    async def commit_before_revoke(self) -> None:
        """Commit positions before partitions are revoked (with enable.auto.commit); a failure causes duplicates."""
        if not self.automatic:
            return
        # The commit under way has older positions; it must not arrive after this one.
        if self._task is not None and not self._task.done():
            await asyncio.gather(self._task, return_exceptions=True)
        consumed = self._list_consumed()
        if not consumed:
            return
        try:
            await self._store(consumed, min(_COMMIT_ON_REVOKE_S, self._api_s))
        except KafkaError as error:
            _log.warning("commit of offsets before partitions are revoked failed: %s", error)

    async def stop(self) -> None:
        """Cancel the commit in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
