"""DeleteShareGroupState, v0: a group coordinator removes the state of share partitions.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uuid, wire


@struct
class PartitionData:
    """One partition."""

    partition: int = wire(int32)


@struct
class DeleteStateData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=86, versions=(0, 0), flexible=0)
class DeleteShareGroupStateRequest:
    """Name the partitions."""

    group_id: str = wire(string)
    topics: list[DeleteStateData] = wire(array(DeleteStateData))


@struct
class PartitionResult:
    """Whether the state of one partition was removed."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@struct
class DeleteStateResult:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=86, versions=(0, 0), flexible=0)
class DeleteShareGroupStateResponse:
    """The result of each partition."""

    results: list[DeleteStateResult] = wire(array(DeleteStateResult))
