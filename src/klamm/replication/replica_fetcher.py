"""Copies the partitions this node follows from one leader: fetch, apply the response, fetch again.

One request is always in flight, waiting at the leader when there is nothing to copy. If there is something to name
meanwhile (a partition was added, or a sync is done), a second one is sent at once; the leader then answers the first.
Records are appended from the buffer they were received into, in the call that received them.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError, ProtocolError, StorageFailure
from klamm.net.line import Line
from klamm.net.outbound import SESSION_PART, connect_securely
from klamm.net.peer import Peer
from klamm.protocol.codec import decode, encode_into
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.fetch import FetchResponse, PartitionData
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.replication.fetch_plan import NOT_REQUESTED, FetchPlan, Following
from klamm.replication.follower_append import Applied, apply_fetched_partition, follow_offsets, reset_to_leader
from klamm.replication.manager import ReplicaManager
from klamm.replication.replica import Replica
from klamm.replication.settings import is_throttled
from klamm.telemetry.log import get_logger

log = get_logger("replication")

FETCH = 1
VERSION = 17
LIST_OFFSETS_VERSION = 9
LATEST, EARLIEST_LOCAL = -1, -4
"""Timestamps with a meaning in ListOffsets; -4 (KIP-405) is the first offset on the leader's own disk."""
IN_FLIGHT_MAX = 2
"""One that waits at the leader, and one that names what has changed meanwhile."""
RECONNECT_MS = 20
"""The first pause before a connection is tried again, doubled up to replica.fetch.backoff.ms."""
THROTTLE_PAUSE_MS = 100
"""How long a throttled partition is left out before the rate is checked again."""
RESPONSE_TIMEOUT_MS_MIN = 1000

_INT32 = struct.Struct(">i")
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""A new session is all it takes: the partitions have not failed, so they are not paused."""

Address = tuple[str, int]


class ReplicaFetcher:
    """A connection to a leader and the partitions copied over it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        replicas: ReplicaManager,
        leader: int,
        *,
        address: Callable[[int], Address | None],
        broker_epoch: Callable[[], int],
        name: str = "",
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._replicas = replicas
        self._address = address
        self._broker_epoch = broker_epoch
        self.leader = leader
        self.plan = FetchPlan(replicas.config)
        self._client_id = f"broker-{replicas.node_id}-fetcher-{name or leader}"
        self._line: Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: deque[int] = deque()
        self._next_id = 0
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._responses = 0
        self._scheduled = False
        self._closed = False

    # What is copied

    def add(self, replica: Replica) -> None:
        """Copy a partition from this leader."""
        self.plan.add(replica)
        self._schedule()

    def remove(self, replica: Replica) -> None:
        """Stop copying a partition."""
        self.plan.remove((replica.topic_id, replica.index))
        self._schedule()

    def close(self) -> None:
        """Stop copying and close the connection."""
        self._closed = True
        for timer in (self._timer, self._watchdog):
            if timer is not None:
                timer.cancel()
        for task in (self._connecting, *self._tasks):
            if task is not None:
                task.cancel()
        if self._line is not None:
            # Cleared first: `_on_lost`, which `close` calls, then does nothing.
            line, self._line = self._line, None
            line.close()

    # Requests

    def _schedule(self) -> None:
        """Send a request soon: partitions come many at a time, and one request names them all."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        plan = self.plan
        wait_ms = plan.resume(self._clock.monotonic_ms())
        if wait_ms is not None and (self._timer is None or self._timer.when() > self._loop.time() + wait_ms / 1000):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)
        if plan.is_idle and not plan.has_news:
            return
        if self._line is None:
            self._connect()
            return
        waiting = len(self._in_flight)
        # A second request only within a session: without one it would name every partition again.
        if not waiting or (waiting < IN_FLIGHT_MAX and plan.has_news and plan.session_id):
            self._send()

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _send(self) -> None:
        assert self._line is not None
        self._next_id = number = (self._next_id + 1) & 0x7FFFFFFF
        # The broker epoch of now, not of when the fetcher began: the leader does not count an earlier one.
        request = self.plan.request(self._replicas.node_id, self._broker_epoch(), number)
        parts: list[Any] = [b"", encode_request_header(RequestHeader(FETCH, VERSION, number, self._client_id))]
        encode_into(request, VERSION, parts)
        parts[0] = _INT32.pack(sum(map(len, parts)))
        self._in_flight.append(number)
        self._line.send(b"".join(parts))

    # The connection

    def _connect(self) -> None:
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect_now(), name=f"connect {self._client_id}")

    async def _connect_now(self) -> None:
        try:
            if self._failures:
                limit = self._replicas.config.fetch_backoff_ms
                await asyncio.sleep(min(RECONNECT_MS << min(self._failures, 10), limit) / 1000)
            address = self._address(self.leader)
            if address is None:
                self._failures += 1
                return
            async with asyncio.timeout(self._replicas.config.socket_timeout_ms / 1000):
                line, lifetime_ms = await connect_securely(
                    self._loop,
                    partial(Line, self._on_frame, self._on_lost),
                    *address,
                    self._replicas.config.security,
                    client_id=self._client_id,
                )
        except (OSError, TimeoutError) as error:
            if not self._failures:  # once an outage, not once an attempt
                log.info("connection to leader failed", leader=self.leader, reason=error)
            self._failures += 1
            return
        finally:
            self._connecting = None
            if not self._closed:
                self._schedule()
        if self._closed or line.closed:
            line.close()
            return
        self._failures = 0
        if self._replicas.config.socket_receive_buffer_bytes > 0:
            line.set_receive_buffer(self._replicas.config.socket_receive_buffer_bytes)
        self._line = line
        if lifetime_ms:
            self._loop.call_later(SESSION_PART * lifetime_ms / 1000, line.close, "the login ends")
        self._watch()

    def _watch(self) -> None:
        """Close a connection without a response, early enough to try another before this node leaves the ISR."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        responses = self._responses

        def check_responses() -> None:
            if self._line is None:
                return
            if responses == self._responses and self._in_flight:
                self._line.close("no response from the leader")
            else:
                self._watch()

        config = self._replicas.config
        # A third of replica.lag.time.max.ms leaves time for two more connections before the leader shrinks the ISR.
        timeout_ms = config.fetch_wait_max_ms + max(config.lag_time_max_ms // 3, RESPONSE_TIMEOUT_MS_MIN)
        self._watchdog = self._loop.call_later(min(config.socket_timeout_ms, timeout_ms) / 1000, check_responses)

    def _on_lost(self, reason: str) -> None:
        if self._line is None:
            return
        log.info("connection to leader lost", leader=self.leader, reason=reason)
        self._line = None
        self._in_flight.clear()
        # A request may be lost with it: only a full one brings both sides to the same session epoch.
        self.plan.restart()
        # Not 0, so that a leader which accepts and closes is not connected to in a busy loop.
        self._failures = max(self._failures, 1)
        if not self._closed:
            self._schedule()

    # Responses

    def _on_frame(self, frame: memoryview) -> None:
        self._responses += 1
        try:
            number, offset = decode_response_header(frame, FETCH, VERSION)
            # Kafka answers in the order of requests; anything else is another protocol or a lost frame.
            if not self._in_flight or self._in_flight.popleft() != number:
                raise ProtocolError("correlation id of no request")
            response, _ = decode(FetchResponse, VERSION, frame, offset)
        except ProtocolError as error:
            log.warning("fetch response from leader invalid", leader=self.leader, reason=error)
            if self._line is not None:
                self._line.close("fetch response invalid")
            return
        self._apply_response(response)
        # In the same call, not scheduled: the next fetch is what moves the leader's high watermark.
        self._pump()

    def _apply_response(self, response: FetchResponse) -> None:
        plan = self.plan
        if response.error_code:
            code = ErrorCode(response.error_code)
            plan.restart()
            if code not in _SESSION_ERRORS:
                log.warning("leader refused fetch", leader=self.leader, reason=code.name)
                now_ms = self._clock.monotonic_ms()
                for following in plan.partitions.values():
                    plan.pause(following, now_ms)
            return
        # 0 when the leader keeps no session: then the next request names all partitions again.
        plan.on_session_opened(response.session_id)
        throttled = 0
        for topic in response.responses:
            topic_id = topic.topic_id
            for data in topic.partitions:
                copied = plan.partitions.get((topic_id, data.partition_index))
                # Removed, promoted to leader, or under a new epoch since the request: its records must not be appended.
                if copied is not None and copied.current:
                    if self._is_stale(copied):
                        self._apply_stale(copied, data)
                    else:
                        copied.answered = True
                        throttled += self._apply_partition(copied, data)
        if throttled:
            self._replicas.follower_throttle.record(throttled, self._clock.monotonic_ms())

    def _is_stale(self, following: Following) -> bool:
        """Whether a response that has just come is to an earlier fetch than the partition's latest.

        The leader answers the latest fetch from its offset again, so records of both would be appended twice.
        """
        return following.request == NOT_REQUESTED or following.request in self._in_flight

    def _apply_stale(self, following: Following, data: PartitionData) -> None:
        """Of a response to an earlier fetch only the leader's offsets count, and only under the same epoch."""
        if following.answered and not data.error_code and follow_offsets(self._replicas, following.replica, data):
            self.plan.mark_moved(following)

    def _apply_partition(self, following: Following, data: PartitionData) -> int:
        replica = following.replica
        applied = apply_fetched_partition(self._replicas, replica, data)
        if applied is Applied.MOVED:
            # Not after a truncation: what is left was claimed by an earlier fetch, so it is on the device.
            if replica.awaits_sync and data.diverging_epoch is None:
                self._sync_first(following)
            elif replica.settings.throttled_followers and self._must_wait(replica):
                self.plan.pause_for(following, self._clock.monotonic_ms(), THROTTLE_PAUSE_MS)
            else:
                self.plan.mark_moved(following)
            names = replica.settings.throttled_followers
            return len(data.records) if names and data.records is not None and self._is_throttled(replica) else 0
        if applied is Applied.OUT_OF_RANGE:
            # Held: fetching from the same offset would fail again until the leader's offsets are known.
            following.held = True
            self._in_background(self._reset_to_leader_offsets(following))
        elif applied is Applied.FAILED:
            self.plan.pause(following, self._clock.monotonic_ms())
        elif applied is Applied.LOST:
            # Its log dir fails and the controller assigns new roles; fetching for it would be repeated in vain.
            self.plan.remove(following.key)
        return 0

    def _is_throttled(self, replica: Replica) -> bool:
        names, state = replica.settings.throttled_followers, replica.state
        # KIP-73: a replica in sync is never throttled, or it would fall out of the ISR by it.
        return state.node_id not in state.isr and is_throttled(names, replica.index, state.node_id)

    def _must_wait(self, replica: Replica) -> bool:
        return self._is_throttled(replica) and self._replicas.follower_throttle.exceeded(self._clock.monotonic_ms())

    def _sync_first(self, following: Following) -> None:
        """Fetch on after a sync: with flush.messages a follower claims only what its own device has."""
        kept = following.replica.log
        if kept.durable_offset == kept.log_end_offset:
            self.plan.mark_moved(following)
            return
        following.held = True

        def on_synced(failure: StorageFailure | None) -> None:
            following.held = False
            if failure is None and following.current:
                self.plan.mark_moved(following)
                self._schedule()

        self._replicas.logs.group_sync.wait(kept, on_synced)

    def _in_background(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reset_to_leader_offsets(self, following: Following) -> None:
        """Look up where the leader's log begins and ends, since it does not contain this log's end."""
        replica = following.replica
        address = self._address(self.leader)
        try:
            if address is None:
                return
            # A connection of its own: the fetcher's carries Fetch only, whose responses are matched by order.
            peer = Peer(self._loop, *address, client_id=self._client_id, security=self._replicas.config.security)
            try:
                start = await self._list_offset(peer, following, EARLIEST_LOCAL)
                end = await self._list_offset(peer, following, LATEST)
            finally:
                peer.close()
            # Leadership may have moved while it was looked up: another leader has another log.
            if following.current:
                reset_to_leader(replica, start, end)
                following.held = False
                self.plan.mark_moved(following)
        except (KlammError, OSError) as error:
            log.warning("leader offsets not available", partition=str(replica), reason=error)
        finally:
            if following.held:
                following.held = False
                self.plan.pause(following, self._clock.monotonic_ms())
            self._schedule()

    async def _list_offset(self, peer: Peer, following: Following, timestamp: int) -> int:
        replica = following.replica
        partition = ListOffsetsPartition(
            partition_index=replica.index, current_leader_epoch=following.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._replicas.node_id,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=replica.topic, partitions=[partition])],
        )
        response = await peer.ask(request, LIST_OFFSETS_VERSION)
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise KlammError(ErrorCode(result.error_code))
        return int(result.offset)
