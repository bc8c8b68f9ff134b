"""Reading records of partitions from an offset to an offset, or endlessly, without a group.

A reader over a `BlockingCluster`: it fetches from each leader in turn and yields the records in the order of each
partition. A leader that has moved is looked up again, and an outage is retried for as long as it may last. With
read_committed, records of aborted transactions are left out. Memory is bounded by one response per leader.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.cli.outage import Outage, passes
from klamm.cli.queries.offsets import LATEST, PartitionPair, list_offsets
from klamm.client.blocking_cluster import BlockingCluster, ClusterUnreachable
from klamm.client.partition_fetch import PartitionRecords, fetch_partitions
from klamm.client.types import Record, TopicPartition
from klamm.model.errors import ErrorCode, KlammError

_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the next metadata shows whether it is deleted or not created yet
    }
)
PATIENCE_S: Final = 10.0
"""How long a partition may be without a leader that answers."""


@dataclass(slots=True)
class Span:
    """What is left to read of a partition; without an `end` it is followed."""

    next: int
    end: int | None = None

    @property
    def done(self) -> bool:
        """Whether all was read."""
        return self.end is not None and self.next >= self.end


class PartitionReader:
    """Reads spans of partitions."""

    def __init__(
        self,
        cluster: BlockingCluster,
        spans: Mapping[PartitionPair, Span],
        *,
        committed: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self._cluster = cluster
        self.spans = dict(spans)
        self._committed = committed
        self._outage = outage or Outage(PATIENCE_S)
        self._leaders: dict[PartitionPair, int] = {}

    def poll(self, wait_ms: int = 500) -> list[Record]:
        """The next records of all partitions; empty when none arrived in time."""
        wanted = {place: span for place, span in self.spans.items() if not span.done}
        records: list[Record] = []
        by_leader = self._by_leader(wanted)
        for leader, places in by_leader.items():
            # With several leaders none may keep the others waiting.
            patience = wait_ms if len(by_leader) == 1 else min(wait_ms, 50)
            records += self._fetch(leader, places, 0 if records else patience)
        return records

    def read(self, wait_ms: int = 500) -> Generator[Record, None, None]:
        """All records of the spans, one by one."""
        while any(not span.done for span in self.spans.values()):
            yield from self.poll(wait_ms)

    @property
    def done(self) -> bool:
        """Whether every span was read."""
        return all(span.done for span in self.spans.values())

    def _by_leader(self, wanted: Mapping[PartitionPair, Span]) -> dict[int, list[PartitionPair]]:
        unknown = [place for place in wanted if place not in self._leaders]
        if unknown:
            try:
                self._find_leaders(unknown)
            except (ClusterUnreachable, KlammError) as error:
                if not passes(error) or is_missing_topic(error):
                    raise
                self._outage.go_on(unknown, error)
                return {}
        leaders: dict[int, list[PartitionPair]] = {}
        for place in wanted:
            if place in self._leaders:
                leaders.setdefault(self._leaders[place], []).append(place)
        leaderless = [place for place in wanted if place not in self._leaders]
        if leaderless:
            topic, partition = leaderless[0]
            missing = KlammError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
            self._outage.go_on(leaderless, missing)
        return leaders

    def _find_leaders(self, places: Sequence[PartitionPair]) -> None:
        from klamm.cli.queries.topics import find_topics

        topics = find_topics(self._cluster, sorted({topic for topic, _ in places}))
        self._cluster.refresh_brokers()  # one that was started again may listen elsewhere
        for topic in topics:
            for partition in topic.partitions:
                if partition.leader >= 0 and (topic.name, partition.partition) in places:
                    self._leaders[topic.name, partition.partition] = partition.leader

    def _fetch(self, leader: int, places: list[PartitionPair], wait_ms: int) -> list[Record]:
        offsets = {TopicPartition(*place): self.spans[place].next for place in places}
        records: list[Record] = []
        try:
            connection = self._cluster.broker(leader)
            for fetched in fetch_partitions(connection, offsets, wait_ms=wait_ms, committed=self._committed):
                records += self._take(fetched)
        except (ClusterUnreachable, KlammError) as error:
            if not passes(error):
                raise
            for place in places:
                # Looked up again with the next poll: the leader may have moved.
                self._leaders.pop(place, None)
            self._outage.go_on(places, error)
        return records

    def _take(self, fetched: PartitionRecords) -> list[Record]:
        partition, code = fetched.partition, fetched.error
        if code in _MOVED:
            self._leaders.pop(partition, None)
            self._outage.go_on([partition], KlammError(code, f"{partition}: {code.text}"))
            return []
        span = self.spans[partition]
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The head was deleted, or the log cut: go on where it begins now.
            begin = max(fetched.log_start_offset, 0)
            # A position beyond the end means a truncated or recreated log: nothing is left to read but what comes.
            span.next = begin if begin > span.next else _latest(self._cluster, partition)
            return []
        if code:
            raise KlammError(code, f"{partition} cannot be read: {code.text}")
        self._outage.end(partition)
        # Also when all records were filtered: markers and aborted records move the position too.
        span.next = fetched.next_offset
        # A batch may reach beyond the end of the span.
        end = span.end
        return fetched.records if end is None else [record for record in fetched.records if record.offset < end]


def is_missing_topic(error: Exception) -> bool:
    """Whether the error is a topic that does not exist, which no retry brings back."""
    return isinstance(error, KlammError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _latest(cluster: BlockingCluster, place: PartitionPair) -> int:
    return list_offsets(cluster, [place], LATEST).get(place, 0)
