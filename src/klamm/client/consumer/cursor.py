"""Positions of a consumer in its partitions, committed offsets, and offsets by time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.commits import Commits
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.fetch_positions import FetchPositions
from klamm.client.consumer.offsets import EARLIEST, LATEST, list_offsets
from klamm.client.core.arguments import by_place, whole
from klamm.client.errors import IllegalStateError
from klamm.client.types import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

PartitionLike = TopicPartition | tuple[str, int]


class Cursor(ABC):
    """The methods of a consumer that are about offsets; `AsyncConsumer` has the rest."""

    subscription_state: Subscription
    _fetch_buffer: FetchBuffer
    _positions: FetchPositions | None
    _commits: Commits | None
    _wakeup: asyncio.Event
    _committed_only: bool
    _api_s: float

    @property
    @abstractmethod
    def cluster(self) -> ClusterClient:
        """The connected cluster; IllegalStateError when the consumer is not started."""

    # Positions

    def seek(self, partition: PartitionLike, offset: int, leader_epoch: int = -1) -> None:
        """Continue at an offset with the next poll."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"an offset is a whole number, not {offset!r}")
        if offset < 0:
            raise ValueError(f"{offset} is no offset; seek_to_beginning and seek_to_end seek to the ends")
        # First: an unread rest that is returned after the seek would move the position back.
        self._fetch_buffer.return_unread()
        self.subscription_state.state(TopicPartition(*partition)).seek(offset, leader_epoch)
        self._wakeup.set()

    def seek_to_beginning(self, *partitions: PartitionLike) -> None:
        """Continue at the first record, of all partitions if none is named."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: PartitionLike) -> None:
        """Continue behind the last record, of all partitions if none is named."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[PartitionLike], timestamp: int) -> None:
        self._fetch_buffer.return_unread()
        # Lazy, as in Java: the offset is looked up by the next poll, so a failure is raised there.
        for where in [TopicPartition(*partition) for partition in partitions] or list(self.subscription_state.assigned):
            self.subscription_state.state(where).need_reset(timestamp)
        self._wakeup.set()

    async def position(self, partition: PartitionLike, timeout_s: float | None = None) -> int:
        """The offset of the next record of a partition."""
        self._fetch_buffer.return_unread()
        state = self.subscription_state.state(TopicPartition(*partition))
        if state.position is not None:
            return state.position
        self.cluster  # noqa: B018 - raises when not started
        assert self._positions is not None
        return await self._positions.of(state, timeout_s)

    def pause(self, *partitions: PartitionLike) -> None:
        """Return no records of these partitions until they are resumed; membership is not affected."""
        for partition in partitions:
            self.subscription_state.state(TopicPartition(*partition)).paused = True

    def resume(self, *partitions: PartitionLike) -> None:
        """Return records of these partitions again."""
        for partition in partitions:
            self.subscription_state.state(TopicPartition(*partition)).paused = False
        self._wakeup.set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {where for where, state in self.subscription_state.assigned.items() if state.paused}

    def lag(self, partition: PartitionLike) -> int | None:
        """Offsets between the position and the end that the last fetch returned; None before the first."""
        state = self.subscription_state.state(TopicPartition(*partition))
        # A read_committed reader cannot pass the last stable offset: an open transaction is not lag it could work off.
        end = state.last_stable_offset if self._committed_only else state.high_watermark
        return None if state.position is None or end < 0 else max(end - state.position, 0)

    # Committing

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets, or all positions without; CommitFailedError when another generation owns the partitions.

        `commit(record)` commits the offset behind this record: it and all before it in its partition are processed.
        """
        if self._commits is None:
            raise IllegalStateError("committing needs a group.id")
        self._fetch_buffer.return_unread()
        await self._commits.commit(offsets)

    async def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group for partitions; None for a partition without."""
        if self._commits is None:
            raise IllegalStateError("committed offsets need a group.id")
        return await self._commits.committed(TopicPartition(*partition) for partition in partitions)

    # Offsets of the log

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after times (ms since the epoch); None where there is none."""
        wanted = {
            where: whole(at, f"the time of {where}") for where, at in by_place(times, "offsets_for_times").items()
        }
        offsets = await self._offsets(wanted)
        return {partition: offset if offset.offset >= 0 else None for partition, offset in offsets.items()}

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset of partitions."""
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Iterable[PartitionLike], timestamp: int) -> dict[TopicPartition, int]:
        offsets = await self._offsets({TopicPartition(*partition): timestamp for partition in partitions})
        return {partition: offset.offset for partition, offset in offsets.items()}

    async def _offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self.cluster, wanted, self._api_s, committed=self._committed_only)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        await self.cluster.topic(topic, self._api_s)
        return sorted(self.cluster.table.topics[topic].partitions)
