"""The cluster itself: its brokers, its quorum, its log dirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.admin.cluster_types import ClusterDescription, QuorumDescription
from klamm.client.blocking_cluster import BlockingCluster

if TYPE_CHECKING:
    from klamm.client.admin.replica_types import LogDirDescription


def describe_cluster(cluster: BlockingCluster) -> ClusterDescription:
    """The cluster's id and its brokers, fenced ones too where the broker tells."""
    return cluster.run(ClusterAdmin(cluster).describe_cluster(include_fenced=True))


def unregister_broker(cluster: BlockingCluster, broker_id: int) -> None:
    """Remove the registration of a broker; KlammError when it is not registered."""
    cluster.run(ClusterAdmin(cluster).unregister_broker(broker_id))


def describe_quorum(cluster: BlockingCluster) -> QuorumDescription:
    """The metadata quorum as its leader sees it."""
    return cluster.run(ClusterAdmin(cluster).describe_quorum())


def describe_log_dirs(
    cluster: BlockingCluster, brokers: Iterable[int] | None = None
) -> list[tuple[int, LogDirDescription]]:
    """Every log dir of every broker (or of some), each with the id of its broker."""
    from klamm.client.admin.replicas import ReplicasAdmin

    log_dirs = cluster.run(ReplicasAdmin(cluster).describe_log_dirs(brokers))
    return [(broker_id, log_dir) for broker_id, held in log_dirs.items() for log_dir in held]
