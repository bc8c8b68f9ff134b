"""Learning the leader and the epoch from other members: every response names both, as its sender has them."""

from klamm.model.errors import ErrorCode
from klamm.raft.core.messages import RaftMessage, RaftResponse
from klamm.raft.core.replica import RaftReplica
from klamm.raft.core.role_transitions import RoleTransitions
from klamm.raft.core.roles import Follower, Leader, Prospective, Role


class LeaderDiscovery:
    """Decides which leader to follow. A higher epoch always wins; within one epoch there is at most one leader."""

    def __init__(self, replica: RaftReplica, roles: RoleTransitions) -> None:
        self._replica = replica
        self._roles = roles

    def validate_leader(self, leader_id: int, epoch: int) -> ErrorCode:
        """The error for a request of a leader that cannot be one; NONE when it can."""
        replica = self._replica
        if epoch < replica.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not replica.can_follow(leader_id):
            return ErrorCode.INVALID_REQUEST
        # An epoch has one leader at most, so this request is in error.
        if epoch == replica.epoch and replica.state.leader_id not in (None, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def follow(self, leader_id: int, epoch: int) -> None:
        """Follow a leader that `validate_leader` accepted, unless this replica does already."""
        state = self._replica.state
        if epoch == state.epoch and (state.role is Role.FOLLOWER or leader_id == self._replica.local.id):
            return
        self._roles.become_follower(epoch, leader_id)

    def accept(self, message: RaftMessage, response: RaftResponse) -> bool:
        """Learn from a response, and return whether it is a success that concerns the present role."""
        before = self._replica.state
        if self.learn_leader(response) and response.error is ErrorCode.NONE:
            return True
        if self._replica.state is before:
            # An error that changes neither leader nor epoch: the same request at once would get the same response.
            self._replica.requests.back_off(message.source, self._replica.now_ms)
        return False

    def learn_leader(self, response: RaftResponse) -> bool:
        """Learn epoch and leader from a response.

        Return False when the response is of an older epoch, or has changed this replica's role or epoch: the rest of
        it then answers a request that no longer matters.
        """
        replica, epoch = self._replica, response.epoch
        if epoch < replica.epoch:
            return False
        leader_id = response.leader_id if replica.can_follow(response.leader_id) else None
        if epoch > replica.epoch:
            if leader_id is None:
                self._roles.become_unattached(epoch)
            else:
                self._roles.become_follower(epoch, leader_id)
            return False
        state = replica.state
        if leader_id is None or state.leader_id not in (None, leader_id) or isinstance(state, Follower | Leader):
            return True
        if isinstance(state, Prospective) and state.leader_id == leader_id:
            # It sends pre-votes because this very leader does not answer; that peers still follow it is no news.
            return True
        self._roles.become_follower(epoch, leader_id)
        return False
