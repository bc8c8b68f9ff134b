"""How the voters change, one at a time, so that two majorities always share a member (KIP-853).

A change is a record of the log. It is taken only by a leader that has committed a record of its own epoch, and only
when the change before it is committed; both are what makes single-server changes safe.
"""

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.configuration import DYNAMIC, ConfigurationChange
from klamm.raft.elections import ElectingMember
from klamm.raft.messages import Entry
from klamm.raft.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.state import Leader


class ChangingMember(ElectingMember):
    """A member whose quorum can grow and shrink."""

    def add_voter(self, voter: Voter, now_ms: int) -> Entry:
        """Let an observer that has caught up vote; KlammError says why not."""
        state = self._refuse_change(now_ms)
        if voter.id in self.voters:
            raise KlammError(ErrorCode.DUPLICATE_VOTER, f"{voter.id} is a voter already")
        progress = state.observers.get(voter.key)
        if progress is None or not progress.is_caught_up(self.log.end_offset, now_ms, self.timeouts.fetch_timeout_ms):
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, f"{voter.key} has not caught up with the log")
        return self._change(VoterSet((*self.voters, voter)))

    def remove_voter(self, key: ReplicaKey, now_ms: int) -> Entry:
        """Let a voter vote no more; the last one stays."""
        self._refuse_change(now_ms)
        known = self.voters.get(key.id)
        if known is None or known.key != key:
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{key} is not a voter")
        if len(self.voters) == 1:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{key} is the last voter: without it nobody could decide")
        return self._change(VoterSet(voter for voter in self.voters if voter.id != key.id))

    def update_voter(self, voter: Voter, now_ms: int) -> Entry | None:
        """A voter has moved to another address; None when nothing has to be written."""
        self._refuse_unless_leading(now_ms)
        known = self.voters.get(voter.id)
        if known is None or not known.key.same_replica(voter.key):
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{voter.key} is not a voter")
        if known == voter or not self.configurations.latest.dynamic:
            return None
        self._refuse_change(now_ms)
        return self._change(VoterSet(voter if each.id == voter.id else each for each in self.voters))

    @property
    def may_change_voters(self) -> bool:
        """Whether this leader has committed a record of its epoch, and the last change."""
        state = self.state
        return (
            isinstance(state, Leader)
            and self.high_watermark > state.epoch_start_offset
            and self.high_watermark > self.configurations.offset
        )

    def _refuse_unless_leading(self, now_ms: int) -> Leader:
        self._now = now_ms
        if not isinstance(self.state, Leader):
            raise KlammError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader is {self.state.leader_id}")
        return self.state

    def _refuse_change(self, now_ms: int) -> Leader:
        state = self._refuse_unless_leading(now_ms)
        if self.configurations.latest.kraft_version < DYNAMIC:
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, "the voters are fixed: kraft.version is 0")
        if not self.may_change_voters:
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, "a former change of the quorum is not committed yet")
        return state

    def _change(self, voters: VoterSet) -> Entry:
        change = ConfigurationChange(voters=voters)
        return self._append_own(change, change.record_count)
