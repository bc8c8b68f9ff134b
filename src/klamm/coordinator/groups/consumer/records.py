"""Builds and decodes the records of consumer groups."""

from collections.abc import Iterable
from typing import Any, Final

from klamm.coordinator.core.shard import CoordinatorRecord, decode_key, decode_value, make_record, record_type
from klamm.coordinator.groups.assignors import MemberAssignment
from klamm.coordinator.groups.consumer.member import ConsumerMember
from klamm.coordinator.groups.consumer.pattern import Resolved
from klamm.protocol.messages.group_records import (
    KEY_TYPES,
    VALUE_TYPES,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)

# 9 to 15 belong to share groups (KIP-932).
KINDS: Final = frozenset({3, 4, 5, 6, 7, 8, 16})
"""The record types of consumer groups."""
GROUP_METADATA: Final = 3
"""The record type whose tombstone ends a group."""


def decode(record: CoordinatorRecord) -> tuple[Any, Any]:
    """The typed key and value of a record; None for a tombstone's value."""
    kind = record_type(record.key)
    key = decode_key(KEY_TYPES[kind], record.key)
    return key, None if record.value is None else decode_value(VALUE_TYPES[kind], record.value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of the group's epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return make_record(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of a member's identity and subscription."""
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return make_record(key, member.metadata_value())


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of a member's current assignment."""
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return make_record(key, member.current_value())


def target_record(group_id: str, member_id: str, target: MemberAssignment) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    topics = [
        TargetTopicPartitions(topic_id=topic, partitions=sorted(partitions))
        for topic, partitions in sorted(target.items())
    ]
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return make_record(key, ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics))


def target_epoch_record(group_id: str, epoch: int, timestamp: int) -> CoordinatorRecord:
    """Return the record of the target's epoch; it is written after the targets of all members."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp)
    return make_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def regex_record(group_id: str, regex: str, resolved: Resolved | None) -> CoordinatorRecord:
    """Return the record of the topics that a pattern matches; without them its tombstone."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    if resolved is None:
        return make_record(key, None)
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
    )
    return make_record(key, value)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the tombstone of the record in which older brokers stored the topics of a group."""
    return make_record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of a member."""
    return [
        make_record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        make_record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        make_record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(
    group_id: str, members: Iterable[str], regexes: Iterable[str], has_partition_metadata: bool
) -> list[CoordinatorRecord]:
    """Return the tombstones of a group with these members and patterns."""
    ids = list(members)
    records = [
        make_record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member), None)
        for member in ids
    ]
    records += [
        make_record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member), None) for member in ids
    ]
    records.append(make_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    records += [
        make_record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member), None) for member in ids
    ]
    records += [regex_record(group_id, regex, None) for regex in regexes]
    if has_partition_metadata:
        records.append(partition_metadata_tombstone(group_id))
    # Last: replaying it removes the group.
    records.append(make_record(ConsumerGroupMetadataKey(group_id=group_id), None))
    return records
