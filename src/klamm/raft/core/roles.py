"""The roles of a quorum member, the state that belongs to each, and the transitions between them.

    Unattached   has an epoch but no leader in it; may have voted.
    Prospective  has lost its leader and requests pre-votes, which show whether an election would succeed.
    Candidate    has started a new epoch, voted for itself and requests votes.
    Leader       won a majority of its epoch.
    Follower     has the leader of its epoch and fetches from it.
    Resigned     was leader of this epoch; it may neither vote nor lead in it again.

Only TRANSITIONS are legal. Epochs never decrease, and a vote is valid only within its epoch.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet, high_watermark


class Role(Enum):
    """The name of a role, as log lines show it."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


TRANSITIONS: dict[Role, frozenset[Role]] = {
    # a higher epoch or a vote granted; the election timeout; a leader is known
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    # a higher epoch or pre-votes lost; a vote granted; pre-votes won; a leader is known
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE, Role.FOLLOWER}),
    # a higher epoch; the election timeout; votes won; another leader is known
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
    """What must survive a crash: the epoch, its leader, and the vote granted in it."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


@dataclass(slots=True)
class Unattached:
    """Waits for a leader or for the election timeout."""

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None = None
    leader_id: int | None = None
    role: Role = field(default=Role.UNATTACHED, init=False)


@dataclass(slots=True)
class Ballot:
    """The votes of one election, counted against the voters at its start."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, granted: bool) -> None:
        """Count the vote of `voter_id`; a second one is ignored, as are those of non-voters."""
        if voter_id in self.voters and voter_id not in self.granted and voter_id not in self.rejected:
            (self.granted if granted else self.rejected).add(voter_id)

    @property
    def unrecorded(self) -> list[int]:
        """The voters that have not voted."""
        return [voter_id for voter_id in self.voters.ids if voter_id not in self.granted | self.rejected]

    @property
    def won(self) -> bool:
        """Whether a majority has granted its vote."""
        return self.voters.is_majority(self.granted)

    @property
    def lost(self) -> bool:
        """Whether a majority can no longer be reached."""
        return not self.voters.can_still_reach_majority(self.rejected)


@dataclass(slots=True)
class Prospective:
    """Asks for pre-votes in its current epoch; a pre-vote changes no state at the voters."""

    epoch: int
    deadline_ms: int
    ballot: Ballot
    voted: ReplicaKey | None = None
    leader_id: int | None = None
    role: Role = field(default=Role.PROSPECTIVE, init=False)


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch that it has started itself."""

    epoch: int
    deadline_ms: int
    ballot: Ballot
    voted: ReplicaKey
    leader_id: None = field(default=None, init=False)
    role: Role = field(default=Role.CANDIDATE, init=False)


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; becomes Prospective when no response arrives within the fetch timeout."""

    epoch: int
    deadline_ms: int
    leader_id: int
    voted: ReplicaKey | None = None
    has_fetched: bool = False
    """Whether this leader has answered a fetch: it is alive, and pre-votes against it are rejected."""
    leader_silent: bool = False
    """Whether an observer should look for the leader at other peers."""
    fetching_snapshot: OffsetAndEpoch | None = None
    snapshot_position: int = 0
    role: Role = field(default=Role.FOLLOWER, init=False)


@dataclass(slots=True)
class Resigned:
    """Announces the end of its epoch to the voters, and waits one election timeout for another leader."""

    epoch: int
    deadline_ms: int
    leader_id: int
    unacknowledged: set[int]
    preferred_successors: tuple[int, ...]
    voted: ReplicaKey | None = None
    role: Role = field(default=Role.RESIGNED, init=False)


@dataclass(slots=True)
class ReplicaProgress:
    """The position of one replica, as its fetches show it to the leader."""

    key: ReplicaKey
    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_last_fetch: int = -1
    acknowledged_epoch: bool = False

    def is_caught_up(self, leader_end_offset: int, now_ms: int, within_ms: int) -> bool:
        """Whether the replica holds all of the log, or did so within the last `within_ms`."""
        recently = now_ms - self.last_caught_up_ms <= within_ms and self.last_caught_up_ms >= 0
        return self.end_offset >= leader_end_offset or recently

    def on_fetch(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record that the replica holds everything before `fetch_offset`."""
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        # Under constant load it never reaches the end: what was the end at its last fetch counts as of then.
        elif 0 < self.leader_end_at_last_fetch <= fetch_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = fetch_offset
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end_offset
        self.acknowledged_epoch = True


@dataclass(slots=True)
class Leader:
    """Tracks how far each voter is, and whether a majority of them still fetches."""

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
    """What static voters have reported of themselves: directory, address, versions."""
    voted: ReplicaKey | None = None
    elected_by: VoterSet = field(init=False)
    role: Role = field(default=Role.LEADER, init=False)

    def __post_init__(self) -> None:
        # Kept, because `voters` may change while it leads: the votes were counted against these.
        self.elected_by = self.voters
        for voter in self.voters:
            self.progress.setdefault(voter.id, ReplicaProgress(voter.key))

    def change_voters(self, voters: VoterSet) -> None:
        """Replace the voters; progress is kept when a replica changes between voter and observer."""
        before, self.progress, self.voters = self.progress, {}, voters
        for voter in voters:
            progress = before.pop(voter.id, None)
            if progress is None or not progress.key.same_replica(voter.key):
                progress = self.observers.pop(voter.key, None) or ReplicaProgress(voter.key)
            progress.key = voter.key
            self.progress[voter.id] = progress
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
        """The voters other than this replica."""
        return [voter_id for voter_id in self.voters.ids if voter_id != self.local.id]

    @property
    def deadline_ms(self) -> int:
        """When the next check of the majority, or the next BeginQuorumEpoch to a silent voter, is due."""
        return min(self.check_quorum_deadline_ms, self.begin_epoch_deadline_ms)

    def high_watermark(self, local_persisted_offset: int, current: int) -> int:
        """The high watermark now; the leader's own log counts only as far as it is synced."""
        # A leader that is being removed is not in `progress` any more, so its own log does not count.
        ends = [
            local_persisted_offset if voter_id == self.local.id else progress.end_offset
            for voter_id, progress in self.progress.items()
        ]
        return high_watermark(ends, self.epoch_start_offset, current)

    def on_fetch(self, key: ReplicaKey, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record the position of a replica that fetched."""
        if self.voters.is_voter(key):
            progress = self.progress[key.id]
            self.fetched_since_check.add(key.id)
        else:
            progress = self.observers.setdefault(key, ReplicaProgress(key))
        progress.on_fetch(fetch_offset, leader_end_offset, now_ms)

    def majority_fetched(self) -> bool:
        """Whether a majority, this replica included, has fetched since the last check."""
        return self.voters.is_majority({*self.fetched_since_check, self.local.id})

    def successors(self) -> tuple[int, ...]:
        """The other voters, the one with the longest log first."""
        return tuple(sorted(self.peers, key=self._end_offset, reverse=True))

    def _end_offset(self, voter_id: int) -> int:
        return self.progress[voter_id].end_offset

    def forget_silent_observers(self, before_ms: int) -> None:
        """Drop observers that have not fetched since `before_ms`: brokers that are gone for good would pile up."""
        stale = [key for key, progress in self.observers.items() if progress.last_fetch_ms < before_ms]
        for key in stale:
            del self.observers[key]


RoleState: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned


def election_of(state: RoleState) -> ElectionState:
    """The part of a role's state that must be on disk before any message reveals it.

    A leader's vote for itself follows from the leader id and is not stored.
    """
    led = state.role in {Role.LEADER, Role.RESIGNED}
    return ElectionState(state.epoch, state.leader_id, None if led else state.voted)


def check_transition(old: RoleState, new: RoleState) -> None:
    """Raise AssertionError for an illegal transition, a lower epoch, or a second leader or vote within an epoch."""
    if new.role not in TRANSITIONS[old.role]:
        raise AssertionError(f"{old.role.value} may not become {new.role.value}")
    if new.epoch < old.epoch:
        raise AssertionError(f"epoch may not decrease from {old.epoch} to {new.epoch}")
    if new.epoch == old.epoch:
        if old.voted not in (None, new.voted):
            raise AssertionError(f"the vote for {old.voted} in epoch {old.epoch} may not become {new.voted}")
        if old.leader_id not in (None, new.leader_id):
            raise AssertionError(f"epoch {old.epoch} is led by {old.leader_id}, it may not become {new.leader_id}")
        if old.role is Role.RESIGNED and new.role is not Role.PROSPECTIVE:
            raise AssertionError(f"a leader that resigned in epoch {old.epoch} may act only in a higher one")
