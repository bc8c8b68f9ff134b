"""Measures the lag of queries by the cluster's end offsets, and not by Spark's progress.

Spark reports a lag with every batch that ends. A query that fails, or hangs in a batch, ends none, and its lag is the
one that matters. So a thread looks up end offsets every few seconds, and reads the first unread record of each query's
partitions for its age.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from klamm.model.ids import TopicPartition

_log = logging.getLogger(__name__)
INTERVAL_S: Final = 5.0
_PARTITIONS_POLLED: Final = 8
"""For so many partitions of a query, those with the most unread records, the age is read."""
_POLL_TIMEOUT_S: Final = 3.0

ReadOffsets = Mapping[tuple[str, int], int]


class LagClient(Protocol):
    """The methods of a consumer that are used."""

    def end_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]:
        """Return end offsets."""

    def assign(self, partitions: Any) -> None:
        """Assign partitions."""

    def seek(self, partition: Any, offset: int) -> None:
        """Set a partition's position."""

    def poll(self, timeout_s: float, max_records: int) -> Any:
        """Return records."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The unread records of a query: how many, and the age of the oldest."""

    records: int
    age_ms: int | None


def unread_records(position: ReadOffsets, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the number of unread records by partition, the largest first."""
    unread = {}
    for (topic, part), offset in position.items():
        partition = TopicPartition(topic, part)
        if ends.get(partition, 0) > offset:
            unread[partition] = ends[partition] - offset
    return dict(sorted(unread.items(), key=operator.itemgetter(1), reverse=True))


def measure_lag(cluster: LagClient, positions: Mapping[str, ReadOffsets], now_ms: int) -> dict[str, Lag]:
    """Return the lag of each query."""
    partitions = {TopicPartition(*partition) for position in positions.values() for partition in position}
    if not partitions:
        return {}
    # One request per broker for all queries.
    ends = cluster.end_offsets(sorted(partitions))
    lags = {}
    for query, position in positions.items():
        if position:
            unread = unread_records(position, ends)
            oldest = _oldest_unread_ms(cluster, position, list(unread)[:_PARTITIONS_POLLED]) if unread else now_ms
            lags[query] = Lag(sum(unread.values()), None if oldest is None else max(now_ms - oldest, 0))
    return lags


def _oldest_unread_ms(cluster: LagClient, position: ReadOffsets, partitions: list[TopicPartition]) -> int | None:
    """Return the timestamp of the oldest first unread record; None when none arrives in time."""
    cluster.assign(partitions)
    for partition in partitions:
        cluster.seek(partition, position[partition.topic, partition.partition])
    pending, oldest = set(partitions), None
    deadline = time.monotonic() + _POLL_TIMEOUT_S
    while pending and time.monotonic() < deadline:
        for record in cluster.poll(0.2, len(partitions)):
            record_partition = TopicPartition(record.topic, record.partition)
            if record_partition in pending:
                pending.remove(record_partition)
                oldest = record.timestamp if oldest is None else min(oldest, record.timestamp)
        cluster.assign(sorted(pending))
        for partition in pending:
            # Assigning again dropped the positions.
            cluster.seek(partition, position[partition.topic, partition.partition])
    # Nothing is fetched between two measurements.
    cluster.assign([])
    return oldest


class LagWatch:
    """Measures lags periodically in a thread, so that an unreachable cluster does not block the runner."""

    def __init__(
        self,
        connect: Callable[[], LagClient],
        positions: Callable[[], Mapping[str, ReadOffsets]],
        every_s: float = INTERVAL_S,
    ) -> None:
        self._connect = connect
        self._positions = positions
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-lag", daemon=True)
        self.lags: Mapping[str, Lag] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # Bounded: a measurement may wait for a broker that does not answer, and the thread is a daemon.
        self._thread.join(2 * _POLL_TIMEOUT_S)

    def _run(self) -> None:
        cluster: LagClient | None = None
        while not self._closing.wait(self._every_s):
            try:
                # Connected once; the consumer reconnects by itself.
                cluster = cluster or self._connect()
                self.lags = measure_lag(cluster, self._positions(), time.time_ns() // 1_000_000)
            except Exception as error:  # noqa: BLE001 - the next measurement may succeed
                _log.debug("lag measurement failed: %s", error)
        if cluster is not None:
            cluster.close()
