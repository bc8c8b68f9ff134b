"""Where a consumer stands: positions in its partitions, what was committed of them, and offsets to go to."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from klamm.client.arguments import by_place, whole
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.commits import Commits
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.fetch_positions import FetchPositions
from klamm.client.consumer.offsets import EARLIEST, LATEST, list_offsets
from klamm.client.errors import IllegalStateError
from klamm.client.types import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

Place = TopicPartition | tuple[str, int]


class Cursor(ABC):
    """What a consumer is asked about offsets; `AsyncConsumer` fills in the rest."""

    subscription_state: Subscription
    _fetch_buffer: FetchBuffer
    _positions: FetchPositions | None
    _commits: Commits | None
    _news: asyncio.Event
    _committed_only: bool
    _api_s: float

    @property
    @abstractmethod
    def cluster(self) -> ClusterClient:
        """What is known of the cluster; IllegalStateError without one."""

    # Positions

    def seek(self, partition: Place, offset: int, leader_epoch: int = -1) -> None:
        """Go on at an offset with the next poll."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"an offset is a whole number, not {offset!r}")
        if offset < 0:
            raise ValueError(f"{offset} is no offset; seek_to_beginning and seek_to_end go to the ends")
        self._fetch_buffer.settle()
        self.subscription_state.state(TopicPartition(*partition)).seek(offset, leader_epoch)
        self._news.set()

    def seek_to_beginning(self, *partitions: Place) -> None:
        """Go on at the first record, of all partitions without any."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: Place) -> None:
        """Go on behind the last record, of all partitions without any."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[Place], timestamp: int) -> None:
        self._fetch_buffer.settle()
        for where in [TopicPartition(*partition) for partition in partitions] or list(self.subscription_state.assigned):
            self.subscription_state.state(where).need_reset(timestamp)
        self._news.set()

    async def position(self, partition: Place, timeout_s: float | None = None) -> int:
        """The offset of the next record of a partition."""
        self._fetch_buffer.settle()
        state = self.subscription_state.state(TopicPartition(*partition))
        if state.position is not None:
            return state.position
        self.cluster  # noqa: B018 - says so when there is none
        assert self._positions is not None
        return await self._positions.of(state, timeout_s)

    def pause(self, *partitions: Place) -> None:
        """Hand out nothing of these partitions until they are resumed; membership is not affected."""
        for partition in partitions:
            self.subscription_state.state(TopicPartition(*partition)).paused = True

    def resume(self, *partitions: Place) -> None:
        """Hand out records of these partitions again."""
        for partition in partitions:
            self.subscription_state.state(TopicPartition(*partition)).paused = False
        self._news.set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {where for where, state in self.subscription_state.assigned.items() if state.paused}

    def lag(self, partition: Place) -> int | None:
        """How far the position is behind the end as the last fetch saw it; None before the first."""
        state = self.subscription_state.state(TopicPartition(*partition))
        end = state.last_stable_offset if self._committed_only else state.high_watermark
        return None if state.position is None or end < 0 else max(end - state.position, 0)

    # Committing

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets, those of all that was handed out without any; CommitFailedError when the group went on.

        `commit(record)` says that this record, and all before it in its partition, were dealt with.
        """
        if self._commits is None:
            raise IllegalStateError("committing needs a group.id")
        self._fetch_buffer.settle()
        await self._commits.commit(offsets)

    async def committed(self, partitions: Iterable[Place]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is."""
        if self._commits is None:
            raise IllegalStateError("committed offsets need a group.id")
        return await self._commits.committed(TopicPartition(*partition) for partition in partitions)

    # Looking around

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after times (ms since the epoch); None where there is none."""
        wanted = {
            where: whole(at, f"the time of {where}") for where, at in by_place(times, "offsets_for_times").items()
        }
        offsets = await self._offsets(wanted)
        return {partition: offset if offset.offset >= 0 else None for partition, offset in offsets.items()}

    async def beginning_offsets(self, partitions: Iterable[Place]) -> dict[TopicPartition, int]:
        """The first offset of partitions."""
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[Place]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Iterable[Place], timestamp: int) -> dict[TopicPartition, int]:
        offsets = await self._offsets({TopicPartition(*partition): timestamp for partition in partitions})
        return {partition: offset.offset for partition, offset in offsets.items()}

    async def _offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self.cluster, wanted, self._api_s, committed=self._committed_only)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        await self.cluster.topic(topic, self._api_s)
        return sorted(self.cluster.table.topics[topic].partitions)
