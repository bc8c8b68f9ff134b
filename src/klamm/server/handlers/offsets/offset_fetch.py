"""OffsetFetch, v1-10: the committed offsets of groups; -1 where there is none, also for an unknown group.

With require_stable an offset that an open transaction would move is UNSTABLE_OFFSET_COMMIT, and the client retries.
v2 null for all topics, error for the group · v5 leader epoch · v6 flexible · v7 stable offsets · v8 many groups ·
v9 members of the new group protocol · v10 topic ids
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.offset_requests import NO_OFFSET, WantedTopic
from klamm.metadata.image import MetadataImage
from klamm.model.acls import AclOperation
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
from klamm.server.requests.access.checks import group_denied, topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, ReplyCollector
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services

MANY_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> SliceSteps[object]:
    """Ask the shard of every group; the one group of older versions is treated as a list of one."""
    version = context.version
    groups = request.groups if version >= MANY_GROUPS_SINCE else [_as_group(request)]
    reply = DeferredReply(context, _refuse)

    def finish(responses: list[Any]) -> None:
        if version >= MANY_GROUPS_SINCE:
            reply(OffsetFetchResponse(groups=responses))
        else:
            # Up to v7 the response has the fields of its one group at the top level.
            reply(_build_single_group_response(responses[0], groups[0], version))

    collector = ReplyCollector(len(groups), finish)
    for position, group in enumerate(groups):
        _fetch(services, context, group, request.require_stable, collector.place(position))
        yield 1
    return ANSWERED


def _refuse(code: ErrorCode) -> OffsetFetchResponse:
    return OffsetFetchResponse(error_code=code)


def _fetch(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool, reply: Any
) -> None:
    version, image = context.version, services.image
    if group_denied(services, context, AclOperation.DESCRIBE, group.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        reply(OffsetFetchResponseGroup(group_id=group.group_id, error_code=code))
        return
    unknown: list[OffsetFetchResponseTopics] = []
    wanted: list[WantedTopic] | None = None
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            wanted_topic = _resolve_topic(image, topic, by_id=version >= TOPIC_IDS_SINCE)
            if wanted_topic is None:
                unknown.append(_refuse_topic(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            elif topic_denied(services, context, AclOperation.DESCRIBE, wanted_topic.name):
                unknown.append(_refuse_topic(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                wanted.append(wanted_topic)

    def decide(shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.fetch_offsets(
            group.group_id, group.member_id, group.member_epoch, wanted, reply_to, require_stable=require_stable
        )

    def finish(response: Any) -> None:
        if isinstance(response, KlammError):
            reply(OffsetFetchResponseGroup(group_id=group.group_id, error_code=_translate_code(response.code)))
            return
        if wanted is None and services.access is not None:
            response.topics = [
                topic
                for topic in response.topics
                if not topic_denied(services, context, AclOperation.DESCRIBE, topic.name, audit=False)
            ]
        # Unknown ids are answered beside the known ones, each with an error of its own.
        response.topics += unknown
        if version >= TOPIC_IDS_SINCE:
            response.topics = [topic for topic in response.topics if _identify(image, topic)]
        reply(response)

    submit_to(services, group.group_id, decide, finish)


def _resolve_topic(image: MetadataImage, topic: OffsetFetchRequestTopics, *, by_id: bool) -> WantedTopic | None:
    """Return a topic with name and id; None for an unknown id. Offsets of a deleted topic can be fetched by name."""
    if by_id:
        known = image.topics.by_id.get(Uuid(topic.topic_id))
        return WantedTopic(known.name, known.id, topic.partition_indexes) if known is not None else None
    known = image.topics.by_name.get(topic.name)
    return WantedTopic(topic.name, known.id if known is not None else ZERO_UUID, topic.partition_indexes)


def _identify(image: MetadataImage, topic: OffsetFetchResponseTopics) -> bool:
    """Give a topic of an all-topics response its id; one that is gone cannot be named in v10."""
    if topic.topic_id == ZERO_UUID:
        known = image.topics.by_name.get(topic.name)
        topic.topic_id = known.id if known is not None else ZERO_UUID
    return topic.topic_id != ZERO_UUID


def _refuse_topic(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
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


def _translate_code(code: ErrorCode) -> ErrorCode:
    """Return a code that clients retry: before 3.9 they do so for NOT_COORDINATOR, not COORDINATOR_NOT_AVAILABLE."""
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in topics],
    )


def _build_single_group_response(
    group: OffsetFetchResponseGroup, requested: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """Return the response of versions up to v7, which have one group."""
    topics = group.topics
    if group.error_code and version < 2:
        # v1 has no error for the group, so every partition carries it.
        topics = [_refuse_topic(topic, ErrorCode(group.error_code)) for topic in requested.topics or ()]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
