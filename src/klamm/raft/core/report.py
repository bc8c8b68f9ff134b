"""The state of the quorum for DescribeQuorum: the leader, and the position of each replica."""

from dataclasses import dataclass

from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.roles import Leader, ReplicaProgress


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One voter or observer; times are wall-clock milliseconds, -1 when unknown."""

    replica: ReplicaKey
    log_end_offset: int = -1
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class QuorumReport:
    """The quorum as seen by one member; only the leader has the positions of others."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaReport, ...]
    observers: tuple[ReplicaReport, ...]


def report_quorum(core: RaftCore, now_ms: int, monotonic_ms: int) -> QuorumReport:
    """Build the report; the core's monotonic times become wall-clock times."""
    leadership, state = core.leadership, core.state

    def wall(at_ms: int) -> int:
        return -1 if at_ms < 0 else now_ms - (monotonic_ms - at_ms)

    def report(progress: ReplicaProgress) -> ReplicaReport:
        if progress.key.id == core.local.id:  # by the key in the voter set: static voters have no directory ids
            return ReplicaReport(progress.key, core.log.end_offset, now_ms, now_ms)
        last_fetch, caught_up = wall(progress.last_fetch_ms), wall(progress.last_caught_up_ms)
        return ReplicaReport(progress.key, progress.end_offset, last_fetch, caught_up)

    if isinstance(state, Leader):
        voters = tuple(report(progress) for progress in state.progress.values())
        observers = tuple(report(progress) for progress in state.observers.values())
    else:
        voters = tuple(ReplicaReport(voter.key) for voter in core.voters)
        observers = ()
    return QuorumReport(leadership.leader_id, leadership.epoch, core.high_watermark, voters, observers)
