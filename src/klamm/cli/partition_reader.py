"""Reading records of partitions from an offset to an offset, or endlessly, without a group.

A reader over a `BlockingCluster`: it fetches from each leader in turn and yields the records in the order of each
partition. A leader that has moved is looked up again, and a cluster that does not answer is waited for. With
read_committed, records of aborted transactions are left out. Memory is bounded by one response per leader.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.cli.outage import Outage, passes
from klamm.cli.queries.offsets import LATEST, Place, list_offsets
from klamm.client.blocking_cluster import BlockingCluster, ClusterUnreachable
from klamm.client.types import Record
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.records import BatchView, iter_batches

FETCH_VERSION: Final = 12
"""The newest that names topics."""
PARTITION_BYTES: Final = 1 << 20
ANSWER_BYTES: Final = 16 << 20
READ_COMMITTED: Final = 1
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the metadata says whether it is deleted or not there yet
    }
)
PATIENCE_S: Final = 10.0
"""How long a partition may be without a leader that answers."""


@dataclass(slots=True)
class Span:
    """What is left to read of a partition; `end` None goes on for ever."""

    next: int
    end: int | None = None

    @property
    def done(self) -> bool:
        """Whether all was read."""
        return self.end is not None and self.next >= self.end


class PartitionReader:
    """Reads spans of partitions."""

    def __init__(
        self, cluster: BlockingCluster, spans: Mapping[Place, Span], *, isolation: int = 0, outage: Outage | None = None
    ) -> None:
        self._cluster = cluster
        self.spans = dict(spans)
        self._isolation = isolation
        self._outage = outage or Outage(PATIENCE_S)
        self._leaders: dict[Place, int] = {}

    def poll(self, wait_ms: int = 500) -> list[Record]:
        """What came next of all partitions; empty when nothing came in time."""
        wanted = {place: span for place, span in self.spans.items() if not span.done}
        records: list[Record] = []
        by_leader = self._by_leader(wanted)
        for leader, places in by_leader.items():
            # With several leaders none may keep the others waiting.
            patience = wait_ms if len(by_leader) == 1 else min(wait_ms, 50)
            records += self._ask(leader, places, 0 if records else patience)
        return records

    def read(self, wait_ms: int = 500) -> Generator[Record, None, None]:
        """All records of the spans, one by one."""
        while any(not span.done for span in self.spans.values()):
            yield from self.poll(wait_ms)

    @property
    def done(self) -> bool:
        """Whether every span was read."""
        return all(span.done for span in self.spans.values())

    def _by_leader(self, wanted: Mapping[Place, Span]) -> dict[int, list[Place]]:
        unknown = [place for place in wanted if place not in self._leaders]
        if unknown:
            try:
                self._find_leaders(unknown)
            except (ClusterUnreachable, KlammError) as error:
                if not passes(error) or is_missing_topic(error):
                    raise
                self._outage.go_on(unknown, error)
                return {}
        leaders: dict[int, list[Place]] = {}
        for place in wanted:
            if place in self._leaders:
                leaders.setdefault(self._leaders[place], []).append(place)
        leaderless = [place for place in wanted if place not in self._leaders]
        if leaderless:
            topic, partition = leaderless[0]
            said = f"{topic}-{partition} has no leader"
            self._outage.go_on(leaderless, KlammError(ErrorCode.LEADER_NOT_AVAILABLE, said))
        return leaders

    def _find_leaders(self, places: Sequence[Place]) -> None:
        from klamm.cli.queries.topics import find_topics

        topics = find_topics(self._cluster, sorted({topic for topic, _ in places}))
        self._cluster.refresh_brokers()  # one that was started again may listen elsewhere
        for topic in topics:
            for partition in topic.partitions:
                if partition.leader >= 0 and (topic.name, partition.partition) in places:
                    self._leaders[topic.name, partition.partition] = partition.leader

    def _ask(self, leader: int, places: list[Place], wait_ms: int) -> list[Record]:
        topics: dict[str, FetchTopic] = {}
        for topic, partition in places:
            asked = FetchPartition(
                partition=partition, fetch_offset=self.spans[topic, partition].next, partition_max_bytes=PARTITION_BYTES
            )
            topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(asked)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=ANSWER_BYTES,
            isolation_level=self._isolation,
            topics=list(topics.values()),
        )
        records: list[Record] = []
        try:
            answer = self._cluster.broker(leader).ask(request, FETCH_VERSION)
            for fetched in answer.responses:
                for part in fetched.partitions:
                    records += self._take((fetched.topic, part.partition_index), part)
        except (ClusterUnreachable, KlammError) as error:
            if not passes(error):
                raise
            for place in places:
                self._leaders.pop(place, None)
            self._outage.go_on(places, error)
        return records

    def _take(self, place: Place, part: Any) -> list[Record]:
        code = ErrorCode(part.error_code)
        if code in _MOVED:
            self._leaders.pop(place, None)
            self._outage.go_on([place], KlammError(code, f"{place[0]}-{place[1]}: {code.text}"))
            return []
        span = self.spans[place]
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The head was deleted, or the log cut: go on where it begins now.
            begin = max(part.log_start_offset, 0)
            span.next = begin if begin > span.next else _latest(self._cluster, place)
            return []
        if code:
            raise KlammError(code, f"{place[0]}-{place[1]} cannot be read: {code.text}")
        self._outage.end(place)
        if not part.records:
            return []
        return _records(place, span, part, committed=self._isolation == READ_COMMITTED)


def is_missing_topic(error: Exception) -> bool:
    """Whether the cluster says that there is no such topic, which no waiting brings back."""
    return isinstance(error, KlammError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _latest(cluster: BlockingCluster, place: Place) -> int:
    return list_offsets(cluster, [place], LATEST).get(place, 0)


def _records(place: Place, span: Span, part: Any, *, committed: bool) -> list[Record]:
    aborted: dict[int, list[int]] = {}
    if committed:
        for transaction in part.aborted_transactions or ():
            aborted.setdefault(transaction.producer_id, []).append(transaction.first_offset)
        for offsets in aborted.values():
            offsets.sort()
    records: list[Record] = []
    ends: set[int] = set()
    for batch in iter_batches(part.records, allow_incomplete_tail=True):
        if _skipped(batch, aborted, ends):
            span.next = max(span.next, batch.next_offset)
            continue
        kind = 1 if batch.is_log_append_time else 0
        for row in batch.decode():
            if row.offset < span.next or (span.end is not None and row.offset >= span.end):
                continue
            records.append(Record(*place, row.offset, row.timestamp, row.key, row.value, row.headers, kind))
        span.next = max(span.next, batch.next_offset)
    return records


def _skipped(batch: BatchView, aborted: dict[int, list[int]], ends: set[int]) -> bool:
    """Whether a batch holds nothing for a reader: a marker, or records of an aborted transaction."""
    producer = batch.producer_id
    if batch.is_control:
        ends.discard(producer)
        return True
    if not batch.is_transactional or producer not in aborted:
        return False
    begun = aborted[producer]
    while begun and begun[0] <= batch.last_offset:
        begun.pop(0)
        ends.add(producer)
    return producer in ends
