"""Reads ahead: one Fetch at a time per broker, for all its partitions below the buffer limit.

Fetched bytes are kept as batches and decoded when a poll takes them. Runs by callbacks on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.connection import Connection
from klamm.client.consumer.core.sessions import ConsumerFetchSession, PartitionFetch
from klamm.client.consumer.core.subscription import AssignedPartition, Subscription
from klamm.client.core.batches import readable
from klamm.client.core.routing import DATA
from klamm.client.errors import CorruptRecordError, KafkaError, error_for
from klamm.client.loop_timer import LoopTimer
from klamm.client.metrics import FetchedRecords
from klamm.model.errors import CorruptBatch, ErrorCode
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

_TOPIC_IDS_SINCE = 13  # KIP-516
_AHEAD = 2
"""Fetches of one partition that may be buffered: one is read while the next arrives."""
# The session is rebuilt; no partition has failed.
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNKNOWN_TOPIC_ID,
)
# Metadata is out of date, or the replica is not ready: refresh and fetch again, as Java does.
_LEADERSHIP = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
)


class Fetcher:
    """Owns the fetch sessions with brokers; `on_arrival` is called when records or an error are new to a poll."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: Subscription,
        on_arrival: Callable[[], None],
        out_of_range: Callable[[AssignedPartition], None],
        fetched: FetchedRecords,
    ) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._subscription = subscription
        self._on_arrival = on_arrival
        self._out_of_range = out_of_range
        self._loop = asyncio.get_running_loop()
        self.fetched = fetched
        self._sessions: dict[int, ConsumerFetchSession] = {}
        self._busy: dict[int, Connection | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = LoopTimer(self._fetch_ready)
        self.wake = self._timer.soon
        """Fetch what is due at the end of this loop turn; many calls in a turn are one."""
        self._backoff_until: dict[TopicPartition, float] = {}
        self._backoff_s = settings.seconds("retry.backoff.ms")
        self._committed = settings["isolation.level"] == "read_committed"
        self._rack = settings.text("client.rack")
        self._min_bytes = settings.number("fetch.min.bytes")
        self._max_bytes = settings.number("fetch.max.bytes")
        self._max_wait_ms = settings.number("fetch.max.wait.ms")
        self._partition_bytes = settings.number("max.partition.fetch.bytes")
        self._ahead_bytes = settings.number("queued.max.messages.kbytes") * 1024
        self._age_s = settings.seconds("metadata.max.age.ms")
        cluster.listeners.append(self.wake)

    def fetch_now(self) -> None:
        """Fetch now, before records are decoded, so that brokers and this client work at the same time."""
        if not self._timer.stopped:
            self._fetch_ready()

    async def stop(self) -> None:
        """Fetch no more."""
        self._timer.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fetch_ready(self) -> None:
        now = self._loop.time()
        # No timer: a poll that takes records calls `wake`.
        free_bytes = self._ahead_bytes - self._subscription.buffered
        if free_bytes <= 0:
            return
        by_node: dict[int, dict[TopicPartition, PartitionFetch]] = {}
        missing = False
        table = self._cluster.table
        for where, state in self._subscription.assigned.items():
            if not state.fetchable or state.buffered >= _AHEAD * self._partition_bytes:
                continue
            waits = self._backoff_until.get(where, 0.0)
            if waits > now:
                self._timer.at(waits)
                continue
            known = table.partition(where)
            if known is None or known.leader < 0:
                missing = True
                continue
            if state.position_epoch >= 0 and state.validated_epoch < known.leader_epoch:
                continue  # FetchPositions validates the position with the new leader first (KIP-320)
            node = known.leader
            # A follower in the client's rack (KIP-392), for metadata.max.age.ms; then the leader chooses again.
            if state.preferred >= 0:
                if now < state.preferred_until and state.preferred in table.brokers:
                    node = state.preferred
                else:
                    state.preferred = -1
            # One Fetch per broker: a second of the same session would be refused with INVALID_FETCH_SESSION_EPOCH.
            if node in self._busy:
                continue
            want = PartitionFetch(
                state.fetch_offset, known.leader_epoch, table.topic_id(where.topic), self._partition_bytes
            )
            by_node.setdefault(node, {})[where] = want
        if missing:
            self._cluster.request_update()
            self._timer.at(now + self._backoff_s)
        for node, wanted in by_node.items():
            self._fetch(node, wanted, min(self._max_bytes, max(free_bytes, 1)))

    def _fetch(self, node: int, wanted: dict[TopicPartition, PartitionFetch], max_bytes: int) -> None:
        connection = self._cluster.ready(node, DATA)
        if connection is None:
            self._busy[node] = None
            task = asyncio.create_task(self._connect(node), name=f"klamm fetch connect {node}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if connection.throttled_until > self._loop.time():
            self._timer.at(connection.throttled_until)
            return
        session = self._sessions.setdefault(node, ConsumerFetchSession())
        version = connection.version_of("Fetch")
        # One version per request: a topic without id (metadata of an older broker) moves all of them to names.
        if version >= _TOPIC_IDS_SINCE and any(want.topic_id == ZERO_UUID for want in wanted.values()):
            version = _TOPIC_IDS_SINCE - 1
        changed, forgotten = session.build(wanted)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=max_bytes,
            isolation_level=1 if self._committed else 0,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=_topics(changed),
            forgotten_topics_data=_forgotten(forgotten),
            rack_id=self._rack,
        )
        tickets = {where: self._subscription.assigned[where].ticket for where in wanted}
        # The broker may hold the request for fetch.max.wait.ms before request.timeout.ms counts.
        timeout_s = self._max_wait_ms / 1000 + self._cluster.settings.seconds("request.timeout.ms")
        response = connection.request(request, version, timeout_s=timeout_s)
        self.fetched.fetches += 1
        self._busy[node] = connection
        # While this turn decodes records, the kernel acknowledges what arrives, so that the broker keeps sending.
        connection.receive_ahead()
        response.add_done_callback(partial(self._on_response, node, session, tickets))

    async def _connect(self, node: int) -> None:
        try:
            await self._cluster.connection(node, DATA)
        except KafkaError:
            # A preferred replica that is down: back to the leader, without waiting for its lease to end.
            for state in self._subscription.assigned.values():
                if state.preferred == node:
                    state.preferred = -1
            self._cluster.request_update()
            # Still marked busy meanwhile, so that no further attempt starts.
            await asyncio.sleep(self._backoff_s)
        finally:
            self._busy.pop(node, None)
            self.wake()

    def _on_response(
        self, node: int, session: ConsumerFetchSession, tickets: dict[TopicPartition, int], future: asyncio.Future[Any]
    ) -> None:
        self._busy.pop(node, None)
        if self._timer.stopped or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            # Whether the broker saw the request is unknown, and with it the epoch it expects next.
            session.reset()
            for where in tickets:
                state = self._subscription.assigned.get(where)
                if state is not None and state.preferred == node:
                    state.preferred = -1
                self._backoff_until[where] = self._loop.time() + self._backoff_s
            self._cluster.request_update()
            self.wake()
            return
        response = future.result()
        if response.error_code:
            code = response.error_code
            # With a wrong epoch the session still exists: its id in the next full fetch makes the broker close it.
            session.reset(keep_id=code == ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            if code not in _SESSION_ERRORS:
                self._fail_all(tickets, error_for(code))
            if code in (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.UNKNOWN_TOPIC_ID):
                self._cluster.request_update()
            self.wake()
            return
        session.on_response(response.session_id)
        names = self._cluster.table.names
        news = False
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                where = TopicPartition(name, data.partition_index)
                state = self._subscription.assigned.get(where)
                # Sought or revoked since the request: these bytes are of another position.
                if state is not None and tickets.get(where) == state.ticket:
                    news |= self._buffer_records(state, data, response)
        if news:
            self._on_arrival()
        self.wake()

    def _fail_all(self, tickets: dict[TopicPartition, int], error: KafkaError) -> None:
        for where in tickets:
            self._backoff_until[where] = self._loop.time() + self._backoff_s
            state = self._subscription.assigned.get(where)
            if state is not None and not error.retriable:
                state.error = error
        self._on_arrival()

    def _buffer_records(self, state: AssignedPartition, data: Any, response: Any) -> bool:
        """Buffer the response of one partition; True when it has records or an error for a poll."""
        if data.error_code:
            return self._handle_partition_error(state, data, response)
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        state.log_start_offset = data.log_start_offset
        # KIP-392: the leader returns no records but the replica to fetch from.
        if data.preferred_read_replica >= 0:
            state.preferred = data.preferred_read_replica
            state.preferred_until = self._loop.time() + self._age_s
            return False
        records = data.records
        if not records:
            return False
        aborted = None
        if self._committed:
            aborted = [
                (transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()
            ]
        try:
            batches, next_offset = readable(records, state.fetch_offset, aborted)
        except CorruptBatch as error:
            state.error = _corrupt(state, str(error), records)
            return True
        # Brokers send at least one whole batch (KIP-74); without the check the same fetch would repeat for ever.
        if next_offset == state.fetch_offset and not batches:
            state.error = _corrupt(state, "the fetch returned no whole batch", records)
            return True
        state.fetch_offset = next_offset
        if batches:
            state.batches.extend(batches)
            size = sum(batch.size for batch in batches)
            state.buffered += size
            self.fetched.bytes += size
        elif not state.batches and not state.pending and not state.lent:
            # Only control batches or aborted records: the position passes them, or lag would never reach zero.
            state.position = next_offset
        return bool(batches)

    def _handle_partition_error(self, state: AssignedPartition, data: Any, response: Any) -> bool:
        code = ErrorCode(data.error_code) if data.error_code in ErrorCode._value2member_map_ else None
        now = self._loop.time()
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # A follower may lag behind, or its log start be ahead: ask the leader before resetting (KIP-392).
            if state.preferred >= 0:
                state.preferred = -1
                return False
            self._out_of_range(state)
            return True
        if code in _LEADERSHIP:
            state.preferred = -1
            # KIP-951: the error names the new leader and its address, so no metadata round trip and no backoff.
            if not self._cluster.hint(state.where, data.current_leader, response.node_endpoints):
                self._backoff_until[state.where] = now + self._backoff_s
            return False
        error = error_for(data.error_code, str(state.where))
        self._backoff_until[state.where] = now + self._backoff_s
        if isinstance(error, CorruptRecordError):
            error.locate(state.where, state.fetch_offset, state.fetch_offset + 1)
        elif error.retriable:
            return False
        state.error = error
        return True


def _corrupt(state: AssignedPartition, words: str, data: Any) -> CorruptRecordError:
    """The error for bytes that are no batches: their count of offsets is unknown, so a skip moves on by one."""
    offset = state.fetch_offset
    error = CorruptRecordError(ErrorCode.CORRUPT_MESSAGE, f"{state.where} at offset {offset}: {words}")
    error.data = bytes(data)
    return error.locate(state.where, offset, offset + 1)


def _topics(wanted: dict[TopicPartition, PartitionFetch]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for where, want in wanted.items():
        topic = topics.get(where.topic)
        if topic is None:
            topic = topics[where.topic] = FetchTopic(topic=where.topic, topic_id=want.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=where.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(wanted: dict[TopicPartition, PartitionFetch]) -> list[ForgottenTopic]:
    forgotten_topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for where, want in wanted.items():
        key = (where.topic, want.topic_id)
        if key not in forgotten_topics:
            forgotten_topics[key] = ForgottenTopic(topic=where.topic, topic_id=want.topic_id, partitions=[])
        forgotten_topics[key].partitions.append(where.partition)
    return list(forgotten_topics.values())
