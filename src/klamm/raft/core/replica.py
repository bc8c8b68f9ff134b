"""A quorum member between two events: its state, its timers, what it has to send and to write.

Elections (`elections.py`) and replication (`core.py`) are built on it. Every change of state goes through
`_transition_to`, every request through `_request`, so both rules live in one place: only the transitions of the
table, and one request in flight per peer.
"""

from dataclasses import dataclass

from klamm.model.errors import ErrorCode
from klamm.raft.core.events import Append, Leadership, LogOperation, QuorumTimeouts, Randomness
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import (
    Entry,
    FetchRequest,
    FetchResponse,
    LeaderChange,
    Message,
    Payload,
    Request,
    Response,
)
from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.roles import (
    Ballot,
    Candidate,
    ElectionState,
    Follower,
    Leader,
    MemberState,
    Prospective,
    Resigned,
    Role,
    Unattached,
    check_transition,
)
from klamm.raft.core.voter_history import Configuration, ConfigurationChange, ConfigurationLog

NO_REQUEST = -1
"""The correlation id that no request has: a peer that is left alone for a moment."""


@dataclass(slots=True)
class ParkedFetch:
    """A fetch at the end of the log that waits for something new."""

    message: Message
    high_watermark: int
    deadline_ms: int


class Member:
    """State, transitions and timers of one replica: a voter, or an observer when its key is not among the voters."""

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
        self.local = local
        self.configurations = configurations or ConfigurationLog(Configuration(voters))
        self.bootstrap = bootstrap
        """Peers without a known node id, asked for the leader by who does not know it."""
        self.log = log
        self.timeouts = timeouts
        self.high_watermark = log.snapshot_id.offset if log.snapshot_id else 0
        """Every offset below it is committed; what a snapshot contains is committed by definition."""
        self._random = random
        self._now = now_ms
        self._stopping = False
        # Not from zero: an answer to a request of our former life must not pass for one to this life's.
        self._next_correlation_id = random.randrange(2**30)
        self._in_flight: dict[int, tuple[int, int]] = {}
        self._parked: dict[ReplicaKey, ParkedFetch] = {}
        self._operations: list[LogOperation] = []
        self._outbox: list[Message] = []
        self.state: MemberState = self._initial_state(election)

    @property
    def epoch(self) -> int:
        """The epoch this member is in."""
        return self.state.epoch

    @property
    def leadership(self) -> Leadership:
        """The leader as far as this member knows; a resigned one no longer counts."""
        state = self.state
        if state.role is Role.RESIGNED or (state.leader_id == self.local.id and state.role is not Role.LEADER):
            return Leadership(None, state.epoch)
        return Leadership(state.leader_id, state.epoch)

    @property
    def is_leader(self) -> bool:
        """Whether proposals are taken here."""
        return self.state.role is Role.LEADER

    @property
    def voters(self) -> VoterSet:
        """Who votes, as far as this member's log goes."""
        return self.configurations.latest.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica's vote counts."""
        return self.voters.is_voter(self.local)

    @property
    def may_stand(self) -> bool:
        """Whether this replica stands for election.

        One that is being removed still does until that is committed: its log may be the only one that is good enough
        (Ongaro's thesis, section 4.2.2). It then counts the votes of others alone, commits, and resigns.
        """
        if self._stopping:
            return False
        undecided = self.configurations.offset >= self.high_watermark
        return self.is_voter or (undecided and self.configurations.before.voters.is_voter(self.local))

    @property
    def peers(self) -> list[int]:
        """The voters besides this replica."""
        return [voter_id for voter_id in self.voters.ids if voter_id != self.local.id]

    def _may_lead(self, leader_id: int | None) -> bool:
        """Whether to believe that somebody leads: voters change, and our log or file may not know them yet."""
        return leader_id is not None and leader_id != self.local.id

    @property
    def _guides(self) -> list[int]:
        """Whom to ask who leads."""
        return [*self.peers, *self.bootstrap]

    # states

    def _initial_state(self, election: ElectionState) -> MemberState:
        """Where a restart resumes: never with less than the disk remembers, never as leader of an old epoch."""
        epoch = max(election.epoch, self.log.last_epoch)
        if epoch > election.epoch:
            return Unattached(epoch, self._first_deadline())
        leader_id, voted = election.leader_id, election.voted
        if leader_id == self.local.id and self.is_voter:
            return Resigned(epoch, self._election_deadline(), leader_id, set(self.peers), (), voted)
        if leader_id is not None and leader_id != self.local.id and leader_id in self.voters:
            return Follower(epoch, self._fetch_deadline(), leader_id, voted)
        return Unattached(epoch, self._first_deadline(), voted, leader_id)

    def _transition_to(self, state: MemberState) -> None:
        check_transition(self.state, state)
        self.state = state
        self._in_flight.clear()
        for parked in self._parked.values():
            leader = self.leadership
            self._reply(
                parked.message,
                FetchResponse(leader.epoch, leader.leader_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            )
        self._parked.clear()

    def _become_unattached(self, epoch: int, voted: ReplicaKey | None = None, leader_id: int | None = None) -> None:
        self._transition_to(Unattached(epoch, self._election_deadline(), voted, leader_id))

    def _become_follower(self, epoch: int, leader_id: int) -> None:
        voted = self.state.voted if epoch == self.epoch else None
        self._transition_to(Follower(epoch, self._fetch_deadline(), leader_id, voted))

    def _become_prospective(self) -> None:
        old = self.state
        ballot = Ballot(self.voters)
        ballot.record(self.local.id, granted=True)
        self._transition_to(Prospective(old.epoch, self._election_deadline(), ballot, old.voted, old.leader_id))

    def _become_candidate(self) -> None:
        ballot = Ballot(self.voters)
        ballot.record(self.local.id, granted=True)
        self._transition_to(Candidate(self.epoch + 1, self._election_deadline(), ballot, self.local))

    def _become_leader(self, ballot: Ballot) -> None:
        leader = Leader(
            epoch=self.epoch,
            local=self.local,
            voters=self.voters,
            epoch_start_offset=self.log.end_offset,
            granting_voters=tuple(sorted(ballot.granted)),
            check_quorum_deadline_ms=self._check_quorum_deadline(),
            begin_epoch_deadline_ms=self._now,
            voted=self.local,
        )
        self._transition_to(leader)
        granting = tuple(voter.key for voter in self.voters if voter.id in ballot.granted)
        self._append_own(LeaderChange(self.local.id, tuple(voter.key for voter in self.voters), granting), 1)
        known = self.configurations.latest
        if known.dynamic and self.configurations.offset < 0:
            # The first leader writes down what its folder was formatted with: the others learn it from the log.
            change = ConfigurationChange(known.voters, known.kraft_version)
            self._append_own(change, change.record_count)

    def _resign(self, leader: Leader) -> None:
        peers, successors = set(self.peers), leader.successors()
        self._transition_to(
            Resigned(leader.epoch, self._election_deadline(), self.local.id, peers, successors, leader.voted)
        )

    def _append_own(self, payload: Payload, count: int, append_time_ms: int = 0) -> Entry:
        base_offset = self.log.end_offset
        change = payload if isinstance(payload, ConfigurationChange) else None
        entry = Entry(base_offset, base_offset + count - 1, self.epoch, payload, append_time_ms, change)
        self._append(entry)
        return entry

    def _append(self, entry: Entry) -> None:
        self.log.append(entry.base_offset, entry.end_offset, entry.epoch)
        self._operations.append(Append(entry))
        if entry.change is not None:
            self.configurations.append(entry.base_offset, entry.change)
            if isinstance(self.state, Leader):
                self.state.change_voters(self.voters)

    # timers

    def _election_deadline(self) -> int:
        timeout = self.timeouts.election_timeout_ms
        return self._now + timeout + self._random.randrange(max(timeout, 1))

    def _first_deadline(self) -> int:
        """A voter that has just started asks for pre-votes soon: they disturb nobody, and nobody waits for nothing."""
        ids = self.voters.ids
        if self.local.id not in ids:
            return self._election_deadline()
        step = max(self.timeouts.election_timeout_ms // 20, 1)
        return self._now + step * ids.index(self.local.id) + self._random.randrange(step)

    def _fetch_deadline(self) -> int:
        return self._now + self.timeouts.fetch_timeout_ms

    def _check_quorum_deadline(self) -> int:
        return self._now + self.timeouts.fetch_timeout_ms * 3 // 2

    # messages

    def _forget_expired_requests(self) -> None:
        """An answer that has not come within the request timeout is no longer waited for."""
        for peer in [peer for peer, (_, deadline) in self._in_flight.items() if self._now >= deadline]:
            del self._in_flight[peer]

    def _request(self, peer: int, body: Request) -> None:
        """Send a request unless one is in flight; the next poll tries again."""
        if peer in self._in_flight:
            return
        self._next_correlation_id += 1
        self._in_flight[peer] = (self._next_correlation_id, self._now + self.timeouts.request_timeout_ms)
        self._outbox.append(Message(self.local.id, peer, self._next_correlation_id, body))

    def _pause(self, peer: int) -> None:
        """Ask this peer nothing for a moment: it could not be reached, or has just refused."""
        self._in_flight[peer] = (NO_REQUEST, self._now + self.timeouts.retry_backoff_ms)

    def _answers_request(self, message: Message) -> bool:
        """Whether a response is the one awaited; an old or repeated one says nothing any more."""
        pending = self._in_flight.get(message.source)
        if pending is None or pending[0] != message.correlation_id:
            return False
        del self._in_flight[message.source]
        return True

    def _reply(self, message: Message, body: Response) -> None:
        self._outbox.append(Message(self.local.id, message.source, message.correlation_id, body))

    def _send_fetch(self, peer: int) -> None:
        log, timeouts = self.log, self.timeouts
        self._request(
            peer,
            FetchRequest(
                self.local, self.epoch, log.end_offset, log.last_epoch, self.high_watermark, timeouts.fetch_max_wait_ms
            ),
        )
