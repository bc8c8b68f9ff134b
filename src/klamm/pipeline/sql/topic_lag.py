"""How far queries are behind their topics now, asked of the cluster and not of Spark.

Spark tells a lag with every batch that ends. A query that fails, or is stuck in a batch, ends none, and it is the one
whose lag is looked at. So a thread asks for the topics' ends every few seconds, and reads the oldest unread record
of each query to tell its age.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from klamm.model.ids import TopicPartition
from klamm.telemetry.log import get_logger

_log = get_logger("pipeline")
EVERY_S: Final = 5.0
_LOOKED_AT: Final = 8
"""At how many partitions of a query the age is looked up: those with the most to read."""
_PATIENCE_S: Final = 3.0

ReadOffsets = Mapping[tuple[str, int], int]


class Cluster(Protocol):
    """The part of a consumer that is needed."""

    def end_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]:
        """Where topics end."""

    def assign(self, partitions: Any) -> None:
        """Choose what is polled."""

    def seek(self, partition: Any, offset: int) -> None:
        """Choose where."""

    def poll(self, timeout_s: float, max_records: int) -> Any:
        """Read."""

    def close(self) -> None:
        """Leave."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What a query has not read yet: how much, and how old it is."""

    records: int
    age_ms: int | None


def unread_records(position: ReadOffsets, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """How many records of which partitions are unread, those with the most first."""
    found = {}
    for (topic, part), offset in position.items():
        where = TopicPartition(topic, part)
        if ends.get(where, 0) > offset:
            found[where] = ends[where] - offset
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def measure_lag(cluster: Cluster, positions: Mapping[str, ReadOffsets], now_ms: int) -> dict[str, Lag]:
    """The lag of each query."""
    places = {TopicPartition(*where) for position in positions.values() for where in position}
    if not places:
        return {}
    ends = cluster.end_offsets(sorted(places))
    found = {}
    for query, position in positions.items():
        if position:
            unread = unread_records(position, ends)
            oldest = _oldest(cluster, position, list(unread)[:_LOOKED_AT]) if unread else now_ms
            found[query] = Lag(sum(unread.values()), None if oldest is None else max(now_ms - oldest, 0))
    return found


def _oldest(cluster: Cluster, position: ReadOffsets, places: list[TopicPartition]) -> int | None:
    """The time of the oldest first unread record; None when none of them is read in time."""
    cluster.assign(places)
    for place in places:
        cluster.seek(place, position[place.topic, place.partition])
    waiting, oldest = set(places), None
    deadline = time.monotonic() + _PATIENCE_S
    while waiting and time.monotonic() < deadline:
        for record in cluster.poll(0.2, len(places)):
            where = TopicPartition(record.topic, record.partition)
            if where in waiting:
                waiting.remove(where)
                oldest = record.timestamp if oldest is None else min(oldest, record.timestamp)
        cluster.assign(sorted(waiting))
        for each in waiting:
            cluster.seek(each, position[each.topic, each.partition])
    cluster.assign([])
    return oldest


class LagWatch:
    """Measures again and again in a thread of its own, so that a cluster that is away holds nobody up."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        positions: Callable[[], Mapping[str, ReadOffsets]],
        every_s: float = EVERY_S,
    ) -> None:
        self._connect = connect
        self._positions = positions
        self._every_s = every_s
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lags", daemon=True)
        self.found: Mapping[str, Lag] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join(2 * _PATIENCE_S)

    def _run(self) -> None:
        cluster: Cluster | None = None
        while not self._leaving.wait(self._every_s):
            try:
                cluster = cluster or self._connect()
                self.found = measure_lag(cluster, self._positions(), time.time_ns() // 1_000_000)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
                _log.debug("lags are unknown", reason=str(error))
        if cluster is not None:
            cluster.close()
