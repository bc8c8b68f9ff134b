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
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass(frozen=True)
class Lag:
    """The unread records of a query: how many, and the age of the oldest."""

    records: int
    age_ms: int | None
    partition_records: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of every partition it reads, those without unread records too: a series of 0 does not look like a missing one."""
    partition_ages_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the partitions with the most unread records, as far as their first unread records arrived in time."""

    # Kept: the status is published more often than lags are measured.
    @cached_property
    def status(self) -> dict[str, Any]:
        """What is published of it, with partitions by topic in their order."""
        return {
            "lag_records": self.records,
            "lag_ms": self.age_ms,
            "partition_lag_records": _by_topic(self.partition_records),
            "partition_lag_ms": _by_topic(self.partition_ages_ms),
        }


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return numbers by topic, then by partition in their order; as text, as the keys are in the file."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(numbers):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = numbers[partition]
    return topics


def unread_records(position: ReadOffsets, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the number of unread records by partition, the largest first."""
    unread = {}
    for (topic, part), offset in position.items():
        partition = TopicPartition(topic, part)
        # Not known while its leader does not answer.
        if partition in ends:
            # An end before the position: the topic was created anew, or truncated.
            unread[partition] = max(ends[partition] - offset, 0)
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
            behind = [partition for partition, records in unread.items() if records]
            ages_ms = _unread_ages_ms(cluster, position, behind[:_PARTITIONS_POLLED], now_ms) if behind else {}
            # Nothing unread has no age; unread records of which none arrived in time have one that is not known.
            age_ms = max(ages_ms.values(), default=None) if behind else 0
            lags[query] = Lag(sum(unread.values()), age_ms, unread, ages_ms)
    return lags


def _unread_ages_ms(
    cluster: LagClient, position: ReadOffsets, partitions: list[TopicPartition], now_ms: int
) -> dict[TopicPartition, int]:
    """Return the ages of first unread records; without those that do not arrive in time."""
    cluster.assign(partitions)
    for partition in partitions:
        cluster.seek(partition, position[partition.topic, partition.partition])
    pending, ages_ms = set(partitions), {}
    deadline = time.monotonic() + _POLL_TIMEOUT_S
    while pending and time.monotonic() < deadline:
        for record in cluster.poll(0.2, len(partitions)):
            record_partition = TopicPartition(record.topic, record.partition)
            if record_partition in pending:
                pending.remove(record_partition)
                ages_ms[record_partition] = max(now_ms - record.timestamp, 0)
        cluster.assign(sorted(pending))
        for partition in pending:
            # Assigning again dropped the positions.
            cluster.seek(partition, position[partition.topic, partition.partition])
    # Nothing is fetched between two measurements.
    cluster.assign([])
    return ages_ms


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
