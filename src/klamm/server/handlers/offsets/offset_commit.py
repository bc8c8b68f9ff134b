"""OffsetCommit, v2-10: remember how far a group has read.

A partition the cluster does not know is refused by itself; everything else stands or falls together, with the same
error for each partition. Anybody may commit to a group without members (generation -1).
v5 no retention time · v6 leader epoch · v7 static members · v8 flexible · v9 members of the new group protocol ·
v10 topic ids
"""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.model.ids import Uuid
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services

TOPIC_IDS_SINCE = 10


def handle(services: Services, context: RequestContext, request: OffsetCommitRequest) -> object:
    """Commit what is known, refuse what is not."""
    asked = request.topics
    refused = _sort_out(services, context, request)
    if refused and not request.topics:
        return OffsetCommitResponse(topics=refused)
    reply = DeferredReply(context, lambda code: OffsetCommitResponse(topics=[_all(topic, code) for topic in asked]))
    version = context.version

    def answer(response: Any) -> None:
        if refused and isinstance(response, OffsetCommitResponse):
            _merge(response, refused)
        reply(response)

    submit_to(
        services,
        request.group_id,
        lambda shard, now, reply_to: shard.commit_offsets(request, version, now, reply_to),
        answer if refused else reply,
    )
    return ANSWERED


def _sort_out(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> list[OffsetCommitResponseTopic]:
    """Give every topic its name and id; take out what the cluster does not know and return the refusals."""
    image = services.image.topics
    kept, refused = [], []
    for topic in request.topics:
        if context.version >= TOPIC_IDS_SINCE:
            known = image.by_id.get(Uuid(topic.topic_id))
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            known = image.by_name.get(topic.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known is None:
            refused.append(_all(topic, missing))
            continue
        topic.name, topic.topic_id = known.name, known.id
        partitions = known.partitions
        if any(each.partition_index not in partitions for each in topic.partitions):
            gone = [each for each in topic.partitions if each.partition_index not in partitions]
            topic = OffsetCommitRequestTopic(  # noqa: PLW2901 - the request as it came is needed for refusals
                name=known.name,
                topic_id=known.id,
                partitions=[each for each in topic.partitions if each.partition_index in partitions],
            )
            unknown = OffsetCommitRequestTopic(name=known.name, topic_id=known.id, partitions=gone)
            refused.append(_all(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if topic.partitions:
            kept.append(topic)
    request.topics = kept
    return refused


def _all(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


def _merge(response: OffsetCommitResponse, refused: list[OffsetCommitResponseTopic]) -> None:
    answered = {(topic.name, topic.topic_id): topic for topic in response.topics}
    for topic in refused:
        known = answered.get((topic.name, topic.topic_id))
        if known is not None:
            known.partitions.extend(topic.partitions)
        else:
            response.topics.append(topic)
