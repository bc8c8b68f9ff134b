"""AlterShareGroupOffsets, v0: set where an empty share group begins to read.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class AlterShareGroupOffsetsRequestPartition:
    """The new start of one partition."""

    partition_index: int = wire(int32)
    start_offset: int = wire(int64)


@struct
class AlterShareGroupOffsetsRequestTopic:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(array(AlterShareGroupOffsetsRequestPartition))


@message(api_key=91, versions=(0, 0), flexible=0)
class AlterShareGroupOffsetsRequest:
    """Give the new start offsets."""

    group_id: str = wire(string)
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(array(AlterShareGroupOffsetsRequestTopic))


@struct
class AlterShareGroupOffsetsResponsePartition:
    """Whether one partition was changed."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    topic_id: bytes = wire(uuid)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire(array(AlterShareGroupOffsetsResponsePartition))


@message(api_key=91, versions=(0, 0), flexible=0)
class AlterShareGroupOffsetsResponse:
    """The result of each partition."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(array(AlterShareGroupOffsetsResponseTopic))
