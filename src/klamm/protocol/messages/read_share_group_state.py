"""ReadShareGroupState, v0: a partition leader loads the state of its share partitions.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int8, int16, int32, int64, message, string, struct, uuid, wire


@struct
class PartitionData:
    """One partition and its leader's epoch."""

    partition: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class ReadStateData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=84, versions=(0, 0), flexible=0)
class ReadShareGroupStateRequest:
    """Name the partitions to load."""

    group_id: str = wire(string)
    topics: list[ReadStateData] = wire(array(ReadStateData))


@struct
class StateBatch:
    """The state of a range of records."""

    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    delivery_state: int = wire(int8)
    delivery_count: int = wire(int16)


@struct
class PartitionResult:
    """The state of one partition."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    state_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    state_batches: list[StateBatch] = wire(array(StateBatch))


@struct
class ReadStateResult:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=84, versions=(0, 0), flexible=0)
class ReadShareGroupStateResponse:
    """Their state."""

    results: list[ReadStateResult] = wire(array(ReadStateResult))
