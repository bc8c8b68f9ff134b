"""Electing a leader: pre-votes (KIP-996), votes, and the requests by which a leader begins and ends its epoch."""

from klamm.model.errors import ErrorCode
from klamm.raft.core.leader_discovery import LeaderDiscovery
from klamm.raft.core.messages import (
    RaftBeginQuorumEpochRequest,
    RaftBeginQuorumEpochResponse,
    RaftEndQuorumEpochRequest,
    RaftEndQuorumEpochResponse,
    RaftMessage,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.replica import RaftReplica
from klamm.raft.core.role_transitions import RoleTransitions
from klamm.raft.core.roles import Ballot, Candidate, Follower, Leader, Prospective, Resigned, Unattached


class Elections:
    """Votes, campaigns, and follows the winner."""

    def __init__(self, replica: RaftReplica, roles: RoleTransitions, discovery: LeaderDiscovery) -> None:
        self._replica = replica
        self._roles = roles
        self._discovery = discovery

    # timers

    def poll_unattached(self, state: Unattached) -> None:
        """Campaign when the election timeout has passed; until then look for a leader."""
        replica = self._replica
        timed_out = replica.now_ms >= state.deadline_ms
        # A sole voter needs no other vote: waiting for a timeout would only delay the start.
        if replica.is_electable and (timed_out or replica.voters.is_only_voter(replica.local)):
            self._roles.become_prospective()
            return
        if timed_out:
            # Not electable: an observer only keeps looking for a leader.
            state.deadline_ms = replica.election_deadline()
        peers = replica.discovery_peers
        if peers and not replica.requests:
            replica.send_fetch(peers[replica.random.randrange(len(peers))])

    def poll_prospective(self, state: Prospective) -> None:
        """Become a candidate with a majority of pre-votes; return to the former leader, if any, without one."""
        replica = self._replica
        if state.ballot.won:
            self._roles.become_candidate()
        elif state.ballot.lost or replica.now_ms >= state.deadline_ms or replica.stopping:
            if state.leader_id is not None and replica.can_follow(state.leader_id):
                self._roles.become_follower(state.epoch, state.leader_id)
            else:
                self._roles.become_unattached(state.epoch, state.voted, state.leader_id)
        else:
            self._request_votes(state.ballot, pre_vote=True)

    def poll_candidate(self, state: Candidate) -> None:
        """Become leader with a majority of votes; start over with pre-votes when the election takes too long."""
        if state.ballot.won:
            self._roles.become_leader(state.ballot)
        elif self._replica.now_ms >= state.deadline_ms:
            self._roles.become_prospective()
        else:
            self._request_votes(state.ballot, pre_vote=False)

    def poll_resigned(self, state: Resigned) -> None:
        """Announce the end of the epoch to the voters; enter the next one when no other leader appears."""
        replica = self._replica
        if not replica.stopping:
            if replica.voters.is_only_voter(replica.local):
                self._roles.become_prospective()
                return
            if replica.now_ms >= state.deadline_ms:
                # It may not vote or lead in its old epoch again, so it enters the next one.
                self._roles.become_unattached(state.epoch + 1)
                return
        for peer in sorted(state.unacknowledged):
            request = RaftEndQuorumEpochRequest(replica.local.id, state.epoch, state.preferred_successors)
            replica.requests.send(peer, request, replica.now_ms)

    # candidates

    def _request_votes(self, ballot: Ballot, *, pre_vote: bool) -> None:
        replica = self._replica
        for voter_id in ballot.unrecorded:
            request = RaftVoteRequest(replica.local, replica.epoch, replica.log.end, pre_vote)
            replica.requests.send(voter_id, request, replica.now_ms)

    def on_vote_response(self, message: RaftMessage, response: RaftVoteResponse) -> None:
        """Count a vote or pre-vote of the present epoch."""
        if not self._discovery.accept(message, response):
            return
        replica = self._replica
        state = replica.state
        if isinstance(state, Prospective | Candidate) and response.epoch == state.epoch:
            state.ballot.record(message.source, response.granted)
            if isinstance(state, Candidate) and state.ballot.lost:
                # A lost election is over: try again after a short random backoff, not after the whole timeout.
                backoff = 1 + replica.random.randrange(max(replica.timeouts.election_backoff_max_ms // 4, 1))
                state.deadline_ms = min(state.deadline_ms, replica.now_ms + backoff)

    # voters

    def on_vote_request(self, message: RaftMessage, request: RaftVoteRequest) -> None:
        """Grant or reject a vote; a vote reaches its candidate only after it is on disk (see `Ready`)."""
        replica = self._replica
        if request.epoch < replica.epoch:
            replica.requests.reply(message, self._vote_response(error=ErrorCode.FENCED_LEADER_EPOCH))
            return
        if request.epoch > replica.epoch:
            # A higher epoch is always adopted, whether or not the vote is granted (Raft, section 5.1).
            self._roles.become_unattached(request.epoch)
        granted = self.can_grant(request.candidate, replica.log.is_up_to_date(request.last), request.pre_vote)
        if granted and not request.pre_vote:
            self.record_vote(request.candidate)
        replica.requests.reply(message, self._vote_response(granted=granted))

    def _vote_response(self, *, granted: bool = False, error: ErrorCode = ErrorCode.NONE) -> RaftVoteResponse:
        leader = self._replica.leadership
        return RaftVoteResponse(leader.epoch, leader.leader_id, granted, error)

    def can_grant(self, candidate: ReplicaKey, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether `candidate` gets this vote.

        One vote per epoch, only for a log at least as complete as ours, and none while the epoch has a live leader.
        """
        state = self._replica.state
        match state:
            case Unattached() | Prospective():
                if pre_vote:
                    return up_to_date
                if state.voted is not None:
                    # The same candidate repeats its request when the first response was lost.
                    return state.voted.same_replica(candidate)
                return state.leader_id is None and up_to_date
            case Follower():
                # A fetch was answered, so the leader is alive: an isolated candidate must not depose it.
                return pre_vote and not state.has_fetched and up_to_date
            case Candidate() | Resigned():
                # Their vote of this epoch is spent, a pre-vote promises nothing.
                return pre_vote and up_to_date
            case Leader():
                return False

    def record_vote(self, candidate: ReplicaKey) -> None:
        """Remember the vote of this epoch; the driver writes it before the response leaves."""
        state = self._replica.state
        if state.voted is not None:
            return
        if isinstance(state, Prospective):
            self._roles.become(Prospective(state.epoch, state.deadline_ms, state.ballot, candidate))
        else:
            self._roles.become_unattached(state.epoch, candidate)

    # beginning and end of an epoch

    def announce_epoch(self, state: Leader) -> None:
        """Send BeginQuorumEpoch to voters that do not fetch: they may not have learned of this leader."""
        replica = self._replica
        if replica.now_ms < state.begin_epoch_deadline_ms:
            return
        interval = replica.timeouts.fetch_timeout_ms // 2
        state.begin_epoch_deadline_ms = replica.now_ms + interval
        for peer in replica.peers:
            progress = state.progress[peer]
            if not progress.acknowledged_epoch or progress.last_fetch_ms < replica.now_ms - interval:
                request = RaftBeginQuorumEpochRequest(replica.local.id, state.epoch)
                replica.requests.send(peer, request, replica.now_ms)

    def on_begin_quorum_epoch(self, message: RaftMessage, request: RaftBeginQuorumEpochRequest) -> None:
        """Follow a new leader."""
        error = self._discovery.validate_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._discovery.follow(request.leader_id, request.epoch)
        leader = self._replica.leadership
        self._replica.requests.reply(message, RaftBeginQuorumEpochResponse(leader.epoch, leader.leader_id, error))

    def on_begin_quorum_epoch_response(self, message: RaftMessage, response: RaftBeginQuorumEpochResponse) -> None:
        """Stop announcing the epoch to a voter that has acknowledged it."""
        learned = self._discovery.learn_leader(response)
        state = self._replica.state
        if learned and isinstance(state, Leader) and response.error is ErrorCode.NONE:
            progress = state.progress.get(message.source)
            if progress is not None:
                progress.acknowledged_epoch = True

    def on_end_quorum_epoch(self, message: RaftMessage, request: RaftEndQuorumEpochRequest) -> None:
        """The leader has resigned: campaign without waiting for the fetch timeout."""
        replica = self._replica
        error = self._discovery.validate_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._discovery.follow(request.leader_id, request.epoch)
            if isinstance(replica.state, Follower) and replica.is_electable:
                self._expedite_election(replica.state, self._succession_delay(request))
        leader = replica.leadership
        replica.requests.reply(message, RaftEndQuorumEpochResponse(leader.epoch, leader.leader_id, error))

    def on_end_quorum_epoch_response(self, message: RaftMessage, response: RaftEndQuorumEpochResponse) -> None:
        """Stop announcing the end of the epoch to a voter that has acknowledged it."""
        learned = self._discovery.learn_leader(response)
        state = self._replica.state
        if learned and isinstance(state, Resigned):
            state.unacknowledged.discard(message.source)

    def _succession_delay(self, request: RaftEndQuorumEpochRequest) -> int:
        """The first successor campaigns at once, the others later, so that they do not split the vote."""
        replica = self._replica
        successors = request.preferred_successors
        rank = successors.index(replica.local.id) if replica.local.id in successors else len(successors)
        if rank == 0 and successors:
            return 0
        step = max(replica.timeouts.election_timeout_ms // 10, 1)
        return step * rank + replica.random.randrange(step)

    # unreachable peers

    def on_unreachable(self, peer: int, correlation_id: int, refused: bool) -> None:
        """Back off from a peer; a leader whose process is gone (`refused`) is replaced without a timeout."""
        replica = self._replica
        if not replica.requests.is_in_flight(peer, correlation_id):
            return
        replica.requests.back_off(peer, replica.now_ms)
        state = replica.state
        if isinstance(state, Resigned) and refused:
            state.unacknowledged.discard(peer)
        if isinstance(state, Follower) and peer == state.leader_id:
            state.leader_silent = True
            if refused and replica.is_electable:
                self._expedite_election(state, self._replacement_delay(peer))

    def _replacement_delay(self, dead_leader: int) -> int:
        """The voters left campaign one after the other, by id, so that they do not split the vote."""
        replica = self._replica
        remaining = [voter_id for voter_id in replica.voters.ids if voter_id != dead_leader]
        step = max(replica.timeouts.election_timeout_ms // 20, 1)
        rank = remaining.index(replica.local.id) if replica.local.id in remaining else len(remaining)
        return step * rank + replica.random.randrange(max(step // 4, 1)) if rank else 0

    def _expedite_election(self, state: Follower, delay_ms: int) -> None:
        # Without a live leader this follower grants pre-votes again, to any voter that campaigns first.
        state.has_fetched = False
        state.deadline_ms = min(state.deadline_ms, self._replica.now_ms + delay_ms)
