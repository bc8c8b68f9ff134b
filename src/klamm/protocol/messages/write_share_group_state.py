"""WriteShareGroupState, v0-1: a partition leader stores the state of its share partitions.

v1 count of completed deliveries
"""

from klamm.protocol.schema import array, int8, int16, int32, int64, message, string, struct, uuid, wire


@struct
class StateBatch:
    """The state of a range of records."""

    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    delivery_state: int = wire(int8)
    delivery_count: int = wire(int16)


@struct
class PartitionData:
    """The state of one partition."""

    partition: int = wire(int32)
    state_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    delivery_complete_count: int = wire(int32, since=1, default=-1)
    state_batches: list[StateBatch] = wire(array(StateBatch))


@struct
class WriteStateData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=85, versions=(0, 1), flexible=0)
class WriteShareGroupStateRequest:
    """Give the state to store."""

    group_id: str = wire(string)
    topics: list[WriteStateData] = wire(array(WriteStateData))


@struct
class PartitionResult:
    """Whether the state of one partition was stored."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@struct
class WriteStateResult:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=85, versions=(0, 1), flexible=0)
class WriteShareGroupStateResponse:
    """The result of each partition."""

    results: list[WriteStateResult] = wire(array(WriteStateResult))
