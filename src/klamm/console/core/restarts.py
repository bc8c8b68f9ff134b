"""Whether a broker may restart without taking partitions or the quorum down."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.client.admin.cluster_types import QuorumDescription
from klamm.console.core.samples import ClusterSample
from klamm.model.units import counted

_VOTER_LAG_MAX = 100
"""Records of the metadata log that a voter may be behind and count as caught up."""


@dataclass(frozen=True, slots=True)
class RestartCheck:
    """`safe`, and if not, what would stop working."""

    safe: bool
    reasons: tuple[str, ...]


def check_restart(sample: ClusterSample, broker: int, quorum: QuorumDescription | None) -> RestartCheck:
    """Return whether all else stays available while a broker restarts.

    min.insync.replicas is not in a sample: a partition counts as available while one other replica is in sync.
    """
    reasons = []
    alone = [
        f"{topic.name}-{partition.index}"
        for topic in sample.topics.values()
        for partition in topic.partitions
        if partition.isr == (broker,)
    ]
    if alone:
        verb = "has" if len(alone) == 1 else "have"
        reasons.append(
            f"{counted(len(alone), 'partition')} {verb} no other replica in sync, such as {alone[0]}:"
            " no reads and writes while it restarts"
        )
    if quorum is not None:
        voters = {voter.replica_id: voter for voter in quorum.voters}
        if broker in voters and len(voters) > 1:
            current = sum(
                1
                for voter in voters.values()
                if voter.replica_id != broker
                and (
                    voter.replica_id == quorum.leader_id
                    or quorum.high_watermark - voter.log_end_offset <= _VOTER_LAG_MAX
                )
            )
            needed = len(voters) // 2 + 1
            if current < needed:
                reasons.append(f"the quorum needs {needed} voters, and {current} others have caught up")
        elif broker in voters:
            reasons.append("it is the only controller: no changes while it restarts")
    return RestartCheck(not reasons, tuple(reasons))
