"""What the findings of the overview need beside a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.client.admin.cluster_types import QuorumDescription
from klamm.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ClusterSigns:
    """What was read of a cluster with a sample of it; empty where it is not known."""

    stuck_transactions: int = 0
    minimums: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of topics that have a replica out of sync."""
    quorum: QuorumDescription | None = None
    quorum_error: str = ""
    """Why the quorum did not answer, for longer than an election takes."""
    registry_error: str = ""
    stalled_moves: tuple[TopicPartition, ...] = ()
    """Partitions whose new replicas have got no bytes for a while."""
    left_throttle: int | None = None
    """Bytes per second of a throttle while nothing moves."""
    growing_groups: frozenset[str] = frozenset()
    """Groups whose lag is larger than in the sample before."""
