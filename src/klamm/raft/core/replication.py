"""Replication of the log by pull: followers and observers fetch, the leader answers and counts what they hold.

The offset of a Fetch is the acknowledgement: everything before it is durable at the sender. The high watermark is what
a majority of voters has acknowledged so.
"""

from klamm.model.errors import ErrorCode
from klamm.raft.core.events import StoreSnapshotChunk, Truncate
from klamm.raft.core.leader_discovery import LeaderDiscovery
from klamm.raft.core.log_positions import Diverging, NeedsSnapshot
from klamm.raft.core.messages import (
    Entry,
    Payload,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftFetchSnapshotRequest,
    RaftFetchSnapshotResponse,
    RaftMessage,
)
from klamm.raft.core.replica import ParkedFetch, RaftReplica
from klamm.raft.core.role_transitions import RoleTransitions
from klamm.raft.core.roles import Follower, Leader

OBSERVER_RETENTION_MS = 300_000
"""How long a leader keeps the progress of an observer that stopped fetching."""


class LeaderReplication:
    """The leader's side: takes records into the log, answers fetches, advances the high watermark."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica

    def append(self, payload: Payload, count: int, append_time_ms: int = 0) -> Entry:
        """Append a batch of this epoch, and answer the fetches that wait for records."""
        entry = self._replica.append_own(payload, count, append_time_ms)
        self._reply_to_parked()
        return entry

    # timers

    def must_resign(self, state: Leader) -> bool:
        """Whether this leader was removed from the voters, or has lost contact with a majority of them."""
        replica = self._replica
        if not replica.is_voter and replica.high_watermark > replica.voter_history.offset:
            # Its removal is committed. Before that it had to go on, because only a leader can commit it.
            return True
        if replica.now_ms < state.check_quorum_deadline_ms:
            return False
        if not state.majority_fetched():
            # On the wrong side of a partition it can commit nothing; the others may have a leader already.
            return True
        state.fetched_since_check.clear()
        state.check_quorum_deadline_ms = replica.check_quorum_deadline()
        state.forget_silent_observers(replica.now_ms - OBSERVER_RETENTION_MS)
        return False

    def expire_parked(self) -> None:
        """Answer parked fetches whose maximum wait has passed."""
        parked, now_ms = self._replica.parked_fetches, self._replica.now_ms
        for key in [key for key, fetch in parked.items() if now_ms >= fetch.deadline_ms]:
            self._reply(parked.pop(key).message)

    # requests

    def on_fetch(self, message: RaftMessage, request: RaftFetchRequest) -> None:
        """Note how far the sender is, and answer now or when there is something to send."""
        replica = self._replica
        error = self._validate_epoch(request.epoch)
        state = replica.state
        if error is not ErrorCode.NONE or not isinstance(state, Leader):
            leader = replica.leadership
            replica.requests.reply(message, RaftFetchResponse(leader.epoch, leader.leader_id, error=error))
            return
        verdict = replica.log.validate(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(verdict, Diverging | NeedsSnapshot):
            # Its offset is one of another history and acknowledges nothing of ours.
            self._reply(message)
            return
        state.on_fetch(request.replica, request.fetch_offset, replica.log.end_offset, replica.now_ms)
        self._advance_high_watermark(state)
        # A higher high watermark is news, too: without it the follower would apply committed records late.
        up_to_date = request.fetch_offset >= replica.log.end_offset and request.high_watermark >= replica.high_watermark
        if up_to_date and request.max_wait_ms > 0:
            self._park(message, request)
        else:
            self._reply(message)

    def _park(self, message: RaftMessage, request: RaftFetchRequest) -> None:
        replica = self._replica
        deadline_ms = replica.now_ms + min(request.max_wait_ms, replica.timeouts.fetch_timeout_ms)
        # A replica has one fetch in flight: it has given up the older one.
        superseded = replica.parked_fetches.pop(request.replica, None)
        if superseded is not None:
            self._reply(superseded.message)
        replica.parked_fetches[request.replica] = ParkedFetch(message, request.high_watermark, deadline_ms)

    def on_fetch_snapshot(self, message: RaftMessage, request: RaftFetchSnapshotRequest) -> None:
        """Answer with a place in a snapshot; the driver reads the bytes when it sends the response."""
        replica = self._replica
        error = self._validate_epoch(request.epoch)
        leader = replica.leadership
        if error is not ErrorCode.NONE:
            replica.requests.reply(message, RaftFetchSnapshotResponse(leader.epoch, leader.leader_id, error=error))
            return
        if isinstance(replica.state, Leader) and replica.voters.is_voter(request.replica):
            # A voter that loads a snapshot for long does not fetch meanwhile, but it is alive.
            replica.state.fetched_since_check.add(request.replica.id)
        replica.requests.reply(
            message,
            RaftFetchSnapshotResponse(
                leader.epoch, leader.leader_id, request.snapshot_id, request.position, request.max_bytes
            ),
        )

    def _validate_epoch(self, epoch: int) -> ErrorCode:
        replica = self._replica
        if epoch < replica.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > replica.epoch:
            # As in Kafka, no reason to step down: an observer, which has no vote, may fetch with any epoch. A leader
            # that was deposed learns it from a vote, from its successor, or because its followers stay away.
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if replica.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _reply(self, message: RaftMessage) -> None:
        replica, request = self._replica, message.body
        assert isinstance(request, RaftFetchRequest)
        # Validated again, since a parked fetch may be answered long after it came, when the log starts elsewhere.
        verdict = replica.log.validate(request.fetch_offset, request.last_fetched_epoch)
        has_more = request.fetch_offset < replica.log.end_offset
        diverging = verdict.end if isinstance(verdict, Diverging) else None
        snapshot_id = verdict.snapshot_id if isinstance(verdict, NeedsSnapshot) else None
        replica.requests.reply(
            message,
            RaftFetchResponse(
                replica.epoch,
                replica.local.id,
                high_watermark=replica.high_watermark,
                log_start_offset=replica.log.start_offset,
                diverging=diverging,
                snapshot_id=snapshot_id,
                read_from=request.fetch_offset if has_more and diverging is None and snapshot_id is None else None,
            ),
        )

    def _reply_to_parked(self) -> None:
        """Answer all parked fetches: there are new records, or a new high watermark."""
        replica = self._replica
        fetches, replica.parked_fetches = replica.parked_fetches, {}
        for fetch in fetches.values():
            self._reply(fetch.message)

    # the high watermark

    def on_persisted(self) -> None:
        """More of this replica's own log is durable: a leader counts it."""
        if isinstance(self._replica.state, Leader):
            self._advance_high_watermark(self._replica.state)

    def _advance_high_watermark(self, state: Leader) -> None:
        replica = self._replica
        high_watermark = state.high_watermark(replica.log.persisted_offset, replica.high_watermark)
        if high_watermark > replica.high_watermark:
            replica.high_watermark = high_watermark
            self._reply_to_parked()


class FollowerReplication:
    """The follower's and observer's side: fetches, appends, truncates, loads snapshots."""

    def __init__(self, replica: RaftReplica, roles: RoleTransitions, discovery: LeaderDiscovery) -> None:
        self._replica = replica
        self._roles = roles
        self._discovery = discovery

    def poll(self, state: Follower) -> None:
        """Send the next fetch; campaign when the leader has not answered for the fetch timeout."""
        replica = self._replica
        if replica.now_ms >= state.deadline_ms:
            if replica.is_electable:
                self._roles.become_prospective()
                return
            state.deadline_ms = replica.fetch_deadline()
            state.has_fetched, state.leader_silent = False, True
        # A fetch acknowledges everything before its offset: it may leave only when all of that is durable.
        if replica.log.persisted_offset < replica.log.end_offset or replica.requests:
            return
        if state.fetching_snapshot is None:
            replica.send_fetch(self._fetch_target(state))
            return
        request = RaftFetchSnapshotRequest(
            replica.local,
            state.epoch,
            state.fetching_snapshot,
            state.snapshot_position,
            replica.timeouts.snapshot_max_bytes,
        )
        replica.requests.send(state.leader_id, request, replica.now_ms)

    def _fetch_target(self, state: Follower) -> int:
        """The leader; for an observer whose leader is silent, any peer, because an observer starts no election."""
        replica = self._replica
        if replica.is_electable or not state.leader_silent:
            return state.leader_id
        peers = [state.leader_id, *replica.discovery_peers]
        return peers[replica.random.randrange(len(peers))]

    def on_fetch_response(self, message: RaftMessage, response: RaftFetchResponse) -> None:
        """Append what the leader sent, cut back to where the logs agree, or begin to load a snapshot."""
        replica = self._replica
        if not self._discovery.accept(message, response):
            return
        state = replica.state
        if not isinstance(state, Follower) or message.source != state.leader_id:
            return
        state.deadline_ms = replica.fetch_deadline()
        state.has_fetched, state.leader_silent = True, False
        if response.snapshot_id is not None:
            state.fetching_snapshot, state.snapshot_position = response.snapshot_id, 0
        elif response.diverging is not None:
            self._truncate(replica.log.truncation_point(response.diverging))
        else:
            for entry in response.entries:
                replica.append(entry)
            # The leader may have committed more than it has sent so far.
            committed = min(response.high_watermark, replica.log.end_offset)
            replica.high_watermark = max(replica.high_watermark, committed)

    def _truncate(self, end_offset: int) -> None:
        replica = self._replica
        if end_offset < replica.high_watermark:
            raise AssertionError(f"truncation to {end_offset} is below the high watermark {replica.high_watermark}")
        replica.log.truncate_to(end_offset)
        replica.voter_history.truncate_to(end_offset)
        replica.operations.append(Truncate(end_offset))

    def on_fetch_snapshot_response(self, message: RaftMessage, response: RaftFetchSnapshotResponse) -> None:
        """Store the next chunk of the leader's snapshot; the last one replaces the log."""
        replica = self._replica
        before = replica.state
        if not self._discovery.accept(message, response):
            if isinstance(before, Follower):
                # The leader may have deleted this snapshot for a newer one: the next Fetch names the present one.
                before.fetching_snapshot = None
            return
        state = replica.state
        if not isinstance(state, Follower) or message.source != state.leader_id:
            return
        snapshot_id = state.fetching_snapshot
        if response.snapshot_id != snapshot_id or snapshot_id is None:
            state.fetching_snapshot = None
            return
        # Not the next chunk, for example a repeated one: storing it could leave a gap.
        if response.position != state.snapshot_position:
            return
        state.deadline_ms = replica.fetch_deadline()
        state.snapshot_position += len(response.chunk)
        complete = state.snapshot_position >= response.size
        replica.operations.append(StoreSnapshotChunk(snapshot_id, response.position, response.chunk, complete))
        if complete:
            state.fetching_snapshot = None
            replica.log.start_at(snapshot_id)
            replica.high_watermark = max(replica.high_watermark, snapshot_id.offset)
