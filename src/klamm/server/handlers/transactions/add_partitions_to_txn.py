"""AddPartitionsToTxn, v0-5: add partitions to a transaction before it writes to them.

Up to v3 a client adds partitions of one transaction: all of them or none. From v4 brokers send many transactions at
once, to add partitions or only to verify that they were added.
v2 PRODUCER_FENCED · v3 flexible · v4 many transactions, verification · v5 abortable errors (KIP-890)
"""

import asyncio
from collections.abc import Iterable, Mapping

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from klamm.server.requests.access.checks import cluster_denied, topic_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

BATCHED_SINCE = 4
FENCED_SINCE = 2
BUMPING_VERSION = 2


async def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Ask the shard of every transaction."""
    if context.version >= BATCHED_SINCE:
        if cluster_denied(services, context, AclOperation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        # Concurrently: each may wait for the markers of its own previous transaction.
        results = await asyncio.gather(*(_handle_transaction(services, txn) for txn in request.transactions))
        return AddPartitionsToTxnResponse(results_by_transaction=list(results))
    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    topics = request.v3_and_below_topics
    partitions = _collect_partitions(topics)
    if transactional_id_denied(services, context, AclOperation.WRITE, request.v3_and_below_transactional_id):
        refusal = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_build_topic_results(topics, refusal))
    denied = {topic.name for topic in topics if topic_denied(services, context, AclOperation.WRITE, topic.name)}
    unknown = {partition for partition in partitions if services.image.topics.partition(*partition) is None}
    if unknown or denied:
        # All or none: one unknown partition keeps the others from being added.
        codes = {
            partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if partition.topic in denied
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition in unknown
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for partition in partitions
        }
    else:
        codes = await _add(services, request.v3_and_below_transactional_id, producer, partitions, 0)
    if context.version < FENCED_SINCE:
        # PRODUCER_FENCED is unknown to these clients.
        codes = {
            partition: ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
            for partition, code in codes.items()
        }
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_build_topic_results(topics, codes))


async def _handle_transaction(services: Services, txn: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
    producer = ProducerIdAndEpoch(txn.producer_id, txn.producer_epoch)
    partitions = _collect_partitions(txn.topics)
    if txn.verify_only:
        codes = await _verify(services, txn.transactional_id, producer, partitions)
    else:
        codes = await _add(services, txn.transactional_id, producer, partitions, BUMPING_VERSION)
    return AddPartitionsToTxnResult(
        transactional_id=txn.transactional_id, topic_results=_build_topic_results(txn.topics, codes)
    )


async def _add(
    services: Services,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    client_version: int,
) -> dict[TopicPartition, ErrorCode]:
    if not transactional_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)

    def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.add_partitions(transactional_id, producer, partitions, client_version, now, reply_to)

    try:
        await services.coordinators.transactions.submit_when_free(transactional_id, decide)
    except KlammError as error:
        return dict.fromkeys(partitions, error.code)
    return dict.fromkeys(partitions, ErrorCode.NONE)


async def _verify(
    services: Services, transactional_id: str, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    if not transactional_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)

    def decide(shard: TransactionShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.verify_partitions(transactional_id, producer, partitions, reply_to)

    try:
        codes: dict[TopicPartition, ErrorCode] = await services.coordinators.transactions.submit_and_wait(
            transactional_id, decide
        )
    except KlammError as error:
        return dict.fromkeys(partitions, error.code)
    return codes


def _collect_partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _build_topic_results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
