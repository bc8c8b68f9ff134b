"""Raft in KRaft's form as a state machine without I/O: events in, decisions out.

    step(event, now)   something arrived: a message, a finished sync, a snapshot
    propose(values)    the leader takes records into the log
    tick(now)          time passed; `deadline_ms` is when the next tick is due
    ready()            what to do about it, or None

The driver must handle each Ready in this order: write `election` durably, do the log operations, send the messages,
deliver what is committed, announce the leader. `Persisted` comes back when the log is on disk. Only then does the core
count those records: on the leader for the high watermark, on a follower for the offset of its next Fetch.
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.core.elections import Elections
from klamm.raft.core.events import (
    Event,
    Leadership,
    PeerUnreachable,
    Persisted,
    QuorumTimeouts,
    Randomness,
    Ready,
    Received,
    Resign,
    SnapshotTaken,
)
from klamm.raft.core.leader_discovery import LeaderDiscovery
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import (
    Entry,
    OffsetAndEpoch,
    RaftBeginQuorumEpochRequest,
    RaftBeginQuorumEpochResponse,
    RaftEndQuorumEpochRequest,
    RaftEndQuorumEpochResponse,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftFetchSnapshotRequest,
    RaftFetchSnapshotResponse,
    RaftMessage,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.replica import RaftReplica
from klamm.raft.core.replication import FollowerReplication, LeaderReplication
from klamm.raft.core.role_transitions import RoleTransitions
from klamm.raft.core.roles import (
    Candidate,
    ElectionState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
    election_of,
)
from klamm.raft.core.voter_changes import VoterChanges
from klamm.raft.core.voter_history import VoterConfiguration, VoterHistory

MAX_TRANSITIONS = 4
"""The most roles one poll goes through: resigned, prospective, candidate, leader for a sole voter."""


class RaftCore:
    """One member of the quorum: dispatches events to its parts, and collects what they decided."""

    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        log: LogPositions,
        *,
        election: ElectionState,
        random: Randomness,
        now_ms: int,
        timeouts: QuorumTimeouts = QuorumTimeouts(),  # noqa: B008 - frozen
        voter_history: VoterHistory | None = None,
        bootstrap: tuple[int, ...] = (),
    ) -> None:
        self.replica = RaftReplica(
            local,
            log,
            voter_history or VoterHistory(VoterConfiguration(voters)),
            election=election,
            random=random,
            now_ms=now_ms,
            timeouts=timeouts,
            bootstrap=bootstrap,
        )
        self._roles = RoleTransitions(self.replica)
        discovery = LeaderDiscovery(self.replica, self._roles)
        self._elections = Elections(self.replica, self._roles, discovery)
        self._leader = LeaderReplication(self.replica)
        self._follower = FollowerReplication(self.replica, self._roles, discovery)
        self._voter_changes = VoterChanges(self.replica, self._leader)
        self._persisted_election = election
        self._announced: Leadership | None = None
        self._reported_high_watermark = -1
        self._poll()

    # facts

    @property
    def local(self) -> ReplicaKey:
        """This replica."""
        return self.replica.local

    @property
    def state(self) -> RoleState:
        """The role this replica has, with what belongs to it."""
        return self.replica.state

    @property
    def log(self) -> LogPositions:
        """Where the log starts, ends and is durable."""
        return self.replica.log

    @property
    def epoch(self) -> int:
        """The epoch this replica is in."""
        return self.replica.epoch

    @property
    def high_watermark(self) -> int:
        """Every offset below it is committed."""
        return self.replica.high_watermark

    @property
    def leadership(self) -> Leadership:
        """The leader according to this replica."""
        return self.replica.leadership

    @property
    def is_leader(self) -> bool:
        """Whether proposals are accepted here."""
        return self.replica.is_leader

    @property
    def voters(self) -> VoterSet:
        """The voters according to this replica's log."""
        return self.replica.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica is a voter."""
        return self.replica.is_voter

    @property
    def voter_history(self) -> VoterHistory:
        """The voters at every offset of the log."""
        return self.replica.voter_history

    @property
    def deadline_ms(self) -> int:
        """When the next tick is due."""
        replica = self.replica
        deadlines = replica.requests.deadlines_ms
        deadlines += [fetch.deadline_ms for fetch in replica.parked_fetches.values()]
        # A sole voter has no majority to check and no other voter to announce its epoch to.
        if not (replica.is_leader and len(replica.voters) == 1):
            deadlines.append(replica.state.deadline_ms)
        return min(deadlines, default=replica.now_ms + replica.timeouts.fetch_timeout_ms)

    @property
    def idle(self) -> bool:
        """Whether no tick is needed: a sole voter that leads, with no request in flight and no fetch parked."""
        replica = self.replica
        sole_leader = replica.is_leader and len(replica.voters) == 1 and replica.is_voter
        return sole_leader and not replica.requests and not replica.parked_fetches

    # events

    def step(self, event: Event, now_ms: int) -> None:
        """Handle one event."""
        replica = self.replica
        replica.now_ms = now_ms
        match event:
            case Received(message):
                self._receive(message)
            case PeerUnreachable(peer, correlation_id, refused):
                self._elections.on_unreachable(peer, correlation_id, refused)
            case Persisted(end_offset):
                # The log may have been cut back while it was synced.
                durable = min(end_offset, replica.log.end_offset)
                replica.log.persisted_offset = max(replica.log.persisted_offset, durable)
                self._leader.on_persisted()
            case SnapshotTaken(snapshot_id, base):
                replica.log.snapshot_id = snapshot_id
                replica.log.advance_start(base)
                replica.voter_history.forget_before(base.offset)
            case Resign():
                replica.stopping = True
                self.resign()
        self._poll()

    def tick(self, now_ms: int) -> None:
        """Do what is due at `now_ms`."""
        self.replica.now_ms = now_ms
        self._poll()

    def ready(self) -> Ready | None:
        """Return everything decided since the last call, or None."""
        replica = self.replica
        election = election_of(replica.state)
        leadership = replica.leadership
        if (
            election == self._persisted_election
            and leadership == self._announced
            and replica.high_watermark == self._reported_high_watermark
            and not replica.operations
            and not replica.requests.has_outgoing
        ):
            return None
        ready = Ready(
            election=election if election != self._persisted_election else None,
            log=tuple(replica.operations),
            messages=replica.requests.take_outgoing(),
            high_watermark=replica.high_watermark,
            leadership=leadership if leadership != self._announced else None,
        )
        self._persisted_election = election
        self._announced = leadership
        self._reported_high_watermark = replica.high_watermark
        replica.operations.clear()
        return ready

    # commands of the driver

    def propose(self, payload: tuple[bytes, ...], now_ms: int, append_time_ms: int = 0) -> Entry:
        """Take record values into the log as one batch; NOT_CONTROLLER when another member leads.

        `append_time_ms` is the wall clock's, for the timestamps of the records.
        """
        replica = self.replica
        replica.now_ms = now_ms
        if not replica.is_leader:
            text = f"the leader of epoch {replica.epoch} is {replica.state.leader_id}"
            raise KlammError(ErrorCode.NOT_CONTROLLER, text)
        return self._leader.append(payload, len(payload), append_time_ms)

    def resign(self) -> None:
        """Give up leadership, if this replica has it."""
        if isinstance(self.replica.state, Leader):
            self._roles.resign(self.replica.state)

    def install_snapshot(self, snapshot_id: OffsetAndEpoch, configuration: VoterConfiguration) -> None:
        """Take over the voters of a snapshot that was fetched from the leader."""
        self.replica.voter_history.start_at(snapshot_id.offset, configuration)

    def add_voter(self, voter: Voter, now_ms: int) -> Entry:
        """Make a voter of an observer that has caught up; KlammError names the rule that forbids it."""
        self.replica.now_ms = now_ms
        return self._voter_changes.add_voter(voter)

    def remove_voter(self, key: ReplicaKey, now_ms: int) -> Entry:
        """Make an observer of a voter."""
        self.replica.now_ms = now_ms
        return self._voter_changes.remove_voter(key)

    def update_voter(self, voter: Voter, now_ms: int) -> Entry | None:
        """Take a voter's directory, address and versions; None when nothing has to be written."""
        self.replica.now_ms = now_ms
        return self._voter_changes.update_voter(voter)

    def raise_kraft_version(self, level: int, own: Voter, now_ms: int, *, validate_only: bool = False) -> Entry | None:
        """Make static voters part of the log; None when nothing has to be written."""
        self.replica.now_ms = now_ms
        return self._voter_changes.raise_kraft_version(level, own, validate_only=validate_only)

    def check(self) -> None:
        """Raise AssertionError unless the invariants of a single member hold; simulations call it after every step."""
        log, state = self.replica.log, self.replica.state
        assert log.start_offset <= log.persisted_offset <= log.end_offset, "log positions out of order"
        assert self.replica.high_watermark <= log.end_offset, "high watermark beyond the log"
        assert log.last_epoch <= state.epoch, "log of a later epoch than its member"
        if isinstance(state, Leader):
            assert state.voted == self.replica.local, "leads an epoch in which it voted for another"
            assert state.elected_by.is_majority(state.granting_voters), "leads without a majority"
            assert state.voters == self.replica.voters, "a leader counts other voters than its log names"

    # dispatch

    def _poll(self) -> None:
        """Do what is due now; a transition may make the next one due at once."""
        self.replica.requests.expire(self.replica.now_ms)
        for _ in range(MAX_TRANSITIONS):
            state = self.replica.state
            match state:
                case Unattached():
                    self._elections.poll_unattached(state)
                case Prospective():
                    self._elections.poll_prospective(state)
                case Candidate():
                    self._elections.poll_candidate(state)
                case Leader():
                    self._poll_leader(state)
                case Follower():
                    self._follower.poll(state)
                case Resigned():
                    self._elections.poll_resigned(state)
            if self.replica.state is state:
                return

    def _poll_leader(self, state: Leader) -> None:
        if self._leader.must_resign(state):
            self._roles.resign(state)
            return
        self._elections.announce_epoch(state)
        self._leader.expire_parked()

    def _receive(self, message: RaftMessage) -> None:
        body = message.body
        match body:
            case RaftVoteRequest():
                self._elections.on_vote_request(message, body)
            case RaftBeginQuorumEpochRequest():
                self._elections.on_begin_quorum_epoch(message, body)
            case RaftEndQuorumEpochRequest():
                self._elections.on_end_quorum_epoch(message, body)
            case RaftFetchRequest():
                self._leader.on_fetch(message, body)
            case RaftFetchSnapshotRequest():
                self._leader.on_fetch_snapshot(message, body)
            # Everything below is a response: a late or repeated one says nothing about the present.
            case _ if not self.replica.requests.complete(message):
                return
            case RaftVoteResponse():
                self._elections.on_vote_response(message, body)
            case RaftBeginQuorumEpochResponse():
                self._elections.on_begin_quorum_epoch_response(message, body)
            case RaftEndQuorumEpochResponse():
                self._elections.on_end_quorum_epoch_response(message, body)
            case RaftFetchResponse():
                self._follower.on_fetch_response(message, body)
            case RaftFetchSnapshotResponse():
                self._follower.on_fetch_snapshot_response(message, body)
