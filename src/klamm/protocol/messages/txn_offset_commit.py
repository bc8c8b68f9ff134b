"""TxnOffsetCommit, v0-5: store a group's offsets inside a transaction.

v2 leader epoch · v3 flexible, the member is checked · v4 abortable errors · v5 the group's partition joins by
itself (KIP-890)
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@struct
class TxnOffsetCommitRequestPartition:
    """The offset of one partition and the client's metadata."""

    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, since=2, default=-1)
    committed_metadata: str | None = wire(string, nullable=0)


@struct
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(array(TxnOffsetCommitRequestPartition))


@message(api_key=28, versions=(0, 5), flexible=3)
class TxnOffsetCommitRequest:
    """Store offsets that count once the transaction commits."""

    transactional_id: str = wire(string)
    group_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    # KIP-447: a member that has left the group is fenced by these three.
    generation_id: int = wire(int32, since=3, default=-1)
    member_id: str = wire(string, since=3)
    group_instance_id: str | None = wire(string, since=3, nullable=0, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(TxnOffsetCommitRequestTopic))


@struct
class TxnOffsetCommitResponsePartition:
    """Whether one offset was stored."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class TxnOffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(array(TxnOffsetCommitResponsePartition))


@message(api_key=28, versions=(0, 5), flexible=3)
class TxnOffsetCommitResponse:
    """Which offsets were stored."""

    throttle_time_ms: int = wire(int32)
    topics: list[TxnOffsetCommitResponseTopic] = wire(array(TxnOffsetCommitResponseTopic))
