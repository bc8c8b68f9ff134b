"""Changing the voters one at a time, so that the majorities before and after a change always overlap (KIP-853).

A change is a control record. A leader accepts it only after it has committed a record of its own epoch, and only when
the change before it is committed: both are needed for single-server changes to be safe (Ongaro's thesis, section 4.1,
with the correction posted to raft-dev in 2015). Static voters become dynamic ones by a change of kraft.version that
leaves the set the same.
"""

from collections.abc import Iterable

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.raft.core.messages import Entry
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.replica import RaftReplica
from klamm.raft.core.replication import LeaderReplication
from klamm.raft.core.roles import Leader
from klamm.raft.core.voter_history import DYNAMIC, VoterChange


class UnknownVoterDetails(KlammError):
    """Raised while voters have not reported directory and address; running ones do so soon after an election."""

    def __init__(self, voter_ids: Iterable[int]) -> None:
        missing = ", ".join(map(str, voter_ids))
        text = (
            f"kraft.version cannot be raised: the directory and address of voter {missing} is not known; is it running?"
        )
        super().__init__(ErrorCode.INVALID_UPDATE_VERSION, text)


class VoterChanges:
    """Adds, removes and updates voters on the leader; each method raises KlammError where a rule forbids it."""

    def __init__(self, replica: RaftReplica, leader: LeaderReplication) -> None:
        self._replica = replica
        self._leader = leader

    def add_voter(self, voter: Voter) -> Entry:
        """Make a voter of an observer that has caught up with the log."""
        replica = self._replica
        state = self._require_changeable()
        if voter.id in replica.voters:
            raise KlammError(ErrorCode.DUPLICATE_VOTER, f"{voter.id} is a voter already")
        progress = state.observers.get(voter.key)
        # A voter that is far behind would hold the high watermark back until it has caught up.
        if progress is None or not progress.is_caught_up(
            replica.log.end_offset, replica.now_ms, replica.timeouts.fetch_timeout_ms
        ):
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, f"{voter.key} has not caught up with the log")
        return self._append(VoterChange(VoterSet((*replica.voters, voter))))

    def remove_voter(self, key: ReplicaKey) -> Entry:
        """Make an observer of a voter; the last voter cannot be removed."""
        replica = self._replica
        self._require_changeable()
        voter = replica.voters.get(key.id)
        # Exactly this replica: a request that names the former disk of a node must not remove its new one.
        if voter is None or voter.key != key:
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{key} is not a voter")
        if len(replica.voters) == 1:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{key} is the last voter and cannot be removed")
        return self._append(VoterChange(VoterSet(voter for voter in replica.voters if voter.id != key.id)))

    def update_voter(self, updated: Voter) -> Entry | None:
        """Take a voter's report of its directory, address and versions; None when nothing has to be written.

        Static voters are not in the log: what they report is kept in memory until kraft.version is raised.
        """
        replica = self._replica
        state = self._require_leader()
        voter = replica.voters.get(updated.id)
        if voter is None or not voter.key.same_replica(updated.key):
            raise KlammError(ErrorCode.VOTER_NOT_FOUND, f"{updated.key} is not a voter")
        if not updated.supports(replica.voter_history.latest.kraft_version):
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{updated.key} does not support the quorum's kraft.version")
        if not replica.voter_history.latest.dynamic:
            state.reported_voters[updated.id] = updated
            return None
        if voter == updated:
            return None
        self._require_changeable()
        # A new address is a change like any other: the replicas must not disagree about how to reach a voter.
        voters = VoterSet(updated if voter.id == updated.id else voter for voter in replica.voters)
        return self._append(VoterChange(voters))

    def raise_kraft_version(self, level: int, own: Voter, *, validate_only: bool = False) -> Entry | None:
        """Make static voters part of the log, so that they can change; None when nothing has to be written.

        Version and voters are one batch, so that no log can hold one without the other. The set of voters stays the
        same, hence so do its majorities; it only gains directories and addresses. `own` is this leader's entry, those
        of the others come from `update_voter`.
        """
        replica = self._replica
        state = self._require_leader()
        current = replica.voter_history.latest.kraft_version
        if level < current:
            text = f"kraft.version cannot be lowered from {current} to {level}: the voters are part of the log"
            raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, text)
        self._require_no_pending_change()
        if level == current:
            return None
        voters = self._reported_voters(state, own)
        unable = [str(voter.id) for voter in voters if not voter.supports(level)]
        if unable:
            text = f"kraft.version {level} is not supported by every voter: not by {', '.join(unable)}"
            raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, text)
        if validate_only:
            return None
        return self._append(VoterChange(voters, level))

    @property
    def is_allowed(self) -> bool:
        """Whether this leader has committed a record of its epoch, and the change before."""
        state, high_watermark = self._replica.state, self._replica.high_watermark
        return (
            isinstance(state, Leader)
            and high_watermark > state.epoch_start_offset
            and high_watermark > self._replica.voter_history.offset
        )

    def _append(self, change: VoterChange) -> Entry:
        return self._leader.append(change, change.record_count)

    def _reported_voters(self, state: Leader, own: Voter) -> VoterSet:
        """The static voters with the directories and addresses they have reported."""
        reported = {**state.reported_voters, own.id: own}
        voter_ids = self._replica.voters.ids
        missing = [voter_id for voter_id in voter_ids if not _is_complete(reported.get(voter_id))]
        if missing:
            raise UnknownVoterDetails(missing)
        return VoterSet(reported[voter_id] for voter_id in voter_ids)

    def _require_leader(self) -> Leader:
        state = self._replica.state
        if not isinstance(state, Leader):
            raise KlammError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the quorum's leader is {state.leader_id}")
        return state

    def _require_changeable(self) -> Leader:
        state = self._require_leader()
        if self._replica.voter_history.latest.kraft_version < DYNAMIC:
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, "the voters are static: kraft.version is 0")
        self._require_no_pending_change()
        return state

    def _require_no_pending_change(self) -> None:
        if not self.is_allowed:
            # Retriable: the client, or the server on its behalf, tries again until the change is committed.
            raise KlammError(ErrorCode.REQUEST_TIMED_OUT, "an earlier change of the voters is not committed yet")


def _is_complete(voter: Voter | None) -> bool:
    """Whether a voter has reported all that the log must hold of it."""
    return voter is not None and voter.key.directory_id != ZERO_UUID and voter.port > 0
