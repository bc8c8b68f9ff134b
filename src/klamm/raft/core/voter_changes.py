"""How the voters change, one at a time, so that two majorities always share a member (KIP-853).

A change is a record of the log. It is taken only by a leader that has committed a record of its own epoch, and only
when the change before it is committed; both are what makes single-server changes safe. Fixed voters become such ones by
a change of kraft.version, which leaves them the same.
"""

from collections.abc import Iterable

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.raft.core.elections import ElectingMember
from klamm.raft.core.messages import Entry
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.roles import Leader
from klamm.raft.core.voter_history import DYNAMIC, ConfigurationChange


class NotIntroduced(KlammError):
    """Voters have not told this leader yet who they are; running ones do so within a moment of its election."""

    def __init__(self, voter_ids: Iterable[int]) -> None:
        missing = ", ".join(map(str, voter_ids))
        text = (
            f"kraft.version cannot be raised: the directory and address of voter {missing} is not known; is it running?"
        )
        super().__init__(ErrorCode.INVALID_UPDATE_VERSION, text)


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
        return self._change(ConfigurationChange(VoterSet((*self.voters, voter))))

    def remove_voter(self, key: ReplicaKey, now_ms: int) -> Entry:
        """Let a voter vote no more; the last one stays."""
        self._refuse_change(now_ms)
        known = self.voters.get(key.id)
        if known is None or known.key != key:
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{key} is not a voter")
        if len(self.voters) == 1:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{key} is the last voter: without it nobody could decide")
        return self._change(ConfigurationChange(VoterSet(voter for voter in self.voters if voter.id != key.id)))

    def update_voter(self, voter: Voter, now_ms: int) -> Entry | None:
        """A voter tells who it is and where; None when nothing has to be written.

        What fixed voters tell is only remembered, for the moment in which they are made part of the log.
        """
        state = self._refuse_unless_leading(now_ms)
        known = self.voters.get(voter.id)
        if known is None or not known.key.same_replica(voter.key):
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{voter.key} is not a voter")
        if not voter.supports(self.configurations.latest.kraft_version):
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{voter.key} cannot run the quorum's kraft.version")
        if not self.configurations.latest.dynamic:
            state.introduced[voter.id] = voter
            return None
        if known == voter:
            return None
        self._refuse_change(now_ms)
        voters = VoterSet(voter if each.id == voter.id else each for each in self.voters)
        return self._change(ConfigurationChange(voters))

    def raise_kraft_version(self, level: int, own: Voter, now_ms: int, *, validate_only: bool = False) -> Entry | None:
        """Make fixed voters part of the log, so that they can change; None when nothing has to be written.

        Version and voters are one batch: whoever has one of them has both. Nobody's vote counts for more or less after
        it, because the voters are the same; they only get names for their directories and addresses. `own` is this
        leader's part of that, the others have told theirs (`update_voter`).
        """
        state = self._refuse_unless_leading(now_ms)
        current = self.configurations.latest.kraft_version
        if level < current:
            text = f"kraft.version cannot go back from {current} to {level}: the log names the voters already"
            raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, text)
        self._refuse_unless_settled()
        if level == current:
            return None
        voters = self._introduced_voters(state, own)
        unable = [str(voter.id) for voter in voters if not voter.supports(level)]
        if unable:
            text = f"kraft.version {level} is not supported by every voter: not by {', '.join(unable)}"
            raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, text)
        if validate_only:
            return None
        return self._change(ConfigurationChange(voters, level))

    def _introduced_voters(self, state: Leader, own: Voter) -> VoterSet:
        """The fixed voters with the directories and addresses they have told."""
        told = {**state.introduced, own.id: own}
        missing = [voter_id for voter_id in self.voters.ids if not _is_whole(told.get(voter_id))]
        if missing:
            raise NotIntroduced(missing)
        return VoterSet(told[voter_id] for voter_id in self.voters.ids)

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
        self._refuse_unless_settled()
        return state

    def _refuse_unless_settled(self) -> None:
        if not self.may_change_voters:
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, "a former change of the quorum is not committed yet")

    def _change(self, change: ConfigurationChange) -> Entry:
        return self._append_own(change, change.record_count)


def _is_whole(voter: Voter | None) -> bool:
    """Whether a voter is known well enough to be part of the log."""
    return voter is not None and voter.key.directory_id != ZERO_UUID and voter.port > 0
