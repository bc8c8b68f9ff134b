"""What is asked about offsets: commit them, alone or inside a transaction, read them, remove them."""

from collections.abc import Sequence
from typing import NamedTuple

from klamm.coordinator.core.shard import Record
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.group import CheckPartition, Group
from klamm.coordinator.groups.offsets import CommittedOffset, Offsets, offset_record, offset_tombstone
from klamm.model.config import MAX_LONG
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NO_OFFSET = -1
SURELY_SMALL = 50
"""Offsets that fit into a batch whatever their notes."""


class WantedTopic(NamedTuple):
    """A topic somebody asks the offsets of; its id is zero when the cluster does not know it."""

    name: str
    topic_id: bytes
    partitions: Sequence[int]


def commit(
    config: GroupConfig, request: OffsetCommitRequest, wall_ms: int, check: CheckPartition | None = None
) -> tuple[list[Record], OffsetCommitResponse]:
    """Records and answer for a commit that is allowed. Topics carry their names, and their ids where known."""
    records = []
    topics = []
    # A retention that ends after the last moment a record can tell is one without an end of its own.
    expires = min(wall_ms + request.retention_time_ms, MAX_LONG) if request.retention_time_ms >= 0 else -1
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            note = partition.committed_metadata or ""
            index = partition.partition_index
            code = check(bytes(topic.topic_id), index) if check is not None else ErrorCode.NONE
            if len(note) > config.offset_metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not code:
                committed = CommittedOffset(
                    partition.committed_offset, partition.committed_leader_epoch, note, wall_ms, expires, topic.topic_id
                )
                records.append(offset_record(request.group_id, topic.name, index, committed))
            answers.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    _check_size(config, records)
    return records, OffsetCommitResponse(topics=topics)


def _check_size(config: GroupConfig, records: list[Record]) -> None:
    """Offsets of one request are stored together or not at all."""
    if len(records) > SURELY_SMALL:
        size = sum(len(record.key) + len(record.value or b"") + 20 for record in records)
        if size > config.record_bytes_max:
            raise KlammError(
                ErrorCode.INVALID_COMMIT_OFFSET_SIZE, f"{len(records)} offsets are too many for one commit"
            )


def commit_in_transaction(
    config: GroupConfig,
    request: TxnOffsetCommitRequest,
    topic_ids: dict[str, bytes],
    wall_ms: int,
    check: CheckPartition | None = None,
) -> tuple[list[Record], TxnOffsetCommitResponse]:
    """Records and answer for a transactional commit that is allowed."""
    records = []
    topics = []
    for topic in request.topics:
        answers = []
        topic_id = topic_ids.get(topic.name, ZERO_UUID)
        for partition in topic.partitions:
            note = partition.committed_metadata or ""
            index = partition.partition_index
            code = check(topic_id, index) if check is not None else ErrorCode.NONE
            if code is ErrorCode.STALE_MEMBER_EPOCH:
                code = ErrorCode.ILLEGAL_GENERATION  # the only one of the two that producers know
            if len(note) > config.offset_metadata_max_bytes:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not code:
                committed = CommittedOffset(
                    partition.committed_offset, partition.committed_leader_epoch, note, wall_ms, -1, topic_id
                )
                records.append(offset_record(request.group_id, topic.name, index, committed))
            answers.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
    _check_size(config, records)
    return records, TxnOffsetCommitResponse(topics=topics)


def fetch(
    offsets: Offsets, group_id: str, wanted: Sequence[WantedTopic] | None, *, known: bool, require_stable: bool
) -> OffsetFetchResponseGroup:
    """The offsets of a group, -1 where there is none; all it has when `wanted` is None."""
    if wanted is None:
        wanted = [WantedTopic(name, ZERO_UUID, list(found)) for name, found in offsets.of_group(group_id).items()]
    group = offsets.of_group(group_id) if known else {}
    unstable = require_stable and group_id in offsets.open_transactions
    topics = []
    for topic in wanted:
        committed = group.get(topic.name, {})
        answers = []
        for index in topic.partitions:
            if unstable and offsets.has_pending(group_id, topic.name, index):
                code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                answers.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
                    )
                )
                continue
            found = committed.get(index)
            if found is None or _of_another_topic(found.topic_id, topic.topic_id):
                answers.append(
                    OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="")
                )
            else:
                answers.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                    )
                )
        topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _of_another_topic(stored: bytes, asked: bytes) -> bool:
    """Whether an offset was committed for an earlier topic of the same name."""
    return stored != asked and ZERO_UUID not in (stored, asked)


def delete(offsets: Offsets, group: Group, request: OffsetDeleteRequest) -> tuple[list[Record], OffsetDeleteResponse]:
    """Forget single offsets, except of topics that members read."""
    records = []
    topics = []
    for topic in request.topics:
        in_use = group.is_subscribed_to(topic.name)
        answers = []
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
            answers.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if not in_use and (
                offsets.find(group.group_id, topic.name, index) is not None
                or offsets.has_pending(group.group_id, topic.name, index)
            ):
                records.append(offset_tombstone(group.group_id, topic.name, index))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
    return records, OffsetDeleteResponse(topics=topics)


def unknown_group(generation_or_epoch: int, version: int) -> KlammError:
    """What a member of a group that does not exist hears when it commits."""
    if version >= 9:
        return KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
    return KlammError(ErrorCode.ILLEGAL_GENERATION, f"there is no generation {generation_or_epoch}")
