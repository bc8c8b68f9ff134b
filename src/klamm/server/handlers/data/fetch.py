"""Fetch, v4-18: read record batches from an offset on, waiting up to max_wait_ms for min_bytes.

Partitions are read in request order until max_bytes; the first one always returns its first batch, however large.
Batches are whole, and the first contains the fetch offset. Nothing beyond the high watermark is returned, with
read_committed nothing beyond the last stable offset. Record bytes go from the file to the socket.
A consumer may read from a follower (v11 on); a leader sends one that names its rack to a replica there (KIP-392).
Requests of followers are answered in `fetch_follower`.
v7 sessions (KIP-227) · v9 leader epochs · v10 zstd · v11 racks · v12 flexible, diverging epochs · v13 topic ids
v16 leader hints
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID, Uuid
from klamm.model.replica_selectors import RACK_AWARE
from klamm.net import Slot
from klamm.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from klamm.replication import DelayedFetch, Replica
from klamm.replication.fetch_sessions import FetchContext, FetchedPartition, PartitionKey
from klamm.replication.selector import nearest_replica
from klamm.server.handlers.data import fetch_follower
from klamm.server.handlers.data.leader_hints import node_endpoints, partition_image
from klamm.server.requests.access.checks import cluster_denied, topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.failures import log_request_failed
from klamm.server.requests.replies import RecordRegion, response_parts, response_parts_in_slices
from klamm.server.requests.slices import SLICE_ELEMENTS, SliceSteps, cut, run_in_slices
from klamm.server.services import Services

READ_COMMITTED = 1
SELECTOR = "replica.selector.class"
ZSTD_SINCE = 10
FOLLOWERS_SINCE = 11
RESPONSE_BYTES = 20
PARTITION_BYTES = 60
"""The approximate size of a response without records, and of a partition with its topic: the quota is checked before
the response is encoded."""
_HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors whose responses name the leader (KIP-951)."""


@dataclass(slots=True)
class Reading:
    """The result of reading every partition once."""

    results: list[tuple[FetchedPartition, PartitionData]] = field(default_factory=list)
    bytes: int = 0
    complete_now: bool = False


def handle(services: Services, context: RequestContext, request: FetchRequest) -> object:
    """Read now; wait only if there is no error and fewer bytes than the client requests."""
    uses_ids = context.version >= 13
    follower, replica_epoch = fetch_follower.follower_of(context.version, request)
    if follower >= 0:
        context.meter = None  # quotas are for clients: replication has a throttle of its own
        if cluster_denied(services, context, AclOperation.CLUSTER_ACTION):
            return fetch_follower.deny_replica(request)
        # Followers of this cluster use topic ids; an unknown replica id must not move a high watermark.
        if not uses_ids or follower not in services.image.cluster.brokers:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        return fetch_follower.handle(services, context, request, follower, replica_epoch)
    count = sum(len(topic.partitions) for topic in request.topics)
    if count > SLICE_ELEMENTS:
        return _handle_many(services, context, request, uses_ids)
    partitions: list[FetchedPartition] = []
    for topic in request.topics:
        partitions += _fetched_partitions(topic, topic.partitions, uses_ids)
    return _respond(services, context, request, partitions, uses_ids)


def _handle_many(
    services: Services, context: RequestContext, request: FetchRequest, uses_ids: bool
) -> SliceSteps[object]:
    """As `handle`, for a request that names many partitions."""
    partitions: list[FetchedPartition] = []
    for topic in request.topics:
        for named in cut(topic.partitions):
            partitions += _fetched_partitions(topic, named, uses_ids)
            yield len(named)
        yield 1
    result = _respond(services, context, request, partitions, uses_ids)
    return (yield from result) if isinstance(result, GeneratorType) else result


def _respond(
    services: Services,
    context: RequestContext,
    request: FetchRequest,
    partitions: list[FetchedPartition],
    uses_ids: bool,
) -> object:
    try:
        fetch = services.sessions.resolve(
            request.session_id,
            request.session_epoch,
            partitions,
            _forgotten(request, uses_ids),
            uses_topic_ids=uses_ids,
            privileged=False,
            now_ms=services.clock.monotonic_ms(),
        )
    except KlammError as error:
        return FetchResponse(error_code=error.code)
    reader = _FetchReader(services, context, request, fetch)
    if len(fetch.partitions) > SLICE_ELEMENTS:
        return _read_many(services, context, request, reader)
    reading = reader.read()
    if reader.suffices(reading):
        return reader.response(reading)
    # Later requests of the connection are handled, but their replies wait for this one.
    slot = context.channel.defer()

    def attempt(force: bool) -> bool:
        again = reader.read()
        if not (force or reader.suffices(again)):
            return False
        # Registered with the connection: when it closes, the delayed_fetch must leave the replicas.
        context.connection.delayed.pop(delayed_fetch, None)
        slot.send(response_parts(context, reader.response(again)))
        return True

    delayed_fetch = DelayedFetch(attempt, reader.replicas())
    context.connection.delayed[delayed_fetch] = None
    delayed_fetch.start(services.loop, request.max_wait_ms)
    return ANSWERED


def _read_many(
    services: Services, context: RequestContext, request: FetchRequest, reader: "_FetchReader"
) -> SliceSteps[object]:
    """Read many partitions in slices; with too few bytes, wait and read them in slices again."""
    delayed = _DelayedLargeFetch(services, context, reader)
    delayed.listen(request.max_wait_ms)  # from the first slice on: records may come to it while the last slice is read
    reading = yield from reader.read_in_slices()
    if reader.suffices(reading):
        delayed.cancel()
        return (yield from reader.respond_in_slices(reading))
    delayed.wait()
    return ANSWERED


class _DelayedLargeFetch:
    """A Fetch of many partitions that waits: reading them takes several turns, and one reading runs at a time."""

    def __init__(self, services: Services, context: RequestContext, reader: "_FetchReader") -> None:
        self._services = services
        self._context = context
        self._reader = reader
        self._slot: Slot | None = None
        self._delayed_fetch = DelayedFetch(self._attempt, reader.replicas())
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._force = False

    def listen(self, max_wait_ms: int) -> None:
        """Record changes of the partitions from now on."""
        self._context.connection.delayed[self._delayed_fetch] = None
        self._delayed_fetch.start(self._services.loop, max_wait_ms)

    def wait(self) -> None:
        """Answer later, when there is enough; read again now if a partition has changed since `listen`."""
        self._slot = self._context.channel.defer()
        if self._again:
            self._start_reading()

    def cancel(self) -> None:
        """Stop recording changes."""
        self._context.connection.delayed.pop(self._delayed_fetch, None)
        self._delayed_fetch.cancel()

    def _attempt(self, force: bool) -> bool:
        """Begin to read again after a change, or at the deadline; the response follows later."""
        self._again = True
        # A deadline that passes during a reading is not lost.
        self._force = self._force or force
        if self._slot is not None and self._task is None:
            self._start_reading()
        return False

    def _start_reading(self) -> None:
        assert self._slot is not None
        self._task = self._services.loop.create_task(self._read_again(self._slot))

    async def _read_again(self, slot: Slot) -> None:
        try:
            while self._again and not self._context.channel.closed:
                self._again = False
                force = self._force
                reading = await run_in_slices(self._reader.read_in_slices())
                if force or self._reader.suffices(reading):
                    response = await run_in_slices(self._reader.respond_in_slices(reading))
                    self.cancel()
                    slot.send(await response_parts_in_slices(self._context, response))
                    return
        except Exception as error:  # noqa: BLE001 - the peer waits for a response that will not come
            context = self._context
            log_request_failed(context.channel, context.api_key, context.version, error)
            slot.abandon()
        finally:
            self._task = None


def _fetched_partitions(
    topic: FetchTopic, partitions: Sequence[FetchPartition], uses_ids: bool
) -> list[FetchedPartition]:
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
        for partition in partitions
    ]


def _forgotten(request: FetchRequest, uses_ids: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if uses_ids else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


class _FetchReader:
    """One Fetch request; every reading uses the replicas as they are at that time."""

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest, fetch: FetchContext) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._fetch = fetch
        self._committed_only = request.isolation_level == READ_COMMITTED
        # The broker's fetch.max.bytes bounds what one client can make it send.
        self._bytes_max = min(request.max_bytes, services.config.fetch_max_bytes)
        self._min_bytes = request.min_bytes
        quota_bytes = context.meter.fetch_bytes_max if context.meter is not None else None
        if quota_bytes is not None:
            # More than a window of the quota could never be sent, and the client would make no progress.
            self._bytes_max = min(self._bytes_max, quota_bytes)
            self._min_bytes = min(self._min_bytes, self._bytes_max)
        self._selects = bool(request.rack_id) and services.config.text(SELECTOR) == RACK_AWARE

    def replica(self, partition: FetchedPartition) -> Replica | None:
        """Return the local replica of a partition, if there is one."""
        if partition.topic is not None:
            return self._services.replicas.find(partition.topic, partition.index)
        return self._services.replicas.find_by_id(partition.topic_id, partition.index)

    def replicas(self) -> list[Replica]:
        """Return the local replicas of the partitions to read."""
        return [replica for replica in map(self.replica, self._fetch.partitions) if replica is not None]

    def suffices(self, reading: Reading) -> bool:
        """Whether the request is answered without waiting for more."""
        request = self._request
        return (
            request.max_wait_ms <= 0
            or reading.complete_now
            or reading.bytes >= self._min_bytes
            or not self._fetch.partitions
        )

    def read(self) -> Reading:
        """Read every partition once, in order."""
        reading = Reading()
        self._read_into(reading, self._fetch.partitions)
        return reading

    def read_in_slices(self) -> SliceSteps[Reading]:
        """`read` in slices."""
        reading = Reading()
        for partitions in cut(self._fetch.partitions):
            self._read_into(reading, partitions)
            yield len(partitions)
        return reading

    def _read_into(self, reading: Reading, partitions: Sequence[FetchedPartition]) -> None:
        budget = self._bytes_max
        for partition in partitions:
            data = PartitionData(partition_index=partition.index, aborted_transactions=None, records=b"")
            reading.results.append((partition, data))
            try:
                self._read_partition(partition, data, budget - reading.bytes, reading)
            except KlammError as error:
                data.error_code = error.code
                data.high_watermark = -1
                reading.complete_now = True
                failed = self.replica(partition)
                if failed is not None:
                    failed.failed_fetches += 1

    def _read_partition(self, partition: FetchedPartition, data: PartitionData, budget: int, reading: Reading) -> None:
        replica = self._readable(partition)
        replica.fetches += 1
        log = replica.log
        # KIP-110: clients before v10 cannot decompress zstd.
        if self._context.version < ZSTD_SINCE and log.config.compression_type == "zstd":
            raise KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        # KIP-595: the client compares histories with every fetch, in place of OffsetForLeaderEpoch.
        if partition.last_fetched_epoch >= 0:
            epoch, end_offset = replica.end_offset_for_epoch(partition.last_fetched_epoch)
            if epoch < 0:
                raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < partition.last_fetched_epoch or end_offset < partition.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                reading.complete_now = True
                return
        upper = log.last_stable_offset if self._committed_only else log.high_watermark
        if self._committed_only:
            data.aborted_transactions = []
        if not log.log_start_offset <= partition.fetch_offset <= log.log_end_offset:
            # A follower may lack what the leader has: only the leader may say that an offset does not exist.
            raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE if replica.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._selects and replica.leads:
            data.preferred_read_replica = self._nearer(replica, partition.fetch_offset)
            # Without records: the client fetches them from the named replica, not twice.
            if data.preferred_read_replica >= 0:
                reading.complete_now = True
                return
        # Only the first partition with data may exceed the limits, so that a large batch cannot stop a reader.
        first = reading.bytes == 0
        limit = min(partition.max_bytes, budget)
        if partition.fetch_offset >= upper or (limit <= 0 and not first):
            return
        region = log.read(partition.fetch_offset, max(limit, 0), upper, min_one=first)
        if region is None:
            return
        data.records = RecordRegion(region)
        reading.bytes += region.length
        if self._committed_only:
            aborted = log.aborted_transactions(partition.fetch_offset, region.next_offset)
            data.aborted_transactions = [
                AbortedTransaction(producer_id=transaction.producer_id, first_offset=transaction.first_offset)
                for transaction in aborted
            ]

    def _nearer(self, replica: Replica, offset: int) -> int:
        """Return a replica in the consumer's rack that has the offset; -1 to read here."""
        nearest = nearest_replica(self._services.image.cluster, replica, self._request.rack_id, offset)
        return -1 if nearest == self._services.node_id else nearest

    def _is_denied(self, partition: FetchedPartition) -> bool:
        name = partition.topic
        if name is None:
            topic = self._services.image.topics.by_id.get(Uuid(partition.topic_id))
            # An id that does not exist is UNKNOWN_TOPIC_ID, whatever the rights.
            if topic is None:
                return False
            name = topic.name
        return topic_denied(self._services, self._context, AclOperation.READ, name)

    def _readable(self, partition: FetchedPartition) -> Replica:
        # With every reading: a session or a waiting fetch may be older than an ACL.
        if self._services.access is not None and self._is_denied(partition):
            raise KlammError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = self.replica(partition)
        # KIP-392: a follower serves consumers up to the high watermark it has from its leader.
        follows = replica is not None and not replica.state.is_leader and not replica.retired
        if replica is None or not (replica.leads or (follows and self._context.version >= FOLLOWERS_SINCE)):
            raise KlammError(self._absence(partition))
        # Kept in the session, for the error once the topic is deleted.
        if partition.topic is None:
            partition.known_as = replica.topic
        error = replica.state.check_leader_epoch(partition.current_leader_epoch)
        if error:
            raise KlammError(error)
        return replica

    def _absence(self, partition: FetchedPartition) -> ErrorCode:
        """Return the error for a partition that cannot be read here.

        In a session that had resolved a topic's id, the error depends on whether another topic has its name (KIP-516).
        """
        topics = self._services.image.topics
        topic = (
            topics.by_name.get(partition.topic)
            if partition.topic is not None
            else topics.by_id.get(Uuid(partition.topic_id))
        )
        if topic is not None:
            partition.known_as = topic.name
            if partition.index in topic.partitions:
                return self._services.replicas.not_leader_error(topic.id, partition.index)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.topic is None and partition.known_as is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if partition.topic is None and partition.known_as in topics.by_name:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def response(self, reading: Reading) -> FetchResponse:
        """Return the response: in a session only what changed. Partitions with data are read last next time."""
        throttled = self._throttle(reading)
        if throttled is not None:
            return throttled
        builder = _ResponseBuilder()
        self._add_to(builder, reading.results)
        return self._finish(builder)

    def _throttle(self, reading: Reading) -> FetchResponse | None:
        """Return an empty response if the client is above its quota: it gets the records with a later request."""
        meter = self._context.meter
        if meter is None:
            return None
        fetch = self._fetch
        news = sum(not fetch.incremental or _has_news(partition, data) for partition, data in reading.results)
        if not meter.record_fetched(RESPONSE_BYTES + news * PARTITION_BYTES + reading.bytes):
            return None
        if fetch.session is not None and not fetch.incremental:
            # As in Kafka: a client takes an empty response to a full request for no session.
            self._services.sessions.end(fetch.session)
            return FetchResponse()
        return FetchResponse(session_id=fetch.session_id)

    def respond_in_slices(self, reading: Reading) -> SliceSteps[FetchResponse]:
        """`response` in slices."""
        throttled = self._throttle(reading)
        if throttled is not None:
            return throttled
        builder = _ResponseBuilder()
        for results in cut(reading.results):
            self._add_to(builder, results)
            yield len(results)
        return self._finish(builder)

    def _add_to(self, builder: "_ResponseBuilder", results: Sequence[tuple[FetchedPartition, PartitionData]]) -> None:
        topics = builder.topics
        for partition, data in results:
            if self._fetch.incremental and not _has_news(partition, data):
                continue
            # What the client has by this response; the next incremental one leaves it out.
            partition.sent_high_watermark = data.high_watermark if not data.error_code else -1
            partition.sent_log_start_offset = data.log_start_offset
            if len(data.records):
                builder.served.append(partition.key)
                replica = self.replica(partition)
                if replica is not None:
                    replica.bytes_out += len(data.records)
            if data.error_code in _HINTED:
                image = partition_image(self._services, partition.topic, partition.topic_id, partition.index)
                if image is not None:
                    builder.leaders.add(image.leader)
                    data.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)
            key = partition.topic if partition.topic is not None else partition.topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=partition.topic or "", topic_id=partition.topic_id)
            topic.partitions.append(data)

    def _finish(self, builder: "_ResponseBuilder") -> FetchResponse:
        if self._fetch.session is not None:
            # Or a busy partition would use up max_bytes every time, and those behind it would starve.
            self._fetch.session.rotate(builder.served)
        endpoints = node_endpoints(self._services, self._context, builder.leaders, NodeEndpoint)
        return FetchResponse(
            session_id=self._fetch.session_id, responses=list(builder.topics.values()), node_endpoints=endpoints
        )


@dataclass(slots=True)
class _ResponseBuilder:
    """The parts of a response that is being built."""

    topics: dict[Any, FetchableTopicResponse] = field(default_factory=dict)
    leaders: set[int] = field(default_factory=set)
    served: list[PartitionKey] = field(default_factory=list)


def _has_news(partition: FetchedPartition, data: PartitionData) -> bool:
    """Whether an incremental response must contain a partition."""
    return (
        bool(len(data.records))
        or data.error_code != 0
        or data.diverging_epoch is not None
        or data.preferred_read_replica >= 0
        or data.high_watermark != partition.sent_high_watermark
        or data.log_start_offset != partition.sent_log_start_offset
    )
