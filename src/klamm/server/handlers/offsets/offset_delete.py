"""OffsetDelete, v0: forget single offsets of a group, except of topics its members read.

v0 only, never flexible
"""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: OffsetDeleteRequest) -> object:
    """Forget what is known, refuse what is not."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    topics = services.image.topics
    kept, refused = [], []
    for topic in request.topics:
        known = topics.by_name.get(topic.name)
        count = len(known.partitions) if known is not None else 0
        there = [each for each in topic.partitions if 0 <= each.partition_index < count]
        missing = [each for each in topic.partitions if not 0 <= each.partition_index < count]
        if there:
            kept.append(OffsetDeleteRequestTopic(name=topic.name, partitions=there))
        if missing:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers = [
                OffsetDeleteResponsePartition(partition_index=e.partition_index, error_code=code) for e in missing
            ]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    request.topics = kept
    reply = DeferredReply(context, lambda code: OffsetDeleteResponse(error_code=code))

    def answer(response: Any) -> None:
        if isinstance(response, OffsetDeleteResponse):
            response.topics = _merged(response.topics + refused)
        reply(response)

    submit_to(services, request.group_id, lambda shard, _, reply_to: shard.delete_offsets(request, reply_to), answer)
    return ANSWERED


def _merged(topics: list[OffsetDeleteResponseTopic]) -> list[OffsetDeleteResponseTopic]:
    found: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in topics:
        if topic.name in found:
            found[topic.name].partitions += topic.partitions
        else:
            found[topic.name] = topic
    return list(found.values())
