"""OffsetCommit, v2-10: store the position of a group.

v5 no retention time · v6 leader epoch · v7 static members · v8 flexible · v9 members of the new group protocol ·
v10 topic ids
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class OffsetCommitRequestPartition:
    """The offset of one partition and the client's metadata."""

    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, since=6, default=-1)
    committed_metadata: str | None = wire(string, nullable=0)


@struct
class OffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = wire(string, until=9)
    topic_id: bytes = wire(uuid, since=10)
    partitions: list[OffsetCommitRequestPartition] = wire(array(OffsetCommitRequestPartition))


@message(api_key=8, versions=(2, 10), flexible=8)
class OffsetCommitRequest:
    """Store the offsets a group goes on from; only a current member may."""

    group_id: str = wire(string)
    # A generation of the classic protocol; from version 9 on also a member epoch (KIP-848).
    generation_id_or_member_epoch: int = wire(int32, default=-1)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=7, nullable=0, default=None)
    # Dropped by KIP-211, which leaves retention to the broker.
    retention_time_ms: int = wire(int64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(array(OffsetCommitRequestTopic))


@struct
class OffsetCommitResponsePartition:
    """Whether one offset was stored."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class OffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: str = wire(string, until=9)
    topic_id: bytes = wire(uuid, since=10)
    partitions: list[OffsetCommitResponsePartition] = wire(array(OffsetCommitResponsePartition))


@message(api_key=8, versions=(2, 10), flexible=8)
class OffsetCommitResponse:
    """Which offsets were stored."""

    throttle_time_ms: int = wire(int32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(array(OffsetCommitResponseTopic))
