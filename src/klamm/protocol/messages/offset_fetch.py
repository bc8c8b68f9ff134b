"""OffsetFetch, v1-10: the committed position of a group.

v2 null for all topics, error for the group · v3 throttle time · v5 leader epoch · v6 flexible · v7 stable offsets
only · v8 many groups at once · v9 members of the new group protocol · v10 topic ids
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, uuid, wire


@struct
class OffsetFetchRequestTopic:
    """The partitions of one topic, up to v7."""

    name: str = wire(string)
    partition_indexes: list[int] = wire(array(int32))


@struct
class OffsetFetchRequestTopics:
    """The partitions of one topic, from v8."""

    name: str = wire(string, until=9)
    topic_id: bytes = wire(uuid, since=10)
    partition_indexes: list[int] = wire(array(int32))


@struct
class OffsetFetchRequestGroup:
    """One group, the requesting member, and the requested topics."""

    group_id: str = wire(string)
    member_id: str | None = wire(string, since=9, nullable=0, default=None)
    member_epoch: int = wire(int32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(array(OffsetFetchRequestTopics), nullable=0)


@message(api_key=9, versions=(1, 10), flexible=6)
class OffsetFetchRequest:
    """Request the offsets a group has committed."""

    group_id: str = wire(string, until=7)
    topics: list[OffsetFetchRequestTopic] | None = wire(array(OffsetFetchRequestTopic), until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = wire(array(OffsetFetchRequestGroup), since=8)
    # Fail with a retriable error while an open transaction may change the offset (KIP-447).
    require_stable: bool = wire(boolean, since=7)


@struct
class OffsetFetchResponsePartition:
    """The offset of one partition, up to v7."""

    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, since=5, default=-1)
    metadata: str | None = wire(string, nullable=0)
    error_code: int = wire(int16)


@struct
class OffsetFetchResponseTopic:
    """The partitions of one topic, up to v7."""

    name: str = wire(string)
    partitions: list[OffsetFetchResponsePartition] = wire(array(OffsetFetchResponsePartition))


@struct
class OffsetFetchResponsePartitions:
    """The offset of one partition, from v8."""

    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, default=-1)
    metadata: str | None = wire(string, nullable=0)
    error_code: int = wire(int16)


@struct
class OffsetFetchResponseTopics:
    """The partitions of one topic, from v8."""

    name: str = wire(string, until=9)
    topic_id: bytes = wire(uuid, since=10)
    partitions: list[OffsetFetchResponsePartitions] = wire(array(OffsetFetchResponsePartitions))


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: str = wire(string)
    topics: list[OffsetFetchResponseTopics] = wire(array(OffsetFetchResponseTopics))
    error_code: int = wire(int16)


@message(api_key=9, versions=(1, 10), flexible=6)
class OffsetFetchResponse:
    """The committed offsets; -1 where there is none."""

    throttle_time_ms: int = wire(int32, since=3)
    topics: list[OffsetFetchResponseTopic] = wire(array(OffsetFetchResponseTopic), until=7)
    error_code: int = wire(int16, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = wire(array(OffsetFetchResponseGroup), since=8)
