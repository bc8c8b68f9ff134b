"""DescribeProducers, v0: the producers that write to partitions, and the transactions they have open there.

Answered by the leader of each partition, from the producer state of its log; v0 only, flexible.
"""

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from klamm.server.requests.access.checks import topic_denied
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services


def handle(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> SliceSteps[DescribeProducersResponse]:
    """Describe the producer state of the named partitions' logs."""
    topics = []
    for topic in request.topics:
        result = TopicResponse(name=topic.name)
        denied = topic_denied(services, context, AclOperation.READ, topic.name, count=len(topic.partition_indexes))
        # Once each: a partition may have thousands of producers.
        for index in dict.fromkeys(topic.partition_indexes):
            if denied:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                partition = PartitionResponse(partition_index=index, error_code=code)
            else:
                partition = _describe(services, topic.name, index)
            result.partitions.append(partition)
            yield 1 + len(partition.active_producers)
        topics.append(result)
        yield 1
    return DescribeProducersResponse(topics=topics)


def _describe(services: Services, topic: str, index: int) -> PartitionResponse:
    if services.image.topics.partition(topic, index) is None:
        return PartitionResponse(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    replica = services.replicas.find(topic, index)
    if replica is None or not replica.leads:
        return PartitionResponse(partition_index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                # -1 without an open transaction; kafka-transactions finds hanging ones by this offset.
                current_txn_start_offset=entry.txn_first_offset,
            )
            for entry in replica.log.producers.entries.values()
        ],
    )
