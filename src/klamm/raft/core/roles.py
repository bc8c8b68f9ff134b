"""The states of a quorum member, what each must remember, and which may follow which.

    Unattached   knows an epoch, follows nobody; may have voted.
    Prospective  has missed its leader and asks, with pre-votes, whether an election would succeed.
    Candidate    has taken a new epoch, voted for itself and asks for votes.
    Leader       won a majority of its epoch.
    Follower     knows the leader of its epoch and fetches from it.
    Resigned     was leader of this epoch and no longer is: it may neither vote nor lead in it again.

Only TRANSITIONS may happen. Epochs never go back, and a step into another epoch forgets the vote of the last one.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet, high_watermark


class Role(Enum):
    """The name of a state, as DescribeQuorum and the log lines speak of it."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


TRANSITIONS: dict[Role, frozenset[Role]] = {
    # a higher epoch, or a vote given; the election timeout; a leader made itself known
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    # a higher epoch or pre-votes lost; a vote given; pre-votes won; a leader made itself known
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.FOLLOWER}),
    # a higher epoch; the election timeout; votes won; another leader made itself known
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.LEADER, Role.FOLLOWER}),
    # a higher epoch; shutdown or a lost majority; the leader of a higher epoch
    Role.LEADER: frozenset({Role.UNATTACHED, Role.RESIGNED, Role.FOLLOWER}),
    # a higher epoch; the fetch timeout; the leader of a higher epoch
    Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    # a higher epoch or the election timeout; alone in the quorum; the leader of a higher epoch
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
}


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What must survive a crash: the epoch, who leads it, whom we voted for in it."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


@dataclass(slots=True)
class Unattached:
    """Waits for a leader to speak, or for the election timeout."""

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None = None
    leader_id: int | None = None
    role: Role = field(default=Role.UNATTACHED, init=False)


@dataclass(slots=True)
class Ballot:
    """Votes of one round, counted against the voters of its start."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, granted: bool) -> None:
        """Count one answer; the first of a voter holds."""
        if voter_id in self.voters and voter_id not in self.granted and voter_id not in self.rejected:
            (self.granted if granted else self.rejected).add(voter_id)

    @property
    def unrecorded(self) -> list[int]:
        """Voters that have not answered."""
        return [voter_id for voter_id in self.voters.ids if voter_id not in self.granted | self.rejected]

    @property
    def won(self) -> bool:
        """A majority said yes."""
        return self.voters.is_majority(self.granted)

    @property
    def lost(self) -> bool:
        """A majority can no longer be reached."""
        return not self.voters.can_still_reach_majority(self.rejected)


@dataclass(slots=True)
class Prospective:
    """Asks for pre-votes in its current epoch; changes nothing at anybody."""

    epoch: int
    deadline_ms: int
    ballot: Ballot
    voted: ReplicaKey | None = None
    leader_id: int | None = None
    role: Role = field(default=Role.PROSPECTIVE, init=False)


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch of its own making."""

    epoch: int
    deadline_ms: int
    ballot: Ballot
    voted: ReplicaKey
    leader_id: None = field(default=None, init=False)
    role: Role = field(default=Role.CANDIDATE, init=False)


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; a silence of the fetch timeout makes it Prospective."""

    epoch: int
    deadline_ms: int
    leader_id: int
    voted: ReplicaKey | None = None
    has_fetched: bool = False
    leader_silent: bool = False
    """Whether an observer should ask others who leads."""
    fetching_snapshot: OffsetAndEpoch | None = None
    snapshot_position: int = 0
    role: Role = field(default=Role.FOLLOWER, init=False)


@dataclass(slots=True)
class Resigned:
    """Tells the voters that its epoch is over, and waits one election timeout for another leader."""

    epoch: int
    deadline_ms: int
    leader_id: int
    unacknowledged: set[int]
    preferred_successors: tuple[int, ...]
    voted: ReplicaKey | None = None
    role: Role = field(default=Role.RESIGNED, init=False)


@dataclass(slots=True)
class ReplicaProgress:
    """What the leader knows of one replica from its fetches."""

    key: ReplicaKey
    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_last_fetch: int = -1
    acknowledged_epoch: bool = False

    def is_caught_up(self, leader_end_offset: int, now_ms: int, within_ms: int) -> bool:
        """Whether it holds all of the log, or did a moment ago and still fetches."""
        recently = now_ms - self.last_caught_up_ms <= within_ms and self.last_caught_up_ms >= 0
        return self.end_offset >= leader_end_offset or recently

    def on_fetch(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """The replica holds everything before `fetch_offset`."""
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif 0 < self.leader_end_at_last_fetch <= fetch_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = fetch_offset
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end_offset
        self.acknowledged_epoch = True


@dataclass(slots=True)
class Leader:
    """Counts how far the voters are, and whether a majority of them still listens."""

    epoch: int
    local: ReplicaKey
    voters: VoterSet
    epoch_start_offset: int
    granting_voters: tuple[int, ...]
    check_quorum_deadline_ms: int
    begin_epoch_deadline_ms: int
    progress: dict[int, ReplicaProgress] = field(default_factory=dict)
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    fetched_since_check: set[int] = field(default_factory=set)
    reported_voters: dict[int, Voter] = field(default_factory=dict)
    """Fixed voters as they told this leader of themselves: directory, address, versions."""
    voted: ReplicaKey | None = None
    elected_by: VoterSet = field(init=False)
    role: Role = field(default=Role.LEADER, init=False)

    def __post_init__(self) -> None:
        self.elected_by = self.voters
        for voter in self.voters:
            self.progress.setdefault(voter.id, ReplicaProgress(voter.key))

    def change_voters(self, voters: VoterSet) -> None:
        """Count these from now on; what is known of a replica is kept when it changes sides."""
        before, self.progress, self.voters = self.progress, {}, voters
        for voter in voters:
            known = before.pop(voter.id, None)
            if known is None or not known.key.same_replica(voter.key):
                known = self.observers.pop(voter.key, None) or ReplicaProgress(voter.key)
            known.key = voter.key
            self.progress[voter.id] = known
        for removed in before.values():
            self.fetched_since_check.discard(removed.key.id)
            if removed.key != self.local:
                self.observers[removed.key] = removed

    @property
    def leader_id(self) -> int:
        """The leader is this replica."""
        return self.local.id

    @property
    def peers(self) -> list[int]:
        """The voters besides this one."""
        return [voter_id for voter_id in self.voters.ids if voter_id != self.local.id]

    @property
    def deadline_ms(self) -> int:
        """When something is due without a message: a lost majority, or a reminder to a silent voter."""
        return min(self.check_quorum_deadline_ms, self.begin_epoch_deadline_ms)

    def high_watermark(self, local_persisted_offset: int, current: int) -> int:
        """The high watermark now; the leader counts itself only up to what it has synced."""
        ends = [
            local_persisted_offset if voter_id == self.local.id else progress.end_offset
            for voter_id, progress in self.progress.items()
        ]
        return high_watermark(ends, self.epoch_start_offset, current)

    def on_fetch(self, key: ReplicaKey, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """A replica fetched: note how far it is."""
        if self.voters.is_voter(key):
            progress = self.progress[key.id]
            self.fetched_since_check.add(key.id)
        else:
            progress = self.observers.setdefault(key, ReplicaProgress(key))
        progress.on_fetch(fetch_offset, leader_end_offset, now_ms)

    def majority_fetched(self) -> bool:
        """Whether, with this replica, a majority has fetched since the last check."""
        return self.voters.is_majority({*self.fetched_since_check, self.local.id})

    def successors(self) -> tuple[int, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(sorted(self.peers, key=lambda voter_id: -self.progress[voter_id].end_offset))

    def forget_silent_observers(self, before_ms: int) -> None:
        """Drop observers not heard of since `before_ms`: they keep no promise and would only pile up."""
        stale = [key for key, progress in self.observers.items() if progress.last_fetch_ms < before_ms]
        for key in stale:
            del self.observers[key]


RoleState: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned


def election_of(state: RoleState) -> ElectionState:
    """What of a state must be on disk before anybody hears of it; a leader's vote for itself goes without saying."""
    led = state.role in {Role.LEADER, Role.RESIGNED}
    return ElectionState(state.epoch, state.leader_id, None if led else state.voted)


def check_transition(old: RoleState, new: RoleState) -> None:
    """Refuse a step the table does not have, an epoch going back, and a second leader or vote within one epoch."""
    if new.role not in TRANSITIONS[old.role]:
        raise AssertionError(f"{old.role.value} may not become {new.role.value}")
    if new.epoch < old.epoch:
        raise AssertionError(f"epoch may not go back from {old.epoch} to {new.epoch}")
    if new.epoch == old.epoch:
        if old.voted not in (None, new.voted):
            raise AssertionError(f"the vote for {old.voted} in epoch {old.epoch} may not become {new.voted}")
        if old.leader_id not in (None, new.leader_id):
            raise AssertionError(f"epoch {old.epoch} is led by {old.leader_id}, it may not become {new.leader_id}")
        if old.role is Role.RESIGNED and new.role is not Role.PROSPECTIVE:
            raise AssertionError(f"a leader that resigned from epoch {old.epoch} waits for a higher one")
