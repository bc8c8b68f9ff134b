"""InitializeShareGroupState, v0: a group coordinator starts the state of share partitions.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class PartitionData:
    """The start of one partition."""

    partition: int = wire(int32)
    state_epoch: int = wire(int32)
    start_offset: int = wire(int64)


@struct
class InitializeStateData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=83, versions=(0, 0), flexible=0)
class InitializeShareGroupStateRequest:
    """The offset from which each partition is shared."""

    group_id: str = wire(string)
    topics: list[InitializeStateData] = wire(array(InitializeStateData))


@struct
class PartitionResult:
    """Whether the state of one partition was made."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@struct
class InitializeStateResult:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=83, versions=(0, 0), flexible=0)
class InitializeShareGroupStateResponse:
    """The result of each partition."""

    results: list[InitializeStateResult] = wire(array(InitializeStateResult))
