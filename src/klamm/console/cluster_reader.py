"""Reads the partitions of a cluster in parts: 100,000 of them at once would need ten times the memory of the sample.

Metadata comes in pages of 2,000 partitions, offsets and sizes of one broker at a time. What is kept between the parts
is keyed by name and index: a key object for each partition would be larger than what it leads to.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.replica_types import LogDirDescription
from klamm.client.errors import KafkaError, UnsupportedVersionError, raise_for
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.samples import ClusterSample, LogDirSample, TopicSample
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
_ATTEMPTS: Final = 3
"""Of a page of metadata; a broker that stops closes the connection in the middle of it."""

OffsetsByTopic = dict[str, dict[int, int]]


@dataclass(slots=True)
class TopicLayout:
    """A topic without offsets and sizes."""

    internal: bool
    partitions: list[PartitionLayout] = field(default_factory=list)

    def find_leader(self, index: int) -> int:
        """Return the leader of a partition; -1 when there is none."""
        if index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index].leader
        return next((partition.leader for partition in self.partitions if partition.index == index), -1)


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """Where a partition is."""

    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(slots=True)
class LogDirReading:
    """What the log dirs of all brokers add up to."""

    sizes: OffsetsByTopic = field(default_factory=dict)
    """Of the leader's replica, by topic and partition."""
    totals: dict[str, int] = field(default_factory=dict)
    """Of all replicas, by topic."""
    replicas: dict[str, int] = field(default_factory=dict)
    """Replicas in `totals`."""
    broker_bytes: dict[int, int] = field(default_factory=dict)
    folders: dict[int, tuple[LogDirSample, ...]] = field(default_factory=dict)
    copied: dict[TopicPartition, int] = field(default_factory=dict)
    """Of the new replicas of each partition that moves."""


async def guard(what: str, work: Awaitable[T], partial: list[str]) -> T | None:
    """Return the answer; None, and a line for the overview, when it is refused."""
    try:
        return await work
    except UnsupportedVersionError:
        return None
    except KafkaError as error:
        partial.append(f"{what}: {error}")
        return None


class ClusterReader:
    """Reads one cluster once; `partial` gets what could not be read."""

    def __init__(self, admin: AsyncAdmin, partial: list[str]) -> None:
        self._admin = admin
        self._partial = partial
        self.topics: dict[str, TopicLayout] = {}
        # Few lists of brokers are different: 100,000 partitions share some hundred tuples.
        self._broker_lists: dict[tuple[int, ...], tuple[int, ...]] = {}

    async def read_topics(self) -> None:
        """Read all topics, by pages where the brokers have them (KIP-966)."""
        try:
            await self._read_pages()
        except UnsupportedVersionError:
            for name, topic in (await self._admin.describe_topics_by_metadata()).items():
                layout = self.topics[name] = TopicLayout(topic.internal)
                for partition in topic.partitions:
                    self._add(layout, partition.partition, partition.leader, partition.replicas, partition.isr)

    async def _read_pages(self) -> None:
        cursor = None
        while True:
            response = await self._request_page(DescribeTopicPartitionsRequest(topics=[], cursor=cursor))
            for topic in response.topics:
                # Without leaders yet: its partitions are described all the same.
                if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                    raise_for(topic.error_code, f"topic {topic.name}")
                # A topic with more partitions than a page goes on in the next one.
                layout = self.topics.setdefault(topic.name, TopicLayout(topic.is_internal))
                for partition in topic.partitions:
                    self._add(
                        layout,
                        partition.partition_index,
                        partition.leader_id,
                        partition.replica_nodes,
                        partition.isr_nodes,
                    )
            cursor = response.next_cursor
            if cursor is None:
                return

    async def _request_page(self, request: DescribeTopicPartitionsRequest) -> Any:
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._admin.request(request)
            except KafkaError as error:
                if not error.retriable:
                    raise
        return await self._admin.request(request)

    def _add(self, layout: TopicLayout, index: int, leader: int, replicas: Iterable[int], isr: Iterable[int]) -> None:
        layout.partitions.append(PartitionLayout(index, leader, self._share(replicas), self._share(isr)))

    def _share(self, brokers: Iterable[int]) -> tuple[int, ...]:
        listed = tuple(brokers)
        return self._broker_lists.setdefault(listed, listed)

    @property
    def partition_count(self) -> int:
        """How many partitions were read."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    async def list_offsets(self, timestamp: int) -> OffsetsByTopic:
        """Return offsets from the leaders that the metadata names, without another look at it."""
        names = list(self.topics)
        # Positions in `names` and indexes, one after the other: lists by topic for each leader are twenty times larger.
        places: dict[int, array[int]] = {}
        for position, topic in enumerate(self.topics.values()):
            for partition in topic.partitions:
                if partition.leader >= 0:
                    places.setdefault(partition.leader, array("i")).extend((position, partition.index))
        offsets: OffsetsByTopic = {}
        for leader, numbers in places.items():
            partitions: dict[str, list[ListOffsetsPartition]] = {}
            for position, index in zip(numbers[::2], numbers[1::2], strict=True):
                partition_request = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                partitions.setdefault(names[position], []).append(partition_request)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[ListOffsetsTopic(name=name, partitions=listed) for name, listed in partitions.items()],
            )
            what = f"offsets of broker {leader}"
            response = await guard(what, self._admin.request(request, broker=leader), self._partial)
            for topic_offsets in response.topics if response is not None else ():
                by_index = offsets.setdefault(topic_offsets.name, {})
                for partition_offset in topic_offsets.partitions:
                    if not partition_offset.error_code:
                        by_index[partition_offset.partition_index] = partition_offset.offset
        return offsets

    async def read_log_dirs(
        self, brokers: Iterable[int], adding: Mapping[TopicPartition, Collection[int]] | None = None
    ) -> LogDirReading:
        """Return the sizes of replicas, read from one broker after the other; `adding` has the brokers of new ones."""
        reading = LogDirReading(copied=dict.fromkeys(adding or {}, 0))
        for broker in brokers:
            what = f"log dirs of broker {broker}"
            described = await guard(what, self._admin.describe_log_dirs([broker]), self._partial)
            if described is not None:
                _add_log_dirs(reading, broker, described[broker], self.topics)
                for folder in described[broker]:
                    for where, brokers_of_new in (adding or {}).items():
                        if broker in brokers_of_new and where in folder.replicas:
                            reading.copied[where] += folder.replicas[where].size
        return reading

    def make_samples(
        self,
        starts: OffsetsByTopic | ClusterSample,
        ends: OffsetsByTopic,
        log_dirs: LogDirReading,
        before: ClusterSample | None = None,
    ) -> dict[str, TopicSample]:
        """Return the topics by name; starts may be those of an earlier sample. Uses up what was read.

        Topics that are as they were `before` are the same objects: most topics of a large cluster are idle.
        """
        samples = {}
        earlier = {} if before is None else before.topics
        for name in sorted(self.topics):
            # Taken out, so that its memory is free for the samples.
            topic = self.topics.pop(name)
            known_starts = _take_starts(starts, name)
            known_ends, known_sizes = ends.pop(name, {}), log_dirs.sizes.pop(name, {})
            partitions = tuple(
                PartitionSample(
                    partition.index,
                    partition.leader,
                    partition.replicas,
                    partition.isr,
                    known_starts.get(partition.index),
                    known_ends.get(partition.index),
                    known_sizes.get(partition.index),
                )
                for partition in topic.partitions
            )
            sample = TopicSample(
                name, topic.internal, partitions, log_dirs.totals.get(name), log_dirs.replicas.get(name, 0)
            )
            old = earlier.get(name)
            samples[name] = sample if old is None or old != sample else old
        return samples


def _take_starts(starts: OffsetsByTopic | ClusterSample, name: str) -> dict[int, int]:
    if not isinstance(starts, ClusterSample):
        return starts.pop(name, {})
    topic = starts.topics.get(name)
    partitions = () if topic is None else topic.partitions
    return {partition.index: partition.start for partition in partitions if partition.start is not None}


def _add_log_dirs(
    reading: LogDirReading, broker: int, folders: list[LogDirDescription], topics: Mapping[str, TopicLayout]
) -> None:
    size = 0
    for folder in folders:
        for where, replica in folder.replicas.items():
            size += replica.size
            # A future replica is a copy on its way to another log dir of the broker.
            if replica.is_future:
                continue
            reading.totals[where.topic] = reading.totals.get(where.topic, 0) + replica.size
            reading.replicas[where.topic] = reading.replicas.get(where.topic, 0) + 1
            topic = topics.get(where.topic)
            if topic is not None and topic.find_leader(where.partition) == broker:
                reading.sizes.setdefault(where.topic, {})[where.partition] = replica.size
    reading.broker_bytes[broker] = size
    reading.folders[broker] = tuple(
        LogDirSample(folder.path, folder.error_code, folder.total_bytes, folder.usable_bytes) for folder in folders
    )
