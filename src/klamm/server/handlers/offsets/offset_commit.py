"""OffsetCommit, v2-10: store the offsets of a group.

A partition that does not exist is refused alone; all others succeed or fail together, with the same error for each
partition. Without a member id (generation -1) offsets can be committed to a group without members.
v5 no retention time · v6 leader epoch · v7 static members · v8 flexible · v9 members of the new group protocol ·
v10 topic ids
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.offset_requests import CommitCodes, CommitTopic, OffsetCommit, OffsetRow
from klamm.metadata.image import TopicsImage
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.access.checks import group_denied, topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.requests.slices import SLICE_ELEMENTS, SliceSteps, cut
from klamm.server.services import Services

TOPIC_IDS_SINCE = 10

RequestedTopic = tuple[Any, list[OffsetRow]]
"""(name, or from v10 on the topic id, and its rows), as `kernels.read_commit` returns it."""


class UnknownPartitions(NamedTuple):
    """Partitions of a request that the cluster does not have."""

    name_or_id: Any
    rows: list[OffsetRow]
    code: ErrorCode


def handle(services: Services, context: RequestContext, request: OffsetCommitRequest) -> object:
    """Commit the offsets of known partitions and refuse the others."""
    if services.access is not None:
        refusal = _find_refusal(services, context, request)
        if refusal is not None:
            return refusal
    if len(request.topics) > SLICE_ELEMENTS:
        return _handle_many(services, context, request)
    by_id = context.version >= TOPIC_IDS_SINCE
    requested = _read_topics(request.topics, by_id=by_id)
    topics, unknown = resolve_topics(services.image.topics, requested, by_id=by_id)
    if services.access is not None:
        topics, unknown = _deny_topics(services, context, topics, unknown, by_id=by_id)
    # Answered without the group: there is nothing for it to decide.
    if unknown and not topics:
        return _add_unknown(OffsetCommitResponse(), unknown)
    return _submit(services, context, request, requested, topics, unknown)


def _find_refusal(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | None:
    """Return the response to a client without the right on the group: every partition has the error."""
    if not group_denied(services, context, AclOperation.READ, request.group_id):
        return None
    requested = _read_topics(request.topics, by_id=context.version >= TOPIC_IDS_SINCE)
    return refuse_all(requested, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _deny_topics(
    services: Services,
    context: RequestContext,
    topics: list[CommitTopic],
    unknown: list[UnknownPartitions],
    *,
    by_id: bool,
) -> tuple[list[CommitTopic], list[UnknownPartitions]]:
    """Move the topics that the client may not read to those that are refused; a missing one may be forbidden, too."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    allowed: list[CommitTopic] = []
    refused: list[UnknownPartitions] = []
    denials: dict[str, bool] = {}
    for name, topic_id, rows in topics:
        denials[name] = topic_denied(services, context, AclOperation.READ, name, count=len(rows))
        if denials[name]:
            refused.append(UnknownPartitions(topic_id if by_id else name, rows, code))
        else:
            allowed.append((name, topic_id, rows))
    for partitions in unknown:
        known_name = _find_name(services, partitions.name_or_id)
        if known_name is None:
            refused.append(partitions)
            continue
        if known_name not in denials:
            count = len(partitions.rows)
            denials[known_name] = topic_denied(services, context, AclOperation.READ, known_name, count=count)
        refused.append(partitions._replace(code=code) if denials[known_name] else partitions)
    return allowed, refused


def _find_name(services: Services, name_or_id: Any) -> str | None:
    """Return the name of a requested topic; None for an id that does not exist, which is no secret."""
    if isinstance(name_or_id, str):
        return name_or_id
    topic = services.image.topics.by_id.get(name_or_id)
    return None if topic is None else topic.name


def _handle_many(services: Services, context: RequestContext, request: OffsetCommitRequest) -> SliceSteps[object]:
    """As `handle`, for a request that names many topics."""
    by_id = context.version >= TOPIC_IDS_SINCE
    requested: list[RequestedTopic] = []
    topics: list[CommitTopic] = []
    unknown: list[UnknownPartitions] = []
    for some_topics in cut(request.topics):
        rows = _read_topics(some_topics, by_id=by_id)
        known, missing = resolve_topics(services.image.topics, rows, by_id=by_id)
        if services.access is not None:
            known, missing = _deny_topics(services, context, known, missing, by_id=by_id)
        requested += rows
        topics += known
        unknown += missing
        yield len(some_topics)
    if topics or not unknown:
        return _submit(services, context, request, requested, topics, unknown)
    response = OffsetCommitResponse()
    for refused in cut(unknown):
        response.topics += [_refuse(*partitions) for partitions in refused]
        yield len(refused)
    return response


def _submit(
    services: Services,
    context: RequestContext,
    request: OffsetCommitRequest,
    requested: list[RequestedTopic],
    topics: list[CommitTopic],
    unknown: list[UnknownPartitions],
) -> object:
    version = context.version
    reply = DeferredReply(context, partial(refuse_all, requested))

    def send_reply(codes: Any) -> None:
        # A KlammError refuses all requested partitions, the unknown ones among them.
        reply(codes if isinstance(codes, KlammError) else _add_unknown(build_response(topics, codes), unknown))

    commit = OffsetCommit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        topics,
        request.retention_time_ms,
    )

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.commit_offsets(commit, version, now, reply_to)

    submit_to(services, request.group_id, decide, send_reply)
    return ANSWERED


def _read_topics(topics: Iterable[OffsetCommitRequestTopic], *, by_id: bool) -> list[RequestedTopic]:
    return [
        (
            topic.topic_id if by_id else topic.name,
            [
                (
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    # Kafka stores null metadata as an empty string.
                    partition.committed_metadata or "",
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


def resolve_topics(
    image: TopicsImage, requested: Iterable[RequestedTopic], *, by_id: bool
) -> tuple[list[CommitTopic], list[UnknownPartitions]]:
    """Return the topics of a commit with names and ids, and what of it the cluster does not have."""
    topics: list[CommitTopic] = []
    unknown = []
    for name_or_id, rows in requested:
        topic = image.by_id.get(name_or_id) if by_id else image.by_name.get(name_or_id)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown.append(UnknownPartitions(name_or_id, rows, code))
            continue
        partitions = topic.partitions
        # The usual case, without a copy: every partition exists.
        known = rows
        for row in rows:
            if row[0] not in partitions:
                missing = [row for row in rows if row[0] not in partitions]
                unknown.append(UnknownPartitions(name_or_id, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                known = [row for row in rows if row[0] in partitions]
                break
        if known:
            topics.append((topic.name, topic.id, known))
    return topics, unknown


def build_response(topics: Iterable[CommitTopic], codes: CommitCodes) -> OffsetCommitResponse:
    """Return the response to a commit that its group has decided."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=row[0],
                        error_code=codes[position][row_position] if codes else ErrorCode.NONE,
                    )
                    for row_position, row in enumerate(rows)
                ],
            )
            for position, (name, topic_id, rows) in enumerate(topics)
        ]
    )


def refuse_all(requested: Iterable[RequestedTopic], code: ErrorCode) -> OffsetCommitResponse:
    """Return the response that refuses every partition of a request with the same error."""
    return OffsetCommitResponse(topics=[_refuse(name_or_id, rows, code) for name_or_id, rows in requested])


def _refuse(name_or_id: Any, rows: Iterable[OffsetRow], code: ErrorCode) -> OffsetCommitResponseTopic:
    by_name = isinstance(name_or_id, str)
    return OffsetCommitResponseTopic(
        name=name_or_id if by_name else "",
        topic_id=ZERO_UUID if by_name else name_or_id,
        partitions=[OffsetCommitResponsePartition(partition_index=row[0], error_code=code) for row in rows],
    )


def _add_unknown(response: OffsetCommitResponse, unknown: Iterable[UnknownPartitions]) -> OffsetCommitResponse:
    """Add the refusals of unknown partitions: to their topic if it was answered, else as topics of their own."""
    by_name = {topic.name: topic for topic in response.topics}
    by_id = {bytes(topic.topic_id): topic for topic in response.topics}
    for name_or_id, rows, code in unknown:
        refused = _refuse(name_or_id, rows, code)
        known = by_name.get(name_or_id) if isinstance(name_or_id, str) else by_id.get(bytes(name_or_id))
        if known is not None:
            known.partitions.extend(refused.partitions)
        else:
            response.topics.append(refused)
    return response
