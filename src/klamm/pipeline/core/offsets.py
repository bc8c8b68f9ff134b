"""Which offsets a read covers: positions as the checkpoint keeps them, ranges for tasks, limits per batch. Pure.

A position is written as the Kafka connector writes it, `{"orders": {"0": 23}}`, and beside it, under "#ids" (no topic
can be called so), the id of each topic: one that was deleted and created anew has the same name and other records.
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
Offsets = Mapping[TopicPartition, int]


class Range(NamedTuple):
    """The records of one partition from `start` up to, without, `end`; `topic_id` is empty where none is known."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """How many offsets; gaps count."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has read."""

    offsets: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset log keeps it."""
        found: dict[str, Any] = {}
        for where in sorted(self.offsets):
            found.setdefault(where.topic, {})[str(where.partition)] = self.offsets[where]
        found[_IDS] = {name: self.ids[name] for name in sorted(self.ids)}
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Position:
        """Read back; without ids (the connector's own form) re-created topics are not noticed."""
        offsets = {
            TopicPartition(topic, int(index)): int(offset)
            for topic, parts in found.items()
            if topic != _IDS
            for index, offset in parts.items()
        }
        return cls(offsets, dict(found.get(_IDS, {})))

    def is_recreated(self, other: Position, topic: str) -> bool:
        """Whether a topic is not the one it was."""
        mine, theirs = self.ids.get(topic, ""), other.ids.get(topic, "")
        return bool(mine and theirs and mine != theirs)


def split_lookups(
    moment: ReadBound, places: Iterable[TopicPartition], what: str
) -> tuple[dict[TopicPartition, int], Offsets]:
    """What is known of a moment already, and what brokers must be asked (a time, EARLIEST or LATEST) by partition."""
    places = list(places)
    if moment.everywhere is not None:
        wanted = dict.fromkeys(places, moment.everywhere)
    else:
        missing = [str(place) for place in places if place not in moment.places]
        extra = [str(place) for place in moment.places if place not in set(places)]
        if missing or extra:
            words = f"lacks {', '.join(missing[:5])}" if missing else f"names {', '.join(extra[:5])}, not being read"
            raise ConfigError(f"{what} must name every partition that is read, and no other: it {words}")
        wanted = {place: moment.places[place] for place in places}
    if moment.timed:
        return {}, wanted
    return (
        {where: each for where, each in wanted.items() if each >= 0},
        {where: each for where, each in wanted.items() if each < 0},
    )


def find_late_partitions(found: Offsets, what: str, *, latest: bool) -> list[TopicPartition]:
    """The partitions that have nothing as young as was asked: to be read from their end, or refused."""
    late = [where for where, offset in found.items() if offset == LATEST]
    if late and not latest:
        raise ConfigError(
            f"{what}: {late[0]} has no record that young; startingOffsetsByTimestampStrategy=latest begins at the end"
        )
    return late


def limit_end(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """An end at most about `limit` records after the start: each partition gets its share, and at least one record.

    As in the Kafka connector, a partition with something to read always moves, so that none starves.
    """
    sizes = {where: end[where] - start.get(where, end[where]) for where in end}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= limit:
        return dict(end)
    found = {}
    for where, size in sizes.items():
        if size <= 0:
            found[where] = end[where]
            continue
        share = limit * size / total
        found[where] = min(start[where] + (math.ceil(share) if share < 1 else math.floor(share)), end[where])
    return found


def has_enough(start: Offsets, end: Offsets, least: int) -> bool:
    """Whether a batch of `least` records is there."""
    return sum(max(end[where] - start.get(where, end[where]), 0) for where in end) >= least


def plan_ranges(start: Position, end: Position, earliest: Offsets) -> tuple[list[Range], list[str]]:
    """The ranges from one position to another, and, in words, what is lost on the way.

    A partition the start does not know is new and read from its beginning; a topic that was created anew too.
    """
    ranges: list[Range] = []
    lost: list[str] = []
    told: set[str] = set()
    for where in sorted(end.offsets):
        upto = end.offsets[where]
        first = earliest.get(where, 0)
        begin = start.offsets.get(where)
        if start.is_recreated(end, where.topic):
            if where.topic not in told:
                told.add(where.topic)
                lost.append(f"topic {where.topic} was deleted and created anew; what it held before is gone")
            begin = first
        elif begin is None:
            if first > 0:
                lost.append(f"{where} is new, but its records before offset {first} are gone")
            begin = first
        elif begin < first:
            lost.append(f"{where} was read up to {begin}, but begins at {first} by now")
            begin = first
        elif begin > upto:
            lost.append(f"{where} was read up to {begin}, but ends at {upto} by now")
            begin = upto
        if begin < upto:
            ranges.append(Range(where.topic, where.partition, begin, upto, end.ids.get(where.topic, "")))
    lost.extend(f"{where} is gone" for where in sorted(start.offsets) if where not in end.offsets)
    return ranges, lost


def split_ranges(ranges: Iterable[Range], pieces: int | None, max_rows: int | None) -> list[Range]:
    """Ranges for tasks: at least about `pieces` in all, each at most `max_rows`; without either, one per partition."""
    ranges = [range_ for range_ in ranges if range_.size > 0]
    if max_rows is not None:
        ranges = [piece for range_ in ranges for piece in _cut(range_, math.ceil(range_.size / max_rows))]
    if pieces is None or pieces <= len(ranges):
        return ranges
    total = sum(range_.size for range_ in ranges)
    return [piece for range_ in ranges for piece in _cut(range_, max(round(range_.size / total * pieces), 1))]


def group_ranges(ranges: Iterable[Range], rows: int) -> list[list[Range]]:
    """Neighbours that one task reads one after the other, until it has `rows`: a task costs more than a few rows."""
    found: list[list[Range]] = []
    size = rows
    for range_ in ranges:
        if size >= rows:
            found.append([])
            size = 0
        found[-1].append(range_)
        size += range_.size
    return found


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = min(parts, whole.size)
    edges = [whole.start + whole.size * index // parts for index in range(parts + 1)]
    return [whole._replace(start=a, end=b) for a, b in itertools.pairwise(edges)]
