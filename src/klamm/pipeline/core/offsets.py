"""Offset arithmetic of a read: positions as the checkpoint keeps them, ranges for tasks, limits per batch. Pure.

A position is written as the Kafka connector writes it, `{"orders": {"0": 23}}`, plus the topic ids under "#ids", which
is no valid topic name: a topic that was deleted and created again has the same name and other records. The end of a
first batch has its start under "#start".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.connector_options import LATEST, ReadBound

_IDS: Final = "#ids"
LOST: Final = "#lost"
"""The number of records that a query went on without, under "records", as text: numbers are offsets."""
_START: Final = "#start"
Offsets = Mapping[TopicPartition, int]


class Range(NamedTuple):
    """Offsets of one partition from `start` up to, not including, `end`; `topic_id` is empty when unknown."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """The number of offsets, gaps included."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has read."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)
    lost: int = 0
    """Records that were removed before they were read, since the query began: the count survives with the position."""
    start: Offsets | None = None
    """Where the first batch begins; in its own start and end only. Spark stores the end of a batch before it runs, and
    asks for the start of a first batch again when it is run again: `latest` is somewhere else by then."""

    def is_initial(self) -> bool:
        """Whether nothing was read yet."""
        return self.start == self.offsets

    def by_topic(self) -> dict[str, Any]:
        """Return the offsets by topic and partition, as the options startingOffsets and endingOffsets take them."""
        return _by_topic(self.offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark's offset log keeps."""
        encoded = self.by_topic()
        # Sorted, so that equal positions are equal text: Spark compares offsets as JSON strings.
        encoded[_IDS] = {name: self.ids[name] for name in sorted(self.ids)}
        if self.lost:
            encoded[LOST] = {"records": str(self.lost)}
        if self.start is not None:
            encoded[_START] = _by_topic(self.start)
        return encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Position:
        """Parse the form of the offset log; without ids (the Kafka connector's form) recreated topics go unnoticed."""
        offsets = _from_topics({name: parts for name, parts in encoded.items() if name not in (_IDS, LOST, _START)})
        lost = int(encoded.get(LOST, {}).get("records", 0))
        start = _from_topics(encoded[_START]) if _START in encoded else None
        return cls(offsets, dict(encoded.get(_IDS, {})), lost, start)

    def is_recreated(self, other: Position, topic: str) -> bool:
        """Whether a topic was deleted and created again between two positions."""
        own_id, other_id = self.ids.get(topic, ""), other.ids.get(topic, "")
        return bool(own_id and other_id and own_id != other_id)


def _by_topic(offsets: Offsets) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for partition in sorted(offsets):
        encoded.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return encoded


def _from_topics(encoded: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(index)): int(offset)
        for topic, parts in encoded.items()
        for index, offset in parts.items()
    }


def split_lookups(
    bound: ReadBound, partitions: Iterable[TopicPartition], what: str
) -> tuple[dict[TopicPartition, int], Offsets]:
    """Split a bound into known offsets, and lookups (a timestamp, EARLIEST or LATEST) for the brokers."""
    # Iterated three times below.
    partitions = list(partitions)
    if bound.everywhere is not None:
        offsets = dict.fromkeys(partitions, bound.everywhere)
    else:
        missing = [str(partition) for partition in partitions if partition not in bound.by_partition]
        extra = [str(partition) for partition in bound.by_partition if partition not in set(partitions)]
        if missing or extra:
            difference = (
                f"lacks {', '.join(missing[:5])}" if missing else f"names {', '.join(extra[:5])}, not being read"
            )
            raise ConfigError(f"{what} must name every partition that is read, and no other: it {difference}")
        offsets = {partition: bound.by_partition[partition] for partition in partitions}
    if bound.timed:
        return {}, offsets
    return (
        {partition: offset for partition, offset in offsets.items() if offset >= 0},
        {partition: offset for partition, offset in offsets.items() if offset < 0},
    )


def find_late_partitions(offsets: Offsets, what: str, *, latest: bool) -> list[TopicPartition]:
    """Return the partitions without a record at or after the timestamp; ConfigError unless they start at `latest`."""
    late = [partition for partition, offset in offsets.items() if offset == LATEST]
    if late and not latest:
        raise ConfigError(
            f"{what}: {late[0]} has no record at or after the timestamp; "
            "startingOffsetsByTimestampStrategy=latest starts at its end"
        )
    return late


def limit_end(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return end offsets at most about `limit` records after the start; each partition gets its proportional share.

    As in the Kafka connector, a partition with unread records advances by at least one, so that none starves.
    """
    sizes = {partition: end[partition] - start.get(partition, end[partition]) for partition in end}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= limit:
        return dict(end)
    limited = {}
    for partition, size in sizes.items():
        if size <= 0:
            limited[partition] = end[partition]
            continue
        # Proportional to what is unread, so that all partitions catch up at the same time.
        share = limit * size / total
        limited[partition] = min(
            start[partition] + (math.ceil(share) if share < 1 else math.floor(share)), end[partition]
        )
    return limited


def has_enough(start: Offsets, end: Offsets, min_records: int) -> bool:
    """Whether at least `min_records` are unread."""
    return sum(max(end[partition] - start.get(partition, end[partition]), 0) for partition in end) >= min_records


def plan_ranges(start: Position, end: Position, earliest: Offsets) -> tuple[list[Range], list[str]]:
    """Return the ranges from one position to another, and a sentence for each loss of records between them.

    A partition that the start does not have is new and read from its beginning; a recreated topic, too.
    """
    ranges: list[Range] = []
    losses: list[str] = []
    recreated: set[str] = set()
    for partition in sorted(end.offsets):
        stop = end.offsets[partition]
        first = earliest.get(partition, 0)
        begin = start.offsets.get(partition)
        if start.is_recreated(end, partition.topic):
            if partition.topic not in recreated:
                recreated.add(partition.topic)
                losses.append(f"topic {partition.topic} was deleted and recreated; its earlier records are lost")
            begin = first
        elif begin is None:
            if first > 0:
                losses.append(f"{partition} is new, but its records before offset {first} are lost")
            begin = first
        # Retention has removed records that were not read yet.
        elif begin < first:
            losses.append(f"{partition} was read up to {begin}, but its log start offset is {first}")
            begin = first
        # The log was truncated below the position: an unclean leader election, or the topic was emptied.
        elif begin > stop:
            losses.append(f"{partition} was read up to {begin}, but its end offset is {stop}")
            begin = stop
        if begin < stop:
            ranges.append(Range(partition.topic, partition.partition, begin, stop, end.ids.get(partition.topic, "")))
    losses.extend(f"{partition} was deleted" for partition in sorted(start.offsets) if partition not in end.offsets)
    return ranges, losses


def count_lost(start: Position, end: Position, earliest: Offsets) -> int:
    """Return how many offsets from one position to another were removed; those of a recreated topic are not known."""
    lost = 0
    for partition, stop in end.offsets.items():
        begin = start.offsets.get(partition)
        if begin is not None and not start.is_recreated(end, partition.topic):
            # A limited batch may end before the first record that is left.
            lost += max(min(earliest.get(partition, 0), stop) - begin, 0)
    return lost


def split_ranges(ranges: Iterable[Range], pieces: int | None, max_rows: int | None) -> list[Range]:
    """Split ranges for tasks: about `pieces` or more in all, each at most `max_rows`; by default one per partition."""
    ranges = [range_ for range_ in ranges if range_.size > 0]
    if max_rows is not None:
        ranges = [piece for range_ in ranges for piece in _cut(range_, math.ceil(range_.size / max_rows))]
    if pieces is None or pieces <= len(ranges):
        return ranges
    total = sum(range_.size for range_ in ranges)
    return [piece for range_ in ranges for piece in _cut(range_, max(round(range_.size / total * pieces), 1))]


def group_ranges(ranges: Iterable[Range], rows: int) -> list[list[Range]]:
    """Group neighbouring ranges until a task has `rows`: starting a task costs more than reading a few rows."""
    groups: list[list[Range]] = []
    size = rows
    for range_ in ranges:
        if size >= rows:
            groups.append([])
            size = 0
        groups[-1].append(range_)
        size += range_.size
    return groups


def _cut(range_: Range, parts: int) -> list[Range]:
    parts = min(parts, range_.size)
    # Integer division spreads the remainder, so that pieces differ by one at most.
    edges = [range_.start + range_.size * index // parts for index in range(parts + 1)]
    return [range_._replace(start=a, end=b) for a, b in itertools.pairwise(edges)]
