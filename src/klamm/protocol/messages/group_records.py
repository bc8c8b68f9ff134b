"""The records of `__consumer_offsets`: committed offsets and the state of groups.

A key and its value share a record type, their `api_key`. On disk a key starts with the type as int16 and a value with
its version as int16; a null value removes what the key names. `KEY_TYPES` and `VALUE_TYPES` find them by type.
"""

from typing import Any

from klamm.protocol.schema import (
    array,
    blob,
    declaration,
    int8,
    int32,
    int64,
    message,
    string,
    struct,
    uuid,
    wire,
)

# Committed offsets


@message(api_key=0, versions=(0, 0))
class LegacyOffsetCommitKey:
    """The group and partition of an offset, as very old brokers wrote it."""

    group: str = wire(string)
    topic: str = wire(string)
    partition: int = wire(int32)


@message(api_key=0, versions=(0, 0))
class LegacyOffsetCommitValue:
    """A committed offset, as very old brokers wrote it."""

    offset: int = wire(int64)
    metadata: str = wire(string)
    commit_timestamp: int = wire(int64)


@message(api_key=1, versions=(0, 0))
class OffsetCommitKey:
    """The group and partition of an offset."""

    group: str = wire(string)
    topic: str = wire(string)
    partition: int = wire(int32)


@message(api_key=1, versions=(0, 4), flexible=4)
class OffsetCommitValue:
    """A committed offset. v1 had its own expiry · v3 leader epoch · v4 topic id."""

    offset: int = wire(int64)
    leader_epoch: int = wire(int32, since=3, default=-1)
    metadata: str = wire(string)
    commit_timestamp: int = wire(int64)
    # Version 1 alone has it: since KIP-211 retention depends on the group.
    expire_timestamp: int = wire(int64, since=1, until=1, default=-1)
    topic_id: bytes = wire(uuid, since=4, tag=0)


# Classic groups


@message(api_key=2, versions=(0, 0))
class GroupMetadataKey:
    """Which classic group."""

    group: str = wire(string)


@struct
class MemberMetadata:
    """One member of a classic group. v1 rebalance timeout · v3 static membership."""

    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=3, nullable=3, default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    # Version 0 has none: the session timeout stands for it.
    rebalance_timeout: int = wire(int32, since=1, default=-1)
    session_timeout: int = wire(int32)
    subscription: bytes = wire(blob)
    assignment: bytes = wire(blob)


@message(api_key=2, versions=(0, 4), flexible=4)
class GroupMetadataValue:
    """A classic group after a completed rebalance. v2 time of the last change."""

    protocol_type: str = wire(string)
    generation: int = wire(int32)
    protocol: str | None = wire(string, nullable=0)
    leader: str | None = wire(string, nullable=0)
    current_state_timestamp: int = wire(int64, since=2, default=-1)
    members: list[MemberMetadata] = wire(array(MemberMetadata))


# Consumer groups (KIP-848)


@message(api_key=3, versions=(0, 0))
class ConsumerGroupMetadataKey:
    """Which consumer group."""

    group_id: str = wire(string)


@message(api_key=3, versions=(0, 0), flexible=0)
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group and a hash of the topics it was computed from."""

    epoch: int = wire(int32)
    metadata_hash: int = wire(int64, tag=0)


@message(api_key=4, versions=(0, 0))
class ConsumerGroupPartitionMetadataKey:
    """Which consumer group; no longer written."""

    group_id: str = wire(string)


@struct
class PartitionMetadata:
    """The racks of one partition."""

    partition: int = wire(int32)
    racks: list[str] = wire(array(string))


@struct
class TopicMetadata:
    """A topic a group subscribes to, as it was last seen."""

    topic_id: bytes = wire(uuid)
    topic_name: str = wire(string)
    num_partitions: int = wire(int32)
    partition_metadata: list[PartitionMetadata] = wire(array(PartitionMetadata))


@message(api_key=4, versions=(0, 0), flexible=0)
class ConsumerGroupPartitionMetadataValue:
    """The subscribed topics of a consumer group; replaced by the metadata hash."""

    topics: list[TopicMetadata] = wire(array(TopicMetadata))


@message(api_key=5, versions=(0, 0))
class ConsumerGroupMemberMetadataKey:
    """Which member of which consumer group."""

    group_id: str = wire(string)
    member_id: str = wire(string)


@struct
class ClassicProtocol:
    """An assignor a classic member can use."""

    name: str = wire(string)
    metadata: bytes = wire(blob)


@struct
class ClassicMemberMetadata:
    """What a member of a consumer group has that still uses the classic protocol."""

    session_timeout_ms: int = wire(int32)
    supported_protocols: list[ClassicProtocol] = wire(array(ClassicProtocol))


@message(api_key=5, versions=(0, 0), flexible=0)
class ConsumerGroupMemberMetadataValue:
    """The identity and subscription of a member.

    A member of the new protocol has a null; left out, `classic_member_metadata` would be an empty one.
    """

    instance_id: str | None = wire(string, nullable=0)
    rack_id: str | None = wire(string, nullable=0)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: list[str] = wire(array(string))
    subscribed_topic_regex: str | None = wire(string, nullable=0)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    server_assignor: str | None = wire(string, nullable=0)
    classic_member_metadata: ClassicMemberMetadata | None = wire(ClassicMemberMetadata, nullable=0, tag=0)


@message(api_key=6, versions=(0, 0))
class ConsumerGroupTargetAssignmentMetadataKey:
    """Which consumer group."""

    group_id: str = wire(string)


@message(api_key=6, versions=(0, 0), flexible=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch the group is moving to."""

    assignment_epoch: int = wire(int32)
    assignment_timestamp: int = wire(int64, tag=0)


@message(api_key=7, versions=(0, 0))
class ConsumerGroupTargetAssignmentMemberKey:
    """Which member of which consumer group."""

    group_id: str = wire(string)
    member_id: str = wire(string)


@struct
class TargetTopicPartitions:
    """Partitions of one topic that a member should end up with."""

    topic_id: bytes = wire(uuid)
    partitions: list[int] = wire(array(int32))


@message(api_key=7, versions=(0, 0), flexible=0)
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member should end up with."""

    topic_partitions: list[TargetTopicPartitions] = wire(array(TargetTopicPartitions))


@message(api_key=8, versions=(0, 0))
class ConsumerGroupCurrentMemberAssignmentKey:
    """Which member of which consumer group."""

    group_id: str = wire(string)
    member_id: str = wire(string)


@struct
class CurrentTopicPartitions:
    """Partitions of one topic that a member has, and since which epoch."""

    topic_id: bytes = wire(uuid)
    partitions: list[int] = wire(array(int32))
    # Null in records from before KIP-1251.
    assignment_epochs: list[int] | None = wire(array(int32), nullable=0, tag=0)


@message(api_key=8, versions=(0, 0), flexible=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member has now and what it must still give back."""

    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    assigned_partitions: list[CurrentTopicPartitions] = wire(array(CurrentTopicPartitions))
    partitions_pending_revocation: list[CurrentTopicPartitions] = wire(array(CurrentTopicPartitions))


@message(api_key=16, versions=(0, 0))
class ConsumerGroupRegularExpressionKey:
    """Which pattern of which consumer group."""

    group_id: str = wire(string)
    regular_expression: str = wire(string)


@message(api_key=16, versions=(0, 0), flexible=0)
class ConsumerGroupRegularExpressionValue:
    """The topics a pattern matched, at which version of the metadata, and when."""

    topics: list[str] = wire(array(string))
    version: int = wire(int64)
    timestamp: int = wire(int64)


KEY_TYPES: dict[int, type[Any]] = {
    declaration(cls).api_key: cls
    for cls in (
        LegacyOffsetCommitKey,
        OffsetCommitKey,
        GroupMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    )
}
"""Every key by its record type."""

VALUE_TYPES: dict[int, type[Any]] = {
    declaration(cls).api_key: cls
    for cls in (
        LegacyOffsetCommitValue,
        OffsetCommitValue,
        GroupMetadataValue,
        ConsumerGroupMetadataValue,
        ConsumerGroupPartitionMetadataValue,
        ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionValue,
    )
}
"""Every value by its record type."""
