"""The state that all parts of the core share: one replica's log positions, voters, role, timers and pending work.

It has no behaviour of the protocol: elections, replication and voter changes are parts (`elections`, `replication`,
`voter_changes`) that read and change one RaftReplica. Roles change only through `role_transitions`.
"""

from dataclasses import dataclass

from klamm.raft.core.events import AppendEntry, Leadership, LogOperation, QuorumTimeouts, Randomness
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import Entry, Payload, RaftFetchRequest, RaftMessage
from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.requests import Requests
from klamm.raft.core.roles import ElectionState, Follower, Leader, Resigned, Role, RoleState, Unattached
from klamm.raft.core.voter_history import VoterChange, VoterHistory


@dataclass(slots=True)
class ParkedFetch:
    """A fetch at the end of the log, answered when records arrive or its deadline passes."""

    message: RaftMessage
    high_watermark: int
    deadline_ms: int


class RaftReplica:
    """State of one replica: a voter, or an observer when its key is not among the voters."""

    def __init__(
        self,
        local: ReplicaKey,
        log: LogPositions,
        voter_history: VoterHistory,
        *,
        election: ElectionState,
        random: Randomness,
        now_ms: int,
        timeouts: QuorumTimeouts,
        bootstrap: tuple[int, ...] = (),
    ) -> None:
        self.local = local
        self.log = log
        self.voter_history = voter_history
        self.bootstrap = bootstrap
        """Peers known by address only (`controller.quorum.bootstrap.servers`), fetched from to discover the leader."""
        self.timeouts = timeouts
        self.random = random
        self.now_ms = now_ms
        """The time of the event being handled; the core reads no clock."""
        self.stopping = False
        """Whether the node shuts down: it resigned and must not be elected again."""
        self.high_watermark = log.snapshot_id.offset if log.snapshot_id else 0
        """Every offset below it is committed; what a snapshot contains is committed by definition."""
        self.operations: list[LogOperation] = []
        """Changes of the log for the next Ready."""
        self.parked_fetches: dict[ReplicaKey, ParkedFetch] = {}
        # Not from zero: a response to a request from before a restart must not match one of this process.
        self.requests = Requests(local.id, timeouts, random.randrange(2**30))
        self.state: RoleState = self._restore_state(election)

    # facts

    @property
    def epoch(self) -> int:
        """The epoch this replica is in."""
        return self.state.epoch

    @property
    def leadership(self) -> Leadership:
        """The leader according to this replica; one that resigned does not count."""
        state = self.state
        # After a restart as former leader, our own id is still in the quorum-state file: we do not lead any more.
        if state.role is Role.RESIGNED or (state.leader_id == self.local.id and state.role is not Role.LEADER):
            return Leadership(None, state.epoch)
        return Leadership(state.leader_id, state.epoch)

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads the quorum."""
        return self.state.role is Role.LEADER

    @property
    def voters(self) -> VoterSet:
        """The voters according to this replica's log, committed or not."""
        return self.voter_history.latest.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica is a voter."""
        return self.voters.is_voter(self.local)

    @property
    def is_electable(self) -> bool:
        """Whether this replica may become a candidate.

        A voter that is being removed may, until its removal is committed: its log may be the only one that is complete
        (Ongaro's thesis, section 4.2.2). It then counts only the votes of others, commits the removal, and resigns.
        """
        if self.stopping:
            return False
        uncommitted_change = self.voter_history.offset >= self.high_watermark
        return self.is_voter or (uncommitted_change and self.voter_history.previous.voters.is_voter(self.local))

    @property
    def peers(self) -> list[int]:
        """The voters other than this replica."""
        return [voter_id for voter_id in self.voters.ids if voter_id != self.local.id]

    @property
    def discovery_peers(self) -> list[int]:
        """The peers to fetch from when the leader is unknown: each answers with the leader it follows."""
        return [*self.peers, *self.bootstrap]

    def can_follow(self, leader_id: int | None) -> bool:
        """Whether `leader_id` can be followed.

        It need not be among our voters: voters change, and this log may not hold the latest change yet.
        """
        return leader_id is not None and leader_id != self.local.id

    # the log

    def append_own(self, payload: Payload, count: int, append_time_ms: int = 0) -> Entry:
        """Append a batch of this leader's epoch with `count` records."""
        base_offset = self.log.end_offset
        voter_change = payload if isinstance(payload, VoterChange) else None
        entry = Entry(base_offset, base_offset + count - 1, self.epoch, payload, append_time_ms, voter_change)
        self.append(entry)
        return entry

    def append(self, entry: Entry) -> None:
        """Append a batch, and count new voters from now on if it names any."""
        self.log.append(entry.base_offset, entry.end_offset, entry.epoch)
        self.operations.append(AppendEntry(entry))
        if entry.voter_change is not None:
            # Voters are in force as soon as they are appended, not when they are committed (Raft, section 6).
            self.voter_history.append(entry.base_offset, entry.voter_change)
            if isinstance(self.state, Leader):
                self.state.change_voters(self.voters)

    def send_fetch(self, peer: int) -> None:
        """Fetch from the end of this log; the fetch offset also acknowledges what is durable here."""
        log, timeouts = self.log, self.timeouts
        request = RaftFetchRequest(
            self.local, self.epoch, log.end_offset, log.last_epoch, self.high_watermark, timeouts.fetch_max_wait_ms
        )
        self.requests.send(peer, request, self.now_ms)

    # timers

    def election_deadline(self) -> int:
        """The end of a randomized election timeout, so that candidates rarely campaign at the same time."""
        timeout = self.timeouts.election_timeout_ms
        return self.now_ms + timeout + self.random.randrange(max(timeout, 1))

    def startup_deadline(self) -> int:
        """When a voter that has just started sends pre-votes.

        Much sooner than an election timeout: a pre-vote cannot depose a leader, and a quorum that starts as a whole
        gets its leader at once. Voters are staggered by id, so that the first one usually wins undisturbed.
        """
        ids = self.voters.ids
        if self.local.id not in ids:
            return self.election_deadline()
        step = max(self.timeouts.election_timeout_ms // 20, 1)
        return self.now_ms + step * ids.index(self.local.id) + self.random.randrange(step)

    def fetch_deadline(self) -> int:
        """When a follower that has received no response considers its leader dead."""
        return self.now_ms + self.timeouts.fetch_timeout_ms

    def check_quorum_deadline(self) -> int:
        """When a leader checks that a majority still fetches.

        One and a half fetch timeouts, as in Kafka: a single slow fetch must not cost the leader its role.
        """
        return self.now_ms + self.timeouts.fetch_timeout_ms * 3 // 2

    # restart

    def _restore_state(self, election: ElectionState) -> RoleState:
        """The role after a restart: no vote or epoch on disk is forgotten, and an old epoch is never led again."""
        epoch = max(election.epoch, self.log.last_epoch)
        if epoch > election.epoch:
            # The log is ahead of the vote file: a vote in `election` belongs to an older epoch.
            return Unattached(epoch, self.startup_deadline())
        leader_id, voted = election.leader_id, election.voted
        if leader_id == self.local.id and self.is_voter:
            # Others may hold records of this epoch that were not synced here: to lead on in the same epoch could write
            # different records at their offsets.
            return Resigned(epoch, self.election_deadline(), leader_id, set(self.peers), (), voted)
        if leader_id is not None and leader_id != self.local.id and leader_id in self.voters:
            return Follower(epoch, self.fetch_deadline(), leader_id, voted)
        return Unattached(epoch, self.startup_deadline(), voted, leader_id)
