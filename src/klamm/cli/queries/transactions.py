"""Transactions: listing and describing them, the producers of a partition, and aborting what is open."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.client.admin.transaction_types import ProducerState, TransactionDescription, TransactionListing
from klamm.client.admin.transactions import TransactionsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError
from klamm.client.types import TopicPartition
from klamm.model.errors import ErrorCode


def list_transactions(
    cluster: BlockingCluster, *, states: Iterable[str] = (), duration_ms: int = -1, pattern: str | None = None
) -> list[TransactionListing]:
    """Transactional ids of all coordinators, by name."""
    return cluster.run(
        TransactionsAdmin(cluster).list_transactions(states=states, duration_ms=duration_ms, pattern=pattern)
    )


def describe_transaction(cluster: BlockingCluster, transactional_id: str) -> TransactionDescription:
    """The state of a transactional id; the KafkaError has an `item` when the coordinator does not have the id."""
    return cluster.run(TransactionsAdmin(cluster).describe_transactions([transactional_id]))[transactional_id]


def describe_producers(
    cluster: BlockingCluster, topic: str, partition: int, broker: int | None = None
) -> list[ProducerState]:
    """The producers that the leader of a partition, or its replica on `broker`, keeps state of."""
    where = TopicPartition(topic, partition)
    return cluster.run(TransactionsAdmin(cluster).describe_producers([where], broker=broker))[where]


def open_partitions(cluster: BlockingCluster) -> dict[int, set[TopicPartition]]:
    """Partitions that coordinators have in an open transaction, by producer id."""
    partitions: dict[int, set[TopicPartition]] = {}
    for listing in list_transactions(cluster):
        try:
            description = describe_transaction(cluster, listing.transactional_id)
        except KafkaError as error:
            # An id may expire between the list and its description.
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue
        partitions.setdefault(description.producer_id, set()).update(description.partitions)
    return partitions


def abort_transaction(
    cluster: BlockingCluster,
    topic: str,
    partition: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Have the leader of a partition write an abort marker."""
    # A partition shows coordinator epoch -1 until the producer's first marker; a marker needs one from 0 on, and 0 is
    # what Kafka's tool writes then.
    epoch = max(coordinator_epoch, 0)
    where = TopicPartition(topic, partition)
    cluster.run(TransactionsAdmin(cluster).abort_transaction(where, producer_id, producer_epoch, epoch))


def fence_producer(cluster: BlockingCluster, transactional_id: str, transaction_timeout_ms: int) -> None:
    """Fence the producer of a transactional id, which aborts its open transaction."""
    work = TransactionsAdmin(cluster).fence_producers([transactional_id], transaction_timeout_ms=transaction_timeout_ms)
    cluster.run(work)
