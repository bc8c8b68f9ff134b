"""OffsetDelete, v0: remove single offsets of a group.

v0 only, never flexible
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@struct
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int = wire(int32)


@struct
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[OffsetDeleteRequestPartition] = wire(array(OffsetDeleteRequestPartition))


@message(api_key=47, versions=(0, 0))
class OffsetDeleteRequest:
    """Name the partitions whose offsets are removed."""

    group_id: str = wire(string)
    topics: list[OffsetDeleteRequestTopic] = wire(array(OffsetDeleteRequestTopic))


@struct
class OffsetDeleteResponsePartition:
    """Whether one offset was removed."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class OffsetDeleteResponseTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[OffsetDeleteResponsePartition] = wire(array(OffsetDeleteResponsePartition))


@message(api_key=47, versions=(0, 0))
class OffsetDeleteResponse:
    """The result of each."""

    error_code: int = wire(int16)
    throttle_time_ms: int = wire(int32)
    topics: list[OffsetDeleteResponseTopic] = wire(array(OffsetDeleteResponseTopic))
