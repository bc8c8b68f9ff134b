"""Requests about offsets: commit, also inside a transaction, fetch, delete."""

from collections.abc import Sequence
from typing import NamedTuple

from klamm.coordinator.core.shard import CoordinatorRecord
from klamm.coordinator.groups import kernels
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.group import CheckPartition, Group
from klamm.coordinator.groups.offsets import CommittedOffset, ShardOffsets, offset_record, offset_tombstone
from klamm.model.config import MAX_LONG
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
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
SIZE_UNCHECKED_MAX = 50
"""Up to this many offsets fit one batch under the default offset.metadata.max.bytes, so their size is not summed up."""

GROUP_NOT_FOUND_SINCE = 9
"""The version of OffsetCommit (KIP-848) in which an unknown group has an error code of its own."""

OffsetRow = tuple[int, int, int, str]
"""(partition, offset, leader epoch, metadata), as the kernel that reads commits returns it."""

CommitTopic = tuple[str, bytes, list[OffsetRow]]
"""(name, topic id, rows). Plain tuples: a consumer commits every few seconds, for each of its partitions."""

CommitCodes = Sequence[Sequence[ErrorCode]]
"""Error codes by topic and row, in the order of the commit; empty when every offset is stored."""


class WantedTopic(NamedTuple):
    """A topic of an OffsetFetch; its id is zero when the cluster does not have it."""

    name: str
    topic_id: bytes
    partitions: Sequence[int]


class OffsetCommit(NamedTuple):
    """An OffsetCommit with its topics resolved: what both decoders of the request hand to the shard."""

    group_id: str
    generation_or_epoch: int
    member_id: str
    instance_id: str | None
    topics: Sequence[CommitTopic]
    retention_ms: int = -1
    """Only clients up to v4 choose it; -1 leaves it to the broker."""


def commit(
    config: GroupConfig, commit: OffsetCommit, wall_ms: int, check: CheckPartition | None
) -> tuple[list[CoordinatorRecord], CommitCodes]:
    """Return a record for every offset that may be stored, and the error codes if some may not.

    The only place that decides about single offsets, whichever request brings them and however it was decoded.
    """
    group_id, _, _, _, topics, retention_ms = commit
    metadata_max = config.offset_metadata_max_bytes
    records: list[CoordinatorRecord] = []
    codes: CommitCodes = ()
    if check is not None or _has_large_metadata(topics, metadata_max):
        codes = [_check_rows(topic_id, rows, metadata_max, check) for _, topic_id, rows in topics]
        topics = [
            (name, topic_id, [row for row, code in zip(rows, topic_codes, strict=True) if not code])
            for (name, topic_id, rows), topic_codes in zip(topics, codes, strict=True)
        ]
    for name, topic_id, rows in topics:
        if retention_ms < 0:
            kernels.add_records(records, group_id, name, topic_id, rows, wall_ms, CoordinatorRecord)
        else:
            # The sum may exceed int64, the type of the timestamp: such an offset never expires by itself.
            expires_ms = min(wall_ms + retention_ms, MAX_LONG)
            records += [_expiring_record(group_id, name, topic_id, row, wall_ms, expires_ms) for row in rows]
    if len(records) > SIZE_UNCHECKED_MAX:
        _check_size(config, records)
    return records, codes if codes and any(map(any, codes)) else ()


def _has_large_metadata(topics: Sequence[CommitTopic], metadata_max: int) -> bool:
    # A loop rather than any(): nearly every commit has one row, for which a generator costs more than the check.
    for _, _, rows in topics:
        for row in rows:
            if len(row[3]) > metadata_max:
                return True
    return False


def _check_rows(
    topic_id: bytes, rows: list[OffsetRow], metadata_max: int, check: CheckPartition | None
) -> list[ErrorCode]:
    """Return the error code of every row."""
    codes = []
    for index, _, _, metadata in rows:
        code = check(topic_id, index) if check is not None else ErrorCode.NONE
        # Kafka compares the number of characters too, although the setting is called offset.metadata.max.bytes.
        codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE if len(metadata) > metadata_max else code)
    return codes


def _expiring_record(
    group_id: str, topic: str, topic_id: bytes, row: OffsetRow, wall_ms: int, expires_ms: int
) -> CoordinatorRecord:
    """Return the record of an offset whose client chose when it expires; the kernel does not write this version."""
    index, offset, leader_epoch, metadata = row
    committed = CommittedOffset(offset, leader_epoch, metadata, wall_ms, expires_ms, topic_id)
    return offset_record(group_id, topic, index, committed)


def _check_size(config: GroupConfig, records: list[CoordinatorRecord]) -> None:
    """Raise KlammError when the offsets do not fit one batch: they are stored together or not at all."""
    # 20 bytes cover what a batch adds to a record: lengths, deltas and attributes.
    size = sum(len(record.key) + len(record.value or b"") + 20 for record in records)
    if size > config.record_bytes_max:
        raise KlammError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, f"{len(records)} offsets are too many for one commit")


def commit_in_transaction(
    config: GroupConfig,
    request: TxnOffsetCommitRequest,
    topic_ids: dict[str, bytes],
    wall_ms: int,
    check: CheckPartition | None = None,
) -> tuple[list[CoordinatorRecord], TxnOffsetCommitResponse]:
    """Return the records and the response of a transactional commit that is allowed."""
    topics = [
        (
            topic.name,
            topic_ids.get(topic.name, ZERO_UUID),
            [
                (
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    offsets = OffsetCommit(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id, topics
    )
    records, codes = commit(config, offsets, wall_ms, check)
    response_topics = []
    for position, (name, _, rows) in enumerate(topics):
        topic_codes = codes[position] if codes else [ErrorCode.NONE] * len(rows)
        partitions = [
            TxnOffsetCommitResponsePartition(partition_index=row[0], error_code=_as_txn_code(code))
            for row, code in zip(rows, topic_codes, strict=True)
        ]
        response_topics.append(TxnOffsetCommitResponseTopic(name=name, partitions=partitions))
    return records, TxnOffsetCommitResponse(topics=response_topics)


def _as_txn_code(code: ErrorCode) -> ErrorCode:
    """Translate STALE_MEMBER_EPOCH, which producers do not handle."""
    return ErrorCode.ILLEGAL_GENERATION if code is ErrorCode.STALE_MEMBER_EPOCH else code


def fetch(
    offsets: ShardOffsets, group_id: str, wanted: Sequence[WantedTopic] | None, *, known: bool, require_stable: bool
) -> OffsetFetchResponseGroup:
    """The offsets of a group, -1 where there is none; all it has when `wanted` is None."""
    if wanted is None:
        wanted = [
            WantedTopic(name, ZERO_UUID, list(partitions)) for name, partitions in offsets.of_group(group_id).items()
        ]
    group = offsets.of_group(group_id) if known else {}
    # Looked up once: most groups have no open transaction (KIP-447).
    unstable = require_stable and group_id in offsets.open_transactions
    topics = []
    for topic in wanted:
        committed = group.get(topic.name, {})
        partitions = []
        for index in topic.partitions:
            if unstable and offsets.has_pending(group_id, topic.name, index):
                code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
                    )
                )
                continue
            offset = committed.get(index)
            if offset is None or _of_another_topic(offset.topic_id, topic.topic_id):
                partitions.append(
                    OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="")
                )
            else:
                partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=offset.offset,
                        committed_leader_epoch=offset.leader_epoch,
                        metadata=offset.metadata,
                    )
                )
        topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _of_another_topic(stored: bytes, requested: bytes) -> bool:
    """Whether an offset was committed for an earlier topic of the same name."""
    # Records before v4 and requests before v10 have no topic id: they match by name alone.
    return stored != requested and ZERO_UUID not in (stored, requested)


def delete(
    offsets: ShardOffsets, group: Group, request: OffsetDeleteRequest
) -> tuple[list[CoordinatorRecord], OffsetDeleteResponse]:
    """Remove single offsets, except of topics that members subscribe to."""
    records = []
    topics = []
    for topic in request.topics:
        in_use = group.is_subscribed_to(topic.name)
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            # A pending offset needs the tombstone too, or the commit marker would bring it back.
            if not in_use and (
                offsets.find(group.group_id, topic.name, index) is not None
                or offsets.has_pending(group.group_id, topic.name, index)
            ):
                records.append(offset_tombstone(group.group_id, topic.name, index))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return records, OffsetDeleteResponse(topics=topics)


def unknown_group(generation_or_epoch: int, version: int) -> KlammError:
    """Return the error of a member's commit to a group that does not exist."""
    if version >= GROUP_NOT_FOUND_SINCE:
        return KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
    return KlammError(ErrorCode.ILLEGAL_GENERATION, f"there is no generation {generation_or_epoch}")
