"""DescribeTopicPartitions, v0: partitions page by page, with the eligible leader replicas (KIP-966).

Topics come in order of name, at most response_partition_limit partitions; a cursor names the next
partition.
"""

from klamm.metadata.image import MetadataImage, TopicImage
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from klamm.server.cluster.topics import is_internal, name_complaint, offline_replicas
from klamm.server.requests.access.checks import topic_denied
from klamm.server.requests.access.operations import topic_operations
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

PARTITIONS_MAX = 2000
"""The default of max.request.partition.size.limit."""


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe one page of partitions."""
    image = services.image
    names = sorted({topic.name for topic in request.topics} if request.topics else set(image.topics.by_name))
    # Named ones are refused; a listing of all topics leaves them out.
    audit = bool(request.topics)
    denied = [name for name in names if topic_denied(services, context, AclOperation.DESCRIBE, name, audit=audit)]
    refused = [_refuse_topic(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied if request.topics]
    if denied:
        names = [name for name in names if name not in set(denied)]
    first_index = 0
    if request.cursor is not None:
        if request.cursor.partition_index < 0:
            return DescribeTopicPartitionsResponse(
                topics=[_refuse_topic(name, ErrorCode.INVALID_REQUEST) for name in names]
            )
        # The topic of the cursor may have been deleted since: the page then begins with the next one.
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first_index = request.cursor.partition_index
    # At least one partition per page, or a client with a limit of 0 would never come to an end.
    budget = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        topic = image.topics.by_name.get(name)
        if topic is None:
            invalid = bool(name_complaint(name))
            error = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_refuse_topic(name, error))
            continue
        if not budget:
            return DescribeTopicPartitionsResponse(
                topics=topics + refused, next_cursor=Cursor(topic_name=name, partition_index=first_index)
            )
        described, next_index = _describe(image, topic, first_index, budget)
        described.topic_authorized_operations = topic_operations(services, context, name)
        topics.append(described)
        budget -= len(described.partitions)
        if next_index is not None:
            return DescribeTopicPartitionsResponse(
                topics=topics + refused, next_cursor=Cursor(topic_name=name, partition_index=next_index)
            )
        first_index = 0
    return DescribeTopicPartitionsResponse(topics=topics + refused)


def _refuse_topic(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name, topic_id=ZERO_UUID)


def _describe(
    image: MetadataImage, topic: TopicImage, first_index: int, budget: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    partitions = []
    indexes = [index for index in sorted(topic.partitions) if index >= first_index]
    for index in indexes[:budget]:
        partition = topic.partitions[index]
        leader = partition.leader if image.cluster.is_active(partition.leader) else -1
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=offline_replicas(image, partition),
            )
        )
    next_index = indexes[budget] if len(indexes) > budget else None
    described = DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
    )
    return described, next_index
