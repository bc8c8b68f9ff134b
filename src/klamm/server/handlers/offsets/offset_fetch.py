"""OffsetFetch, v1-10: how far groups have read; -1 where nothing was committed, also for a group nobody knows.

With require_stable an offset that an open transaction would move is UNSTABLE_OFFSET_COMMIT, and the client asks again.
v2 null for all topics, error for the group · v5 leader epoch · v6 flexible · v7 stable offsets · v8 many groups ·
v9 members of the new group protocol · v10 topic ids
"""

from typing import Any

from klamm.coordinator.groups.offset_requests import NO_OFFSET, WantedTopic
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID, Uuid
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, Gathering
from klamm.server.requests.slices import Steps
from klamm.server.services import Services

MANY_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> Steps[object]:
    """Ask the shard of every group; older versions ask for one group in the same way."""
    version = context.version
    groups = request.groups if version >= MANY_GROUPS_SINCE else [_as_group(request)]
    reply = DeferredReply(context, lambda code: OffsetFetchResponse(error_code=code))

    def done(answers: list[Any]) -> None:
        if version >= MANY_GROUPS_SINCE:
            reply(OffsetFetchResponse(groups=answers))
        else:
            reply(_before_many_groups(answers[0], groups[0], version))

    gathering = Gathering(len(groups), done)
    for i, group in enumerate(groups):
        _fetch(services, version, group, request.require_stable, gathering.place(i))
        yield 1
    return ANSWERED


def _fetch(services: Services, version: int, group: OffsetFetchRequestGroup, require_stable: bool, answer: Any) -> None:
    image = services.image
    unknown: list[OffsetFetchResponseTopics] = []
    wanted: list[WantedTopic] | None = None
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            found = _wanted(image, topic, by_id=version >= TOPIC_IDS_SINCE)
            if found is None:
                unknown.append(_all(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                wanted.append(found)

    def finished(response: Any) -> None:
        if isinstance(response, KlammError):
            answer(OffsetFetchResponseGroup(group_id=group.group_id, error_code=_told(response.code)))
            return
        response.topics += unknown
        if version >= TOPIC_IDS_SINCE:
            response.topics = [topic for topic in response.topics if _identify(image, topic)]
        answer(response)

    submit_to(
        services,
        group.group_id,
        lambda shard, _, reply_to: shard.fetch_offsets(
            group.group_id, group.member_id, group.member_epoch, wanted, reply_to, require_stable=require_stable
        ),
        finished,
    )


def _wanted(image: MetadataImage, topic: OffsetFetchRequestTopics, *, by_id: bool) -> WantedTopic | None:
    if by_id:
        known = image.topics.by_id.get(Uuid(topic.topic_id))
        return WantedTopic(known.name, known.id, topic.partition_indexes) if known is not None else None
    known = image.topics.by_name.get(topic.name)
    return WantedTopic(topic.name, known.id if known is not None else ZERO_UUID, topic.partition_indexes)


def _identify(image: MetadataImage, topic: OffsetFetchResponseTopics) -> bool:
    """Give a topic of an all-topics answer its id; one that is gone cannot be named in v10."""
    if topic.topic_id == ZERO_UUID:
        known = image.topics.by_name.get(topic.name)
        topic.topic_id = known.id if known is not None else ZERO_UUID
    return topic.topic_id != ZERO_UUID


def _all(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        ],
    )


def _told(code: ErrorCode) -> ErrorCode:
    """Clients of before 3.9 do not retry COORDINATOR_NOT_AVAILABLE here; NOT_COORDINATOR makes them look again."""
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
    )


def _before_many_groups(
    group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """The answer up to v7; v1 has no error for the whole, so each partition says it."""
    topics = group.topics
    if group.error_code and version < 2:
        topics = [_all(topic, ErrorCode(group.error_code)) for topic in asked.topics or ()]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
