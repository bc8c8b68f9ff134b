"""What one collection found in a cluster, as immutable values.

A page reads one sample and never asks the cluster for a list: 10,000 topics are paged, sorted and searched in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from klamm.console.core.partition_columns import PartitionColumns, PartitionSample
from klamm.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class TopicSample:
    """One topic."""

    name: str
    internal: bool
    partitions: Sequence[PartitionSample]
    total_bytes: int | None = None
    """Of all replicas."""
    sized_replicas: int = 0
    """Replicas whose sizes are in `total_bytes`: those of brokers that reported their log dirs."""

    records: int | None = field(init=False, compare=False)
    """Offsets of all partitions; None when one is unknown."""
    end_sum: int | None = field(init=False, compare=False)
    """The sum of end offsets, whose growth is the rate of the topic."""
    under_replicated: int = field(init=False, compare=False)
    """Partitions with a replica out of sync."""
    offline: int = field(init=False, compare=False)
    """Partitions without a leader."""
    in_sync: int = field(init=False, compare=False)
    """Partitions with a leader and all replicas in sync."""

    def __post_init__(self) -> None:
        partitions = self.partitions
        object.__setattr__(self, "partitions", PartitionColumns(partitions))
        # Once, and in slots: a dict for the cached values of each of 10,000 topics would be larger than them.
        values = {
            "records": _sum(partition.records for partition in partitions),
            "end_sum": _sum(partition.end for partition in partitions),
            "under_replicated": sum(1 for partition in partitions if partition.is_under_replicated),
            "offline": sum(1 for partition in partitions if partition.leader < 0),
            "in_sync": sum(
                1 for partition in partitions if partition.leader >= 0 and not partition.is_under_replicated
            ),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def layouts(self) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield index, leader, replicas and ISR of each partition."""
        assert isinstance(self.partitions, PartitionColumns)
        return self.partitions.layouts()

    def in_sync_replicas(self) -> Sequence[tuple[int, ...]]:
        """Return the ISR of each partition."""
        assert isinstance(self.partitions, PartitionColumns)
        return self.partitions.in_sync_replicas()

    def partition(self, index: int) -> PartitionSample | None:
        """The partition of an index; None when there is none."""
        # In order of their indexes, from 0: all but a topic whose metadata was read in the middle of a change.
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((partition for partition in self.partitions if partition.index == index), None)

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class LogDirSample:
    """A log dir of a broker; sizes are -1 where the broker does not report them."""

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int

    @property
    def used_share(self) -> float | None:
        """How full the disk is, 0 to 1."""
        return None if self.total_bytes <= 0 else 1 - self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """One broker."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False
    leaders: int = 0
    replicas: int = 0
    size_bytes: int = 0
    log_dirs: tuple[LogDirSample, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group; `committed` is None until its offsets were read."""

    name: str
    type: str
    protocol_type: str
    state: str
    coordinator: int
    committed: Mapping[TopicPartition, int] | None = None
    committed_ms: int = 0
    """When the offsets were read."""
    oldest_unread_ms: int | None = None
    """The timestamp of the oldest unread record; None when it is not known, or there is none."""
    timed_ms: int = 0
    """When that was read."""


@dataclass(frozen=True)
class ClusterSample:
    """A cluster at one moment."""

    time_ms: int
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerSample, ...]
    topics: Mapping[str, TopicSample]
    groups: Mapping[str, GroupSample] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Records per second by topic; a topic without a second sample has none."""
    byte_rates: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second of all replicas by topic, before retention deletes any."""
    reassigning: int = 0
    """Partitions that move."""
    collected_s: float = 0.0
    """How long the collection took."""
    partial: tuple[str, ...] = ()
    """What could not be read, with the reason."""

    @cached_property
    def lags_by_topic(self) -> dict[str, dict[str, int]]:
        """The groups with committed offsets in each topic, and how far each is behind there."""
        topics: dict[str, dict[str, int]] = {}
        for group in self.groups.values():
            for partition, offset in (group.committed or {}).items():
                lags = topics.setdefault(partition.topic, {})
                end = self.end(partition)
                lags[group.name] = lags.get(group.name, 0) + (0 if end is None else max(end - offset, 0))
        return topics

    def end(self, where: TopicPartition) -> int | None:
        """The end offset of a partition; None when it is gone or unknown."""
        topic = self.topics.get(where.topic)
        partition = None if topic is None else topic.partition(where.partition)
        return None if partition is None else partition.end

    @cached_property
    def lags(self) -> dict[str, int | None]:
        """Records that each group is behind; None where its offsets are not read yet."""
        return {
            group.name: None if group.committed is None else self._total_lag(group.committed)
            for group in self.groups.values()
        }

    @cached_property
    def lags_ms(self) -> dict[str, int | None]:
        """The age of each group's oldest unread record; 0 without any, None where it is not known."""
        ages: dict[str, int | None] = {}
        for name, lag in self.lags.items():
            oldest_ms = self.groups[name].oldest_unread_ms
            if lag:
                ages[name] = None if oldest_ms is None else max(self.time_ms - oldest_ms, 0)
            else:
                ages[name] = lag
        return ages

    def _total_lag(self, committed: Mapping[TopicPartition, int]) -> int:
        """Records between committed and end offsets; partitions that are gone count nothing."""
        return sum(max(end - offset, 0) for where, offset in committed.items() if (end := self.end(where)) is not None)


def add_rates(sample: ClusterSample, before: ClusterSample | None) -> tuple[dict[str, float], dict[str, float]]:
    """Records and bytes per second of each topic since an earlier sample; a topic made anew has none.

    Samples whose sizes are of other log dirs or replicas give no bytes per second.
    """
    rates: dict[str, float] = {}
    byte_rates: dict[str, float] = {}
    seconds = 0.0 if before is None else (sample.time_ms - before.time_ms) / 1000
    if before is None or seconds <= 0:
        return rates, byte_rates
    same_log_dirs = _list_log_dirs(sample) == _list_log_dirs(before)
    for name, topic in sample.topics.items():
        old = before.topics.get(name)
        if old is None or topic.end_sum is None or old.end_sum is None or topic.end_sum < old.end_sum:
            continue
        rates[name] = (topic.end_sum - old.end_sum) / seconds
        # The replicas of a broker that returned, or of a reassignment, were written long before.
        if not same_log_dirs or topic.sized_replicas != old.sized_replicas:
            continue
        # Retention makes a topic smaller: a negative growth is no rate.
        if topic.total_bytes is not None and old.total_bytes is not None:
            byte_rates[name] = max(topic.total_bytes - old.total_bytes, 0) / seconds
    return rates, byte_rates


def _list_log_dirs(sample: ClusterSample) -> set[tuple[int, str]]:
    """The log dirs whose replicas are in the sizes of topics."""
    return {
        (broker.id, folder.path) for broker in sample.brokers for folder in broker.log_dirs if not folder.error_code
    }


def _sum(values: object) -> int | None:
    total = 0
    for value in values:  # type: ignore[attr-defined]
        if value is None:
            return None
        total += value
    return total
