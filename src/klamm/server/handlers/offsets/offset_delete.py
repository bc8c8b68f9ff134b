"""OffsetDelete, v0: delete offsets of a group, except for topics that its members subscribe to.

v0 only, never flexible
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.access.checks import group_denied, topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> object:
    """Delete offsets of known partitions and refuse the others."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if group_denied(services, context, AclOperation.DELETE, request.group_id):
        return _refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    topics = services.image.topics
    known_topics, refused = [], []
    for topic in request.topics:
        image = topics.by_name.get(topic.name)
        denied = topic_denied(services, context, AclOperation.READ, topic.name, count=len(topic.partitions))
        count = len(image.partitions) if image is not None and not denied else 0
        known = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
        unknown = [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]
        if known:
            known_topics.append(OffsetDeleteRequestTopic(name=topic.name, partitions=known))
        if unknown:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions = [
                OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
                for partition in unknown
            ]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    # The group decides on existing partitions only, as in Kafka.
    request.topics = known_topics
    reply = DeferredReply(context, _refuse)

    def decide(shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.delete_offsets(request, reply_to)

    def send_reply(response: Any) -> None:
        if isinstance(response, OffsetDeleteResponse):
            response.topics = _merge_topics(response.topics + refused)
        reply(response)

    submit_to(services, request.group_id, decide, send_reply)
    return ANSWERED


def _refuse(code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)


def _merge_topics(topics: list[OffsetDeleteResponseTopic]) -> list[OffsetDeleteResponseTopic]:
    """Join the results of known and unknown partitions of the same topic."""
    by_name: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in topics:
        if topic.name in by_name:
            by_name[topic.name].partitions += topic.partitions
        else:
            by_name[topic.name] = topic
    return list(by_name.values())
