"""Fetch, v4-18: read record batches from an offset on, waiting a while when there is too little.

Partitions are read in request order until max_bytes; the first one always gives its first batch, however large. Batches
are whole, and the first contains the offset asked for. A reader sees nothing beyond the high watermark, with
read_committed nothing beyond the last stable offset. Record bytes go from the file to the socket.
A consumer may read from a follower (v11 on); a leader sends one that names its rack to a replica there (KIP-392).
What followers themselves ask is answered in `fetch_follower`.
v7 sessions (KIP-227) · v9 leader epochs · v10 zstd · v11 racks · v12 flexible, diverging epochs · v13 topic ids
v16 leader hints
"""

from dataclasses import dataclass, field
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID, Uuid
from klamm.model.replica_selectors import RACK_AWARE
from klamm.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from klamm.replication import FetchWaiter, Replica
from klamm.replication.selector import nearest_replica
from klamm.replication.sessions import FetchContext, FetchedPartition, PartitionKey
from klamm.server.context import ANSWERED, RequestContext
from klamm.server.handlers import fetch_follower
from klamm.server.handlers.leaders import node_endpoints, partition_image
from klamm.server.replies import RecordRegion, response_parts
from klamm.server.services import Services

READ_COMMITTED = 1
SELECTOR = "replica.selector.class"
ZSTD_SINCE = 10
FOLLOWERS_SINCE = 11
_HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Answers that say who leads instead."""


@dataclass(slots=True)
class Reading:
    """The outcome of looking at every partition once."""

    results: list[tuple[FetchedPartition, PartitionData]] = field(default_factory=list)
    bytes: int = 0
    answer_now: bool = False


def handle(services: Services, context: RequestContext, request: FetchRequest) -> object:
    """Read now; wait only when nothing is wrong and there is less than the client wants."""
    uses_ids = context.version >= 13
    follower, replica_epoch = fetch_follower.follower_of(context.version, request)
    if follower >= 0:
        if not uses_ids or follower not in services.image.cluster.brokers:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        return fetch_follower.handle(services, context, request, follower, replica_epoch)
    try:
        fetch = services.sessions.resolve(
            request.session_id,
            request.session_epoch,
            _asked(request, uses_ids),
            _forgotten(request, uses_ids),
            uses_topic_ids=uses_ids,
            privileged=False,
            now_ms=services.clock.monotonic_ms(),
        )
    except KlammError as error:
        return FetchResponse(error_code=error.code)
    reader = _Reader(services, context, request, fetch)
    reading = reader.read()
    if request.max_wait_ms <= 0 or reading.answer_now or reading.bytes >= request.min_bytes or not fetch.partitions:
        return reader.response(reading)
    slot = context.channel.defer()

    def attempt(force: bool) -> bool:
        again = reader.read()
        if not (force or again.answer_now or again.bytes >= request.min_bytes):
            return False
        context.connection.waiters.pop(waiter, None)
        slot.send(response_parts(context, reader.response(again)))
        return True

    replicas = [r for r in map(reader.replica, fetch.partitions) if r is not None]
    waiter = FetchWaiter(attempt, replicas)
    context.connection.waiters[waiter] = None
    waiter.start(services.loop, request.max_wait_ms)
    return ANSWERED


def _asked(request: FetchRequest, uses_ids: bool) -> list[FetchedPartition]:
    return [
        FetchedPartition(
            None if uses_ids else topic.topic,
            topic.topic_id if uses_ids else ZERO_UUID,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
            partition.log_start_offset,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _forgotten(request: FetchRequest, uses_ids: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if uses_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


class _Reader:
    """One Fetch request against the replicas as they are when it looks."""

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest, fetch: FetchContext) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._fetch = fetch
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._selects = bool(request.rack_id) and services.config.text(SELECTOR) == RACK_AWARE

    def replica(self, asked: FetchedPartition) -> Replica | None:
        """The local replica of a partition, if there is one."""
        if asked.topic is not None:
            return self._services.replicas.find(asked.topic, asked.index)
        return self._services.replicas.find_by_id(asked.topic_id, asked.index)

    def read(self) -> Reading:
        """Look at every partition once, in order."""
        reading = Reading()
        budget = min(self._request.max_bytes, self._services.config.fetch_max_bytes)
        for asked in self._fetch.partitions:
            data = PartitionData(partition_index=asked.index, aborted_transactions=None, records=b"")
            reading.results.append((asked, data))
            try:
                self._read_one(asked, data, budget - reading.bytes, reading)
            except KlammError as error:
                data.error_code = error.code
                data.high_watermark = -1
                reading.answer_now = True
        return reading

    def _read_one(self, asked: FetchedPartition, data: PartitionData, budget: int, reading: Reading) -> None:
        replica = self._readable(asked)
        log = replica.log
        if self._context.version < ZSTD_SINCE and log.config.compression_type == "zstd":
            raise KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if asked.last_fetched_epoch >= 0:
            epoch, end_offset = replica.end_offset_for_epoch(asked.last_fetched_epoch)
            if epoch < 0:
                raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                reading.answer_now = True
                return
        upper = log.last_stable_offset if self._committed_only else log.high_watermark
        if self._committed_only:
            data.aborted_transactions = []
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            # A follower may lack what the leader has: only the leader may say that an offset does not exist.
            raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE if replica.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._selects and replica.leads:
            data.preferred_read_replica = self._nearer(replica, asked.fetch_offset)
            if data.preferred_read_replica >= 0:
                reading.answer_now = True
                return
        # Only the first partition with data may exceed the limits, so that a large batch cannot stop a reader.
        first = reading.bytes == 0
        limit = min(asked.max_bytes, budget)
        if asked.fetch_offset >= upper or (limit <= 0 and not first):
            return
        found = log.read(asked.fetch_offset, max(limit, 0), upper, min_one=first)
        if found is None:
            return
        data.records = RecordRegion(found)
        reading.bytes += found.length
        if self._committed_only:
            aborted = log.aborted_transactions(asked.fetch_offset, found.next_offset)
            data.aborted_transactions = [
                AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in aborted
            ]

    def _nearer(self, replica: Replica, offset: int) -> int:
        """A replica in the consumer's rack that has what it asks for; -1 to read here."""
        found = nearest_replica(self._services.image.cluster, replica, self._request.rack_id, offset)
        return -1 if found == self._services.node_id else found

    def _readable(self, asked: FetchedPartition) -> Replica:
        replica = self.replica(asked)
        follows = replica is not None and not replica.state.is_leader and not replica.retired
        if replica is None or not (replica.leads or (follows and self._context.version >= FOLLOWERS_SINCE)):
            raise KlammError(self._absence(asked))
        if asked.topic is None:
            asked.known_as = replica.topic
        error = replica.state.check_leader_epoch(asked.current_leader_epoch)
        if error:
            raise KlammError(error)
        return replica

    def _absence(self, asked: FetchedPartition) -> ErrorCode:
        """Why a partition cannot be read here.

        A session that knew a topic's id is told when another topic has its name now, or none (KIP-516).
        """
        topics = self._services.image.topics
        topic = topics.by_name.get(asked.topic) if asked.topic is not None else topics.by_id.get(Uuid(asked.topic_id))
        if topic is not None:
            asked.known_as = topic.name
            if asked.index in topic.partitions:
                return self._services.replicas.absence(topic.id, asked.index)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if asked.topic is None and asked.known_as is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if asked.topic is None and asked.known_as in topics.by_name:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def response(self, reading: Reading) -> FetchResponse:
        """The answer; within a session only what changed, and partitions that gave data go to the end of the line."""
        session = self._fetch.session
        topics: dict[Any, FetchableTopicResponse] = {}
        leaders: set[int] = set()
        served: list[PartitionKey] = []
        for asked, data in reading.results:
            if self._fetch.incremental and not _news(asked, data):
                continue
            asked.told_high_watermark = data.high_watermark if not data.error_code else -1
            asked.told_log_start_offset = data.log_start_offset
            if len(data.records):
                served.append(asked.key)
            if data.error_code in _HINTED:
                image = partition_image(self._services, asked.topic, asked.topic_id, asked.index)
                if image is not None:
                    leaders.add(image.leader)
                    data.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)
            key = asked.topic if asked.topic is not None else asked.topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=asked.topic or "", topic_id=asked.topic_id)
            topic.partitions.append(data)
        if session is not None:
            session.rotate(served)
        endpoints = node_endpoints(self._services, self._context, leaders, NodeEndpoint)
        return FetchResponse(
            session_id=self._fetch.session_id, responses=list(topics.values()), node_endpoints=endpoints
        )


def _news(asked: FetchedPartition, data: PartitionData) -> bool:
    """Whether a partition must be named in an incremental answer."""
    return (
        bool(len(data.records))
        or data.error_code != 0
        or data.diverging_epoch is not None
        or data.preferred_read_replica >= 0
        or data.high_watermark != asked.told_high_watermark
        or data.log_start_offset != asked.told_log_start_offset
    )
