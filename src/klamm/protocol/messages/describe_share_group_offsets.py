"""DescribeShareGroupOffsets, v0-1: where share groups begin to read.

v1 lag
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class DescribeShareGroupOffsetsRequestTopic:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class DescribeShareGroupOffsetsRequestGroup:
    """One group and the requested topics."""

    group_id: str = wire(string)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(
        array(DescribeShareGroupOffsetsRequestTopic), nullable=0
    )


@message(api_key=90, versions=(0, 1), flexible=0)
class DescribeShareGroupOffsetsRequest:
    """Name groups and partitions; null topics mean all."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(array(DescribeShareGroupOffsetsRequestGroup))


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """The start offset of one partition."""

    partition_index: int = wire(int32)
    start_offset: int = wire(int64)
    leader_epoch: int = wire(int32)
    lag: int = wire(int64, since=1, default=-1)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    topic_id: bytes = wire(uuid)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(
        array(DescribeShareGroupOffsetsResponsePartition)
    )


@struct
class DescribeShareGroupOffsetsResponseGroup:
    """The offsets of one group."""

    group_id: str = wire(string)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(array(DescribeShareGroupOffsetsResponseTopic))
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@message(api_key=90, versions=(0, 1), flexible=0)
class DescribeShareGroupOffsetsResponse:
    """The start offset of each partition."""

    throttle_time_ms: int = wire(int32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(array(DescribeShareGroupOffsetsResponseGroup))
