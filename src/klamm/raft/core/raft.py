"""Raft as KRaft speaks it, without a clock, a disk or a socket: events in, decisions out.

    step(event, now)   something arrived: a message, the disk finished a sync, a snapshot is there
    propose(values)    the leader takes records into the log
    tick(now)          time passed; `deadline_ms` says when the next tick is due
    ready()            what to do about it, or None

Who drives the core must handle each Ready in this order: write `election` durably, do the log operations, send the
messages, deliver what is committed, announce the leader. `Persisted` comes back when the log is on disk; only
then does the core count those records as its own, on the leader for the high watermark, on a follower for the next
Fetch. Replication is pull: followers fetch, and the offset they ask for tells the leader how far they are.
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.core.events import (
    Event,
    Leadership,
    Persisted,
    QuorumTimeouts,
    Randomness,
    Ready,
    Received,
    Resign,
    SnapshotTaken,
    StoreSnapshotChunk,
    Truncate,
    Unreachable,
)
from klamm.raft.core.log_positions import Diverging, LogPositions, NeedsSnapshot
from klamm.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    Entry,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Message,
    OffsetAndEpoch,
    VoteRequest,
    VoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.roles import (
    Candidate,
    ElectionState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
    election_of,
)
from klamm.raft.core.replica import ParkedFetch
from klamm.raft.core.voter_changes import ChangingMember
from klamm.raft.core.voter_history import Configuration, ConfigurationChange, ConfigurationLog

OBSERVER_MEMORY_MS = 300_000
"""How long a leader remembers an observer that stopped fetching."""


class RaftCore(ChangingMember):
    """One member of the quorum: elections from its parents, replication and the driver's interface here."""

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
        configurations: ConfigurationLog | None = None,
        bootstrap: tuple[int, ...] = (),
    ) -> None:
        super().__init__(
            local,
            voters,
            log,
            election=election,
            random=random,
            now_ms=now_ms,
            timeouts=timeouts,
            configurations=configurations,
            bootstrap=bootstrap,
        )
        self._persisted_election = election
        self._announced: Leadership | None = None
        self._reported_high_watermark = -1
        self._poll()

    # the driver's interface

    @property
    def deadline_ms(self) -> int:
        """When the next tick is due."""
        deadlines = [deadline for _, deadline in self._in_flight.values()]
        deadlines += [parked.deadline_ms for parked in self._parked.values()]
        if not (self.is_leader and len(self.voters) == 1):
            deadlines.append(self.state.deadline_ms)
        return min(deadlines, default=self._now + self.timeouts.fetch_timeout_ms)

    def propose(self, payload: tuple[bytes, ...], now_ms: int, append_time_ms: int = 0) -> Entry:
        """Take record values into the log as one batch; NOT_CONTROLLER when another member leads.

        `append_time_ms` is the wall clock's, for the records' timestamps.
        """
        self._now = now_ms
        if not self.is_leader:
            raise KlammError(ErrorCode.NOT_CONTROLLER, f"the leader of epoch {self.epoch} is {self.state.leader_id}")
        entry = self._append_own(payload, len(payload), append_time_ms)
        self._answer_parked()
        return entry

    def step(self, event: Event, now_ms: int) -> None:
        """Something happened."""
        self._now = now_ms
        match event:
            case Received(message):
                self._receive(message)
            case Unreachable(peer, correlation_id, refused):
                self._on_unreachable(peer, correlation_id, refused)
            case Persisted(end_offset):
                self._on_persisted(end_offset)
            case SnapshotTaken(snapshot_id, base):
                self.log.snapshot_id = snapshot_id
                self.log.advance_start(base)
                self.configurations.forget_before(base.offset)
            case Resign():
                self._stopping = True
                if isinstance(self.state, Leader):
                    self._resign(self.state)
        self._poll()

    def tick(self, now_ms: int) -> None:
        """Time passed."""
        self._now = now_ms
        self._poll()

    def ready(self) -> Ready | None:
        """Everything to do since the last call, or None."""
        election = election_of(self.state)
        leadership = self.leadership
        if (
            election == self._persisted_election
            and leadership == self._announced
            and self.high_watermark == self._reported_high_watermark
            and not self._operations
            and not self._outbox
        ):
            return None
        ready = Ready(
            election=election if election != self._persisted_election else None,
            log=tuple(self._operations),
            messages=tuple(self._outbox),
            high_watermark=self.high_watermark,
            leadership=leadership if leadership != self._announced else None,
        )
        self._persisted_election = election
        self._announced = leadership
        self._reported_high_watermark = self.high_watermark
        self._operations.clear()
        self._outbox.clear()
        return ready

    def check(self) -> None:
        """What must hold after every step; simulations call it."""
        log, state = self.log, self.state
        assert log.start_offset <= log.persisted_offset <= log.end_offset, "log positions out of order"
        assert self.high_watermark <= log.end_offset, "high watermark beyond the log"
        assert log.last_epoch <= state.epoch, "log of a later epoch than its member"
        if isinstance(state, Leader):
            assert state.voted == self.local, "leads an epoch in which it voted for another"
            assert state.elected_by.is_majority(state.granting_voters), "leads without a majority"
            assert state.voters == self.voters, "a leader counts other voters than its log names"

    def adopt(self, snapshot_id: OffsetAndEpoch, configuration: Configuration) -> None:
        """Count the voters that a snapshot from the leader names."""
        self.configurations.start_at(snapshot_id.offset, configuration)

    @property
    def idle(self) -> bool:
        """Whether nothing happens here by the mere passing of time: a leader alone, with nobody waiting."""
        alone = self.is_leader and len(self.voters) == 1 and self.is_voter
        return alone and not self._in_flight and not self._parked

    # time

    def _poll(self) -> None:
        """Do what is due now. A transition may make the next one due, but never more than a few in a row."""
        self._forget_expired_requests()
        for _ in range(4):
            before = self.state
            match before:
                case Unattached():
                    self._poll_unattached(before)
                case Prospective():
                    self._poll_prospective(before)
                case Candidate():
                    self._poll_candidate(before)
                case Leader():
                    self._poll_leader(before)
                case Follower():
                    self._poll_follower(before)
                case Resigned():
                    self._poll_resigned(before)
            if self.state is before:
                return

    def _poll_unattached(self, state: Unattached) -> None:
        if self.may_stand and (self._now >= state.deadline_ms or self.voters.is_only_voter(self.local)):
            self._become_prospective()
            return
        if self._now >= state.deadline_ms:
            state.deadline_ms = self._election_deadline()
        guides = self._guides
        if guides and not self._in_flight:
            self._send_fetch(guides[self._random.randrange(len(guides))])

    def _poll_prospective(self, state: Prospective) -> None:
        if state.ballot.won:
            self._become_candidate()
        elif state.ballot.lost or self._now >= state.deadline_ms or self._stopping:
            if state.leader_id is not None and self._may_lead(state.leader_id):
                self._become_follower(state.epoch, state.leader_id)
            else:
                self._become_unattached(state.epoch, state.voted, state.leader_id)
        else:
            self._ask_for_votes(state.ballot, pre_vote=True)

    def _poll_candidate(self, state: Candidate) -> None:
        if state.ballot.won:
            self._become_leader(state.ballot)
        elif self._now >= state.deadline_ms:
            self._become_prospective()
        else:
            self._ask_for_votes(state.ballot, pre_vote=False)

    def _poll_leader(self, state: Leader) -> None:
        if not self.is_voter and self.high_watermark > self.configurations.offset:
            self._resign(state)  # the quorum has decided to go on without this leader
            return
        if self._now >= state.check_quorum_deadline_ms:
            if not state.majority_fetched():
                self._resign(state)
                return
            state.fetched_since_check.clear()
            state.check_quorum_deadline_ms = self._check_quorum_deadline()
            state.forget_silent_observers(self._now - OBSERVER_MEMORY_MS)
        if self._now >= state.begin_epoch_deadline_ms:
            interval = self.timeouts.fetch_timeout_ms // 2
            state.begin_epoch_deadline_ms = self._now + interval
            for peer in self.peers:
                progress = state.progress[peer]
                if not progress.acknowledged_epoch or progress.last_fetch_ms < self._now - interval:
                    self._request(peer, BeginQuorumEpochRequest(self.local.id, state.epoch))
        for replica in [replica for replica, parked in self._parked.items() if self._now >= parked.deadline_ms]:
            self._answer_fetch(self._parked.pop(replica).message)

    def _poll_follower(self, state: Follower) -> None:
        if self._now >= state.deadline_ms:
            if self.may_stand:
                self._become_prospective()
                return
            state.deadline_ms = self._fetch_deadline()
            state.has_fetched, state.leader_silent = False, True
        if self.log.persisted_offset < self.log.end_offset or self._in_flight:
            return
        if state.fetching_snapshot is None:
            self._send_fetch(self._fetch_source(state))
            return
        limit = self.timeouts.snapshot_max_bytes
        self._request(
            state.leader_id,
            FetchSnapshotRequest(self.local, state.epoch, state.fetching_snapshot, state.snapshot_position, limit),
        )

    def _fetch_source(self, state: Follower) -> int:
        """The leader; for an observer whose leader has been silent, any voter, who knows the new one."""
        if self.may_stand or not state.leader_silent:
            return state.leader_id
        guides = [state.leader_id, *self._guides]
        return guides[self._random.randrange(len(guides))]

    def _poll_resigned(self, state: Resigned) -> None:
        if self._stopping:
            pass
        elif self.voters.is_only_voter(self.local):
            self._become_prospective()
            return
        elif self._now >= state.deadline_ms:
            self._become_unattached(state.epoch + 1)
            return
        for peer in sorted(state.unacknowledged):
            self._request(peer, EndQuorumEpochRequest(self.local.id, state.epoch, state.preferred_successors))

    # messages

    def _receive(self, message: Message) -> None:
        body = message.body
        match body:
            case VoteRequest():
                self._on_vote_request(message, body)
            case BeginQuorumEpochRequest():
                self._on_begin_quorum_epoch(message, body)
            case EndQuorumEpochRequest():
                self._on_end_quorum_epoch(message, body)
            case FetchRequest():
                self._on_fetch(message, body)
            case FetchSnapshotRequest():
                self._on_fetch_snapshot(message, body)
            case _ if not self._answers_request(message):
                return
            case VoteResponse():
                self._on_vote_response(message, body)
            case BeginQuorumEpochResponse():
                self._on_begin_quorum_epoch_response(message, body)
            case EndQuorumEpochResponse():
                self._on_end_quorum_epoch_response(message, body)
            case FetchResponse():
                self._on_fetch_response(message, body)
            case FetchSnapshotResponse():
                self._on_fetch_snapshot_response(message, body)

    # replication, the leader's side

    def _on_fetch(self, message: Message, request: FetchRequest) -> None:
        error = self._refuse_fetch(request.epoch)
        state = self.state
        if error is not ErrorCode.NONE or not isinstance(state, Leader):
            leader = self.leadership
            self._reply(message, FetchResponse(leader.epoch, leader.leader_id, error=error))
            return
        verdict = self.log.validate(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(verdict, Diverging | NeedsSnapshot):
            self._answer_fetch(message)
            return
        state.on_fetch(request.replica, request.fetch_offset, self.log.end_offset, self._now)
        self._advance_high_watermark(state)
        nothing_new = request.fetch_offset >= self.log.end_offset and request.high_watermark >= self.high_watermark
        if nothing_new and request.max_wait_ms > 0:
            deadline = self._now + min(request.max_wait_ms, self.timeouts.fetch_timeout_ms)
            forgotten = self._parked.pop(request.replica, None)
            if forgotten is not None:
                self._answer_fetch(forgotten.message)
            self._parked[request.replica] = ParkedFetch(message, request.high_watermark, deadline)
        else:
            self._answer_fetch(message)

    def _refuse_fetch(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            self._become_unattached(epoch)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _answer_fetch(self, message: Message) -> None:
        request = message.body
        assert isinstance(request, FetchRequest)
        verdict = self.log.validate(request.fetch_offset, request.last_fetched_epoch)
        has_more = request.fetch_offset < self.log.end_offset
        diverging = verdict.end if isinstance(verdict, Diverging) else None
        snapshot_id = verdict.snapshot_id if isinstance(verdict, NeedsSnapshot) else None
        self._reply(
            message,
            FetchResponse(
                self.epoch,
                self.local.id,
                high_watermark=self.high_watermark,
                log_start_offset=self.log.start_offset,
                diverging=diverging,
                snapshot_id=snapshot_id,
                read_from=request.fetch_offset if has_more and diverging is None and snapshot_id is None else None,
            ),
        )

    def _change(self, change: ConfigurationChange) -> Entry:
        entry = super()._change(change)
        self._answer_parked()
        return entry

    def _answer_parked(self) -> None:
        """Something new: let every waiting replica have it."""
        parked, self._parked = self._parked, {}
        for waiting in parked.values():
            self._answer_fetch(waiting.message)

    def _advance_high_watermark(self, state: Leader) -> None:
        new = state.high_watermark(self.log.persisted_offset, self.high_watermark)
        if new > self.high_watermark:
            self.high_watermark = new
            self._answer_parked()

    def _on_persisted(self, end_offset: int) -> None:
        self.log.persisted_offset = max(self.log.persisted_offset, min(end_offset, self.log.end_offset))
        if isinstance(self.state, Leader):
            self._advance_high_watermark(self.state)

    def _on_fetch_snapshot(self, message: Message, request: FetchSnapshotRequest) -> None:
        error = self._refuse_fetch(request.epoch)
        leader = self.leadership
        if error is not ErrorCode.NONE:
            self._reply(message, FetchSnapshotResponse(leader.epoch, leader.leader_id, error=error))
            return
        if isinstance(self.state, Leader) and self.voters.is_voter(request.replica):
            self.state.fetched_since_check.add(request.replica.id)
        self._reply(
            message,
            FetchSnapshotResponse(
                leader.epoch, leader.leader_id, request.snapshot_id, request.position, request.max_bytes
            ),
        )

    # replication, the follower's side

    def _on_fetch_response(self, message: Message, response: FetchResponse) -> None:
        if not self._follow_answer(message, response):
            return
        state = self.state
        if not isinstance(state, Follower) or message.source != state.leader_id:
            return
        state.deadline_ms = self._fetch_deadline()
        state.has_fetched, state.leader_silent = True, False
        if response.snapshot_id is not None:
            state.fetching_snapshot, state.snapshot_position = response.snapshot_id, 0
        elif response.diverging is not None:
            self._truncate(self.log.truncation_point(response.diverging))
        else:
            for entry in response.entries:
                self._append(entry)
            self._raise_high_watermark(response.high_watermark)

    def _truncate(self, end_offset: int) -> None:
        if end_offset < self.high_watermark:
            raise AssertionError(f"asked to truncate to {end_offset}, below the high watermark {self.high_watermark}")
        self.log.truncate_to(end_offset)
        self.configurations.truncate_to(end_offset)
        self._operations.append(Truncate(end_offset))

    def _raise_high_watermark(self, leader_high_watermark: int) -> None:
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, self.log.end_offset))

    def _on_fetch_snapshot_response(self, message: Message, response: FetchSnapshotResponse) -> None:
        before = self.state
        if not self._follow_answer(message, response):
            if isinstance(before, Follower):
                before.fetching_snapshot = None
            return
        state = self.state
        if not isinstance(state, Follower) or message.source != state.leader_id:
            return
        snapshot_id = state.fetching_snapshot
        if response.snapshot_id != snapshot_id or snapshot_id is None:
            state.fetching_snapshot = None
            return
        if response.position != state.snapshot_position:
            return
        state.deadline_ms = self._fetch_deadline()
        state.snapshot_position += len(response.chunk)
        complete = state.snapshot_position >= response.size
        self._operations.append(StoreSnapshotChunk(snapshot_id, response.position, response.chunk, complete))
        if complete:
            state.fetching_snapshot = None
            self.log.start_at(snapshot_id)
            self.high_watermark = max(self.high_watermark, snapshot_id.offset)
