"""How members agree on a leader: pre-votes, votes, and a leader's word that its epoch began or ended."""

from klamm.model.errors import ErrorCode
from klamm.raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    Message,
    Response,
    VoteRequest,
    VoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.roles import Ballot, Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from klamm.raft.core.replica import Member


class ElectingMember(Member):
    """A member that votes, stands for election, and hears who won."""

    # asking for votes

    def _ask_for_votes(self, ballot: Ballot, *, pre_vote: bool) -> None:
        for voter_id in ballot.unrecorded:
            self._request(voter_id, VoteRequest(self.local, self.epoch, self.log.end, pre_vote))

    def _on_vote_response(self, message: Message, response: VoteResponse) -> None:
        if not self._follow_answer(message, response):
            return
        state = self.state
        if isinstance(state, Prospective | Candidate) and response.epoch == state.epoch:
            state.ballot.record(message.source, response.granted)
            if isinstance(state, Candidate) and state.ballot.lost:
                backoff = 1 + self._random.randrange(max(self.timeouts.election_backoff_max_ms // 4, 1))
                state.deadline_ms = min(state.deadline_ms, self._now + backoff)

    # giving votes

    def _on_vote_request(self, message: Message, request: VoteRequest) -> None:
        if request.epoch < self.epoch:
            self._reply(message, self._vote_answer(error=ErrorCode.FENCED_LEADER_EPOCH))
            return
        if request.epoch > self.epoch:
            self._become_unattached(request.epoch)
        granted = self._can_grant(request.candidate, self.log.is_up_to_date(request.last), request.pre_vote)
        if granted and not request.pre_vote:
            self._give_vote(request.candidate)
        self._reply(message, self._vote_answer(granted=granted))

    def _vote_answer(self, *, granted: bool = False, error: ErrorCode = ErrorCode.NONE) -> VoteResponse:
        leader = self.leadership
        return VoteResponse(leader.epoch, leader.leader_id, granted, error)

    def _can_grant(self, candidate: ReplicaKey, up_to_date: bool, pre_vote: bool) -> bool:
        """One vote per epoch, to a log as good as ours, and none against a leader that is alive."""
        state = self.state
        match state:
            case Unattached() | Prospective():
                if pre_vote:
                    return up_to_date
                if state.voted is not None:
                    return state.voted.same_replica(candidate)
                return state.leader_id is None and up_to_date
            case Follower():
                return pre_vote and not state.has_fetched and up_to_date
            case Candidate() | Resigned():
                return pre_vote and up_to_date
            case Leader():
                return False

    def _give_vote(self, candidate: ReplicaKey) -> None:
        state = self.state
        if state.voted is not None:
            return
        if isinstance(state, Prospective):
            self._transition_to(Prospective(state.epoch, state.deadline_ms, state.ballot, candidate))
        else:
            self._become_unattached(state.epoch, candidate)

    # a leader speaks

    def _on_begin_quorum_epoch(self, message: Message, request: BeginQuorumEpochRequest) -> None:
        error = self._refuse_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._follow(request.leader_id, request.epoch)
        leader = self.leadership
        self._reply(message, BeginQuorumEpochResponse(leader.epoch, leader.leader_id, error))

    def _on_begin_quorum_epoch_response(self, message: Message, response: BeginQuorumEpochResponse) -> None:
        if self._follow_hint(response) and isinstance(self.state, Leader) and response.error is ErrorCode.NONE:
            progress = self.state.progress.get(message.source)
            if progress is not None:
                progress.acknowledged_epoch = True

    def _on_end_quorum_epoch(self, message: Message, request: EndQuorumEpochRequest) -> None:
        error = self._refuse_leader(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._follow(request.leader_id, request.epoch)
            if isinstance(self.state, Follower) and self.may_stand:
                self.state.has_fetched = False
                self.state.deadline_ms = min(self.state.deadline_ms, self._now + self._succession_delay(request))
        leader = self.leadership
        self._reply(message, EndQuorumEpochResponse(leader.epoch, leader.leader_id, error))

    def _on_end_quorum_epoch_response(self, message: Message, response: EndQuorumEpochResponse) -> None:
        if self._follow_hint(response) and isinstance(self.state, Resigned):
            self.state.unacknowledged.discard(message.source)

    def _succession_delay(self, request: EndQuorumEpochRequest) -> int:
        """The first successor stands at once, the others later, so that they do not split the vote."""
        successors = request.preferred_successors
        rank = successors.index(self.local.id) if self.local.id in successors else len(successors)
        if rank == 0 and successors:
            return 0
        step = max(self.timeouts.election_timeout_ms // 10, 1)
        return step * rank + self._random.randrange(step)

    # a leader is gone

    def _on_unreachable(self, peer: int, correlation_id: int, refused: bool) -> None:
        """Ask again a little later; a leader whose process is dead is not waited for."""
        pending = self._in_flight.get(peer)
        if pending is None or pending[0] != correlation_id:
            return
        self._pause(peer)
        state = self.state
        if isinstance(state, Resigned) and refused:
            state.unacknowledged.discard(peer)
        if isinstance(state, Follower) and peer == state.leader_id:
            state.leader_silent = True
            if refused and self.may_stand:
                state.has_fetched = False
                state.deadline_ms = min(state.deadline_ms, self._now + self._stand_in_delay(peer))

    def _stand_in_delay(self, dead_leader: int) -> int:
        """Those left stand one after the other, so that they do not split the vote."""
        left = [voter_id for voter_id in self.voters.ids if voter_id != dead_leader]
        step = max(self.timeouts.election_timeout_ms // 20, 1)
        rank = left.index(self.local.id) if self.local.id in left else len(left)
        return step * rank + self._random.randrange(max(step // 4, 1)) if rank else 0

    # who leads

    def _refuse_leader(self, leader_id: int, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not self._may_lead(leader_id):
            return ErrorCode.INVALID_REQUEST
        if epoch == self.epoch and self.state.leader_id not in (None, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _follow(self, leader_id: int, epoch: int) -> None:
        """Follow this leader, unless we already do."""
        state = self.state
        if epoch == state.epoch and (state.role is Role.FOLLOWER or leader_id == self.local.id):
            return
        self._become_follower(epoch, leader_id)

    def _follow_answer(self, message: Message, response: Response) -> bool:
        """As `_follow_hint`, and False for a refusal; a peer that only refuses is left alone for a moment."""
        before = self.state
        if self._follow_hint(response) and response.error is ErrorCode.NONE:
            return True
        if self.state is before:
            self._pause(message.source)
        return False

    def _follow_hint(self, response: Response) -> bool:
        """Learn epoch and leader from any response; False when it changed our epoch or state, or is of an old one."""
        leader_id, epoch = response.leader_id, response.epoch
        if epoch < self.epoch:
            return False
        known = leader_id if self._may_lead(leader_id) else None
        if epoch > self.epoch:
            if known is None:
                self._become_unattached(epoch)
            else:
                self._become_follower(epoch, known)
            return False
        if (
            known is not None
            and self.state.leader_id in (None, known)
            and not isinstance(self.state, Follower | Leader)
        ):
            if isinstance(self.state, Prospective) and self.state.leader_id == known:
                return True
            self._become_follower(epoch, known)
            return False
        return True
