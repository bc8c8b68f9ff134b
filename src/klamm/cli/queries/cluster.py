"""The cluster itself: its brokers, their API versions, its quorum, its log dirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.admin.cluster_types import ClusterDescription, EndpointType, QuorumDescription
from klamm.client.blocking_cluster import BlockingCluster

if TYPE_CHECKING:
    from klamm.client.admin.replica_types import LogDirDescription


def describe_cluster(cluster: BlockingCluster, *, include_fenced: bool = True) -> ClusterDescription:
    """The cluster's id and its brokers (controllers, if those were connected to), fenced ones too where known."""
    endpoint_type = EndpointType.CONTROLLER if cluster.has_controllers else EndpointType.BROKER
    work = ClusterAdmin(cluster).describe_cluster(include_fenced=include_fenced, endpoint_type=endpoint_type)
    return cluster.run(work)


def unregister_broker(cluster: BlockingCluster, broker_id: int) -> None:
    """Remove the registration of a broker; KlammError when it is not registered."""
    cluster.run(ClusterAdmin(cluster).unregister_broker(broker_id))


def describe_quorum(cluster: BlockingCluster) -> QuorumDescription:
    """The metadata quorum as its leader sees it."""
    return cluster.run(ClusterAdmin(cluster).describe_quorum())


def add_raft_voter(
    cluster: BlockingCluster,
    voter_id: int,
    directory_id: bytes,
    listeners: Sequence[tuple[str, str, int]],
    cluster_id: str,
) -> None:
    """Add a controller to the voters; KlammError when the cluster has another id."""
    cluster.run(ClusterAdmin(cluster).add_raft_voter(voter_id, directory_id, listeners, cluster_id=cluster_id))


def remove_raft_voter(cluster: BlockingCluster, voter_id: int, directory_id: bytes) -> None:
    """Remove a controller from the voters."""
    work = ClusterAdmin(cluster).remove_raft_voter(voter_id, directory_id, cluster_id=cluster.cluster_id)
    cluster.run(work)


def describe_api_versions(cluster: BlockingCluster, broker_id: int | None = None) -> dict[int, tuple[int, int]]:
    """The lowest and highest version of each API that a broker serves, by API key."""
    return cluster.run(ClusterAdmin(cluster).describe_api_versions(broker_id))


def describe_log_dirs(
    cluster: BlockingCluster, brokers: Iterable[int] | None = None
) -> list[tuple[int, LogDirDescription]]:
    """Every log dir of every broker (or of some), each with the id of its broker."""
    from klamm.client.admin.replicas import ReplicasAdmin

    log_dirs = cluster.run(ReplicasAdmin(cluster).describe_log_dirs(brokers))
    return [(broker_id, log_dir) for broker_id, held in log_dirs.items() for log_dir in held]
