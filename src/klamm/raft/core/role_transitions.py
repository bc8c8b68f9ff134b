"""The steps from one role to another: the only code that assigns `RaftReplica.state`.

Every step is checked against the table in `roles`, and drops what belonged to the former role: requests in flight and
fetches that wait for records.
"""

from klamm.model.errors import ErrorCode
from klamm.raft.core.messages import LeaderChange, RaftFetchResponse
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.replica import RaftReplica
from klamm.raft.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
    check_transition,
)
from klamm.raft.core.voter_history import VoterChange


class RoleTransitions:
    """Changes the role of one replica."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica

    def become(self, state: RoleState) -> None:
        """Step to `state`; AssertionError when the step is not in the table."""
        replica = self._replica
        check_transition(replica.state, state)
        replica.state = state
        replica.requests.abandon()
        # Only a leader parks fetches. Their senders must look for the new leader now, not after their timeout.
        leader = replica.leadership
        for fetch in replica.parked_fetches.values():
            response = RaftFetchResponse(leader.epoch, leader.leader_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            replica.requests.reply(fetch.message, response)
        replica.parked_fetches.clear()

    def become_unattached(self, epoch: int, voted: ReplicaKey | None = None, leader_id: int | None = None) -> None:
        """Enter `epoch` without a leader to fetch from."""
        self.become(Unattached(epoch, self._replica.election_deadline(), voted, leader_id))

    def become_follower(self, epoch: int, leader_id: int) -> None:
        """Follow the leader of `epoch`; a vote given in this epoch is kept."""
        replica = self._replica
        voted = replica.state.voted if epoch == replica.epoch else None
        self.become(Follower(epoch, replica.fetch_deadline(), leader_id, voted))

    def become_prospective(self) -> None:
        """Send pre-votes in the current epoch (KIP-996)."""
        replica = self._replica
        old = replica.state
        ballot = self._own_ballot()
        self.become(Prospective(old.epoch, replica.election_deadline(), ballot, old.voted, old.leader_id))

    def become_candidate(self) -> None:
        """Start the next epoch and vote for this replica in it."""
        replica = self._replica
        ballot = self._own_ballot()
        self.become(Candidate(replica.epoch + 1, replica.election_deadline(), ballot, replica.local))

    def become_leader(self, ballot: Ballot) -> None:
        """Lead the epoch that `ballot` won, and append the records that open it."""
        replica = self._replica
        self.become(
            Leader(
                epoch=replica.epoch,
                local=replica.local,
                voters=replica.voters,
                epoch_start_offset=replica.log.end_offset,
                granting_voters=tuple(sorted(ballot.granted)),
                check_quorum_deadline_ms=replica.check_quorum_deadline(),
                begin_epoch_deadline_ms=replica.now_ms,
                voted=replica.local,
            )
        )
        # Records of older epochs are committed only through a record of this one (Raft, section 5.4.2): append it now.
        granting = tuple(voter.key for voter in replica.voters if voter.id in ballot.granted)
        replica.append_own(LeaderChange(replica.local.id, tuple(voter.key for voter in replica.voters), granting), 1)
        initial = replica.voter_history.latest
        if initial.dynamic and replica.voter_history.offset < 0:
            # The voters this folder was formatted with are not in the log yet: other replicas learn them from it.
            change = VoterChange(initial.voters, initial.kraft_version)
            replica.append_own(change, change.record_count)

    def resign(self, leader: Leader) -> None:
        """Stop leading; EndQuorumEpoch announces it to the other voters, so that they need not wait for a timeout."""
        replica = self._replica
        unacknowledged, successors = set(replica.peers), leader.successors()
        self.become(
            Resigned(
                leader.epoch, replica.election_deadline(), replica.local.id, unacknowledged, successors, leader.voted
            )
        )

    def _own_ballot(self) -> Ballot:
        """A ballot on which this replica has voted for itself; it counts only if the replica is a voter."""
        ballot = Ballot(self._replica.voters)
        ballot.record(self._replica.local.id, granted=True)
        return ballot
