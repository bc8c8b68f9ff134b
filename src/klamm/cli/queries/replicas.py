"""Replicas: reassignments under way, starting and cancelling them, and leader elections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from klamm.cli.queries.offsets import PartitionPair
from klamm.cli.queries.outcomes import ItemOutcome, item_outcomes
from klamm.client.admin.replica_types import ElectionType, Reassignment
from klamm.client.admin.replicas import ReplicasAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError, SomeFailed
from klamm.client.types import TopicPartition
from klamm.model.errors import ErrorCode


def list_reassignments(
    cluster: BlockingCluster, partitions: Iterable[PartitionPair] | None = None
) -> Mapping[TopicPartition, Reassignment]:
    """Partitions that are moving, of all or of some."""
    wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
    return cluster.run(ReplicasAdmin(cluster).list_partition_reassignments(wanted))


def reassign(
    cluster: BlockingCluster,
    targets: Mapping[TopicPartition, Sequence[int] | None] | Mapping[PartitionPair, Sequence[int] | None],
) -> dict[TopicPartition, ItemOutcome]:
    """Give partitions new replicas, or (None) cancel their reassignment; the outcome of each."""
    wanted = {TopicPartition(*partition): replicas for partition, replicas in targets.items()}
    return item_outcomes(cluster, ReplicasAdmin(cluster).alter_partition_reassignments(wanted), wanted)


def elect_leaders(
    cluster: BlockingCluster, election: ElectionType, partitions: Iterable[PartitionPair] | None
) -> dict[TopicPartition, ItemOutcome]:
    """Elect leaders of some partitions, or (None) of all that need it; the outcome of each."""
    wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
    changed: Mapping[TopicPartition, bool]
    failures: Mapping[TopicPartition, KafkaError] = {}
    try:
        changed = cluster.run(ReplicasAdmin(cluster).elect_leaders(wanted, election))
    except SomeFailed as error:
        changed, failures = error.results, error.failures
    except KafkaError as error:
        if error.item is None:
            raise
        changed, failures = {}, {error.item: error}
    outcomes: dict[TopicPartition, ItemOutcome] = {
        partition: (ErrorCode.NONE if has_changed else ErrorCode.ELECTION_NOT_NEEDED, None)
        for partition, has_changed in changed.items()
    }
    outcomes.update({partition: (error.code, error.detail) for partition, error in failures.items()})
    return outcomes
