"""Fetch, v13-18 of followers: a replica on another broker copies the log, and its fetch offset is its progress.

A follower has everything before its fetch offset: that moves the high watermark and may bring it back into the ISR. It
reads to the end of the log, not to the high watermark. Where its history differs from the leader's it gets no records
but the epoch and offset of the divergence, and truncates. A fetch without records to return waits; an append answers it
in the same turn.
v15 the broker epoch of the follower (KIP-903)
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.net import Slot
from klamm.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from klamm.replication.follower_sessions import FollowedPartition, FollowerSession
from klamm.replication.replica import Replica
from klamm.replication.settings import is_throttled
from klamm.server.handlers.data.leader_hints import partition_image
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.replies import RecordRegion, response_parts
from klamm.server.requests.slices import SLICE_ELEMENTS, SliceSteps, cut
from klamm.server.services import Services

_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def handle(
    services: Services, context: RequestContext, request: FetchRequest, follower: int, replica_epoch: int
) -> object:
    """Record the progress of the follower, then answer with what it lacks, now or when there is something."""
    sessions = services.replicas.follower_sessions
    try:
        session, goes_on = sessions.resolve(request.session_id, request.session_epoch, follower, replica_epoch)
    except KlammError as error:
        return FetchResponse(error_code=error.code)
    if session.try_complete_fetch is not None:
        session.try_complete_fetch(force=True)  # the follower has sent its next request before this response
    fetch = _FollowerFetch(services, context, request, session, full=not goes_on)
    # A new session is answered at once: the follower gets the high watermarks of all its partitions.
    force = not goes_on or request.max_wait_ms <= 0
    if sum(len(topic.partitions) for topic in request.topics) > SLICE_ELEMENTS:
        return _handle_many(services, session, request, fetch, force)
    named: list[FollowedPartition] = []
    for topic in request.topics:
        _update_session(services, session, topic.topic_id, topic.partitions, named)
    _forget(session, request)
    now_ms = services.clock.monotonic_ms()
    for followed in named:
        _record_progress(services, session, followed, now_ms)
    response = fetch.attempt(force)
    if response is not None:
        return response
    fetch.park()
    return ANSWERED


def _handle_many(
    services: Services, session: FollowerSession, request: FetchRequest, fetch: "_FollowerFetch", force: bool
) -> SliceSteps[object]:
    """As `handle`, for a follower that names many partitions: all that it copies, when its session begins."""
    named: list[FollowedPartition] = []
    for topic in request.topics:
        for partitions in cut(topic.partitions):
            _update_session(services, session, topic.topic_id, partitions, named)
            yield len(partitions)
        yield 1
    _forget(session, request)
    now_ms = services.clock.monotonic_ms()
    for followed in named:
        _record_progress(services, session, followed, now_ms)
        yield 1  # partitions this node does not lead yet are recorded when they are read
    response = yield from fetch.attempt_in_slices(force)
    if response is not None:
        return response
    fetch.park()
    fetch.try_complete()  # for what was appended between two slices
    return ANSWERED


def _update_session(
    services: Services,
    session: FollowerSession,
    topic_id: bytes,
    partitions: Sequence[FetchPartition],
    named: list[FollowedPartition],
) -> None:
    """Update the session with the partitions that the request names, and append them to `named`."""
    changed = session.changed
    for partition in partitions:
        followed = session.partition((topic_id, partition.partition))
        followed.update(
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
            partition.log_start_offset,
        )
        # A partition that was deleted and created again has another replica under the same index.
        if followed.replica is None or followed.replica.retired:
            followed.attach(services.replicas.find_by_id(topic_id, partition.partition))
        changed[followed] = None
        named.append(followed)


def _forget(session: FollowerSession, request: FetchRequest) -> None:
    for gone in request.forgotten_topics_data:
        for index in gone.partitions:
            session.forget((gone.topic_id, index))


def _record_progress(services: Services, session: FollowerSession, followed: FollowedPartition, now_ms: int) -> None:
    """Count what a follower has, which is all before its fetch offset, unless its history diverges."""
    replica = followed.replica
    try:
        if replica is None or _refusal(replica, followed) or _divergence(replica, followed) is not None:
            return
    except KlammError:
        return
    followed.noted = True
    log, state = replica.log, replica.state
    if not log.log_start_offset <= followed.fetch_offset <= log.log_end_offset:
        return
    follower = session.follower
    progress = state.followers[follower]
    if 0 <= session.replica_epoch < progress.broker_epoch:
        return  # a late request of an earlier broker epoch
    # Followers in the ISR need no check for it, which is the usual case.
    in_sync = follower in state.isr
    if not in_sync:
        # The fetch may make it count: what was staged while the leader was alone is committed without it, before.
        services.replicas.write_before_isr_grows(replica)
    isr = services.replicas.isr
    before = state.high_watermark
    reached = state.on_follower_fetch(
        follower,
        followed.fetch_offset,
        replica.acknowledged_end_offset,
        now_ms,
        leader_end=log.log_end_offset,
        log_start_offset=followed.log_start_offset,
        broker_epoch=session.replica_epoch,
        eligible=not in_sync and isr.eligible(follower, session.replica_epoch),
    )
    # Completes acks=all, and answers the fetches of consumers that wait for the high watermark.
    if reached > before:
        services.replicas.advance_leader_high_watermark(replica, reached)
    if not in_sync:
        replica.refresh()
        isr.consider(replica, follower)


def _refusal(replica: Replica, followed: FollowedPartition) -> ErrorCode:
    if not replica.leads:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = replica.state.check_leader_epoch(followed.leader_epoch)
    if not error and followed.session.follower not in replica.state.followers:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return error


def _divergence(replica: Replica, followed: FollowedPartition) -> EpochEndOffset | None:
    """Return where the follower's history diverges from the leader's; None when it does not."""
    fetched = followed.last_fetched_epoch
    log = replica.log
    # The usual case without a search: the last epoch is the same, and the follower is not ahead.
    if fetched < 0 or (fetched == log.leader_epochs.latest and followed.fetch_offset <= log.log_end_offset):
        return None
    epoch, end_offset = replica.end_offset_for_epoch(fetched)
    if epoch < 0:
        raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {fetched} is not in the leader epoch cache")
    if epoch < fetched or end_offset < followed.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


@dataclass(slots=True)
class _FollowerReading:
    """What was read so far for a response."""

    parts: list[tuple[FollowedPartition, PartitionData]] = field(default_factory=list)
    size: int = 0
    urgent: bool = False


class _FollowerFetch:
    """One request of a follower, until it is answered."""

    __slots__ = ("_context", "_full", "_request", "_services", "_session", "_slot", "_timer")

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: FetchRequest,
        session: FollowerSession,
        *,
        full: bool,
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._session = session
        self._full = full
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None

    def park(self) -> None:
        """Wait for an append, or until max_wait_ms has passed."""
        self._slot = self._context.channel.defer()
        # The request's bytes are borrowed for this turn only.
        self._context.frame = memoryview(b"")
        self._session.try_complete_fetch = self.try_complete
        self._context.connection.delayed[self] = None
        self._timer = self._services.loop.call_later(
            self._request.max_wait_ms / 1000, partial(self.try_complete, force=True)
        )

    def try_complete(self, *, force: bool = False) -> None:
        """Answer if there is enough by now; with `force`, in any case."""
        response = self.attempt(force)
        if response is None or self._slot is None:
            return
        self._end()
        self._slot.send(response_parts(self._context, response))

    def _end(self) -> None:
        self._session.try_complete_fetch = None
        self._context.connection.delayed.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        """Drop the session with its connection."""
        self._end()
        # A session without a connection would keep collecting changes that nothing reads.
        self._services.replicas.follower_sessions.close(self._session.id, self._session.follower)

    def attempt(self, force: bool) -> FetchResponse | None:
        """Return the response, if there is enough for one."""
        reading = _FollowerReading()
        self._read_changed(reading, self._session.changed)
        if not self._suffices(reading, force):
            return None
        topics: dict[bytes, FetchableTopicResponse] = {}
        self._add_to(topics, reading.parts)
        return FetchResponse(session_id=self._session.id, responses=list(topics.values()))

    def attempt_in_slices(self, force: bool) -> SliceSteps[FetchResponse | None]:
        """`attempt` in slices."""
        reading = _FollowerReading()
        for partitions in cut(list(self._session.changed)):
            self._read_changed(reading, partitions)
            yield len(partitions)
        if not self._suffices(reading, force):
            return None
        topics: dict[bytes, FetchableTopicResponse] = {}
        for parts in cut(reading.parts):
            self._add_to(topics, parts)
            yield len(parts)
        return FetchResponse(session_id=self._session.id, responses=list(topics.values()))

    def _suffices(self, reading: "_FollowerReading", force: bool) -> bool:
        return force or reading.urgent or bool(reading.size and reading.size >= self._request.min_bytes)

    def _read_changed(self, reading: "_FollowerReading", partitions: Iterable[FollowedPartition]) -> None:
        """Read what the follower lacks of these; one without news is not read again before it changes."""
        budget = self._request.max_bytes
        parts, size, urgent = reading.parts, reading.size, reading.urgent
        quiet: list[FollowedPartition] = []
        for followed in partitions:
            if size >= budget:
                break
            reports = self._full
            data = PartitionData(partition_index=followed.key[1], aborted_transactions=None, records=b"")
            try:
                replica = self._replica(followed)
                if not followed.noted:
                    _record_progress(self._services, self._session, followed, self._services.clock.monotonic_ms())
                diverging = _divergence(replica, followed)
                if diverging is not None:
                    data.diverging_epoch = diverging
                    reports = urgent = True
                # Nothing is sent twice: the next fetch offset shows whether the follower has appended it.
                elif not followed.sent and not self._is_throttled(replica):
                    size += self._read(replica, followed, data, min(followed.max_bytes, budget - size), first=not size)
                data.high_watermark = replica.log.high_watermark
                data.last_stable_offset = replica.log.last_stable_offset
                data.log_start_offset = replica.log.log_start_offset
            except KlammError as error:
                self._refuse(followed, data, error.code)
                reports = urgent = True
            if reports or _has_news(followed, data):
                parts.append((followed, data))
            elif not _has_more(followed):
                quiet.append(followed)
        # At once, not when all are read: an append in a later turn must mark it as changed again.
        for followed in quiet:
            self._session.changed.pop(followed, None)
        reading.size, reading.urgent = size, urgent

    def _replica(self, followed: FollowedPartition) -> Replica:
        replica = followed.replica
        if replica is None or replica.retired:
            replica = self._services.replicas.find_by_id(*followed.key)
            followed.attach(replica)
        if replica is None:
            if followed.key[0] in self._services.image.topics.by_id:
                raise KlammError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_ID)
        error = _refusal(replica, followed)
        if error:
            raise KlammError(error)
        return replica

    def _read(
        self, replica: Replica, followed: FollowedPartition, data: PartitionData, limit: int, *, first: bool
    ) -> int:
        log = replica.log
        offset = followed.fetch_offset
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KlammError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == log.log_end_offset:
            return 0
        # Unlike a consumer, a follower reads uncommitted records: copies are what commits them.
        region = log.read(offset, max(limit, 0), log.log_end_offset, min_one=first)
        if region is None:
            return 0
        data.records = RecordRegion(region)
        self._services.replicas.replication_bytes_out += region.length
        return region.length

    def _is_throttled(self, replica: Replica) -> bool:
        """Whether replication to this follower is throttled now; followers in the ISR never are."""
        names = replica.settings.throttled_leaders
        if not names or self._session.follower in replica.state.isr:
            return False
        throttle = self._services.replicas.leader_throttle
        here = is_throttled(names, replica.index, self._services.node_id)
        return here and throttle.exceeded(self._services.clock.monotonic_ms())

    def _refuse(self, followed: FollowedPartition, data: PartitionData, code: ErrorCode) -> None:
        data.error_code = code
        data.high_watermark = -1
        if code in _MOVED:
            image = partition_image(self._services, None, *followed.key)
            if image is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)

    def _add_to(
        self,
        topics: dict[bytes, FetchableTopicResponse],
        parts: Sequence[tuple[FollowedPartition, PartitionData]],
    ) -> None:
        """Add what was read to the response, and record in the session what is sent."""
        session = self._session
        throttled = 0
        for followed, data in parts:
            followed.sent_high_watermark = data.high_watermark
            followed.sent_log_start_offset = data.log_start_offset
            if len(data.records) or data.error_code or data.diverging_epoch is not None:
                followed.sent = True
            if not _has_more(followed):
                session.changed.pop(followed, None)
            if len(data.records):
                replica = followed.replica
                if (
                    replica is not None
                    and replica.settings.throttled_leaders
                    and session.follower not in replica.state.isr
                ):
                    throttled += len(data.records)
            topic = topics.get(followed.key[0])
            if topic is None:
                topic = topics[followed.key[0]] = FetchableTopicResponse(topic_id=followed.key[0])
            topic.partitions.append(data)
        if throttled:
            self._services.replicas.leader_throttle.record(throttled, self._services.clock.monotonic_ms())


def _has_more(followed: FollowedPartition) -> bool:
    """Whether records are left that were not sent: the response was full, or replication is throttled."""
    replica = followed.replica
    return replica is not None and not followed.sent and followed.fetch_offset < replica.log.log_end_offset


def _has_news(followed: FollowedPartition, data: PartitionData) -> bool:
    return (
        bool(len(data.records))
        or data.high_watermark != followed.sent_high_watermark
        or data.log_start_offset != followed.sent_log_start_offset
    )


def deny_replica(request: FetchRequest) -> FetchResponse:
    """Refuse a follower without CLUSTER_ACTION: READ does not help, since it would get what is not committed."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=partition.partition, error_code=code, high_watermark=-1)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def follower_of(version: int, request: FetchRequest) -> tuple[int, int]:
    """Return replica id and broker epoch of the follower that sent a request; (-1, -1) for a consumer."""
    # KIP-903: from v15 the replica id is in a tagged field, together with the broker epoch.
    if version < 15:
        return request.replica_id, -1
    state: Any = request.replica_state
    return (state.replica_id, state.replica_epoch) if state is not None else (-1, -1)
