"""ListOffsets, v1-11: find offsets by time, or the first and the last one.

v2 isolation level · v4 leader epoch · v6 flexible · v7 -3 finds the largest timestamp · v8 -4 the first local
offset · v9 -5 the last tiered offset · v10 timeout · v11 -6 the earliest offset not yet uploaded
"""

from klamm.protocol.schema import array, int8, int16, int32, int64, message, string, struct, wire


@struct
class ListOffsetsPartition:
    """The timestamp to search for in one partition."""

    partition_index: int = wire(int32)
    current_leader_epoch: int = wire(int32, since=4, default=-1)
    timestamp: int = wire(int64)


@struct
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[ListOffsetsPartition] = wire(array(ListOffsetsPartition))


@message(api_key=2, versions=(1, 11), flexible=6)
class ListOffsetsRequest:
    """Request the first offset at or after a timestamp; negative timestamps name special places."""

    replica_id: int = wire(int32)
    isolation_level: int = wire(int8, since=2)
    topics: list[ListOffsetsTopic] = wire(array(ListOffsetsTopic))
    # For offsets in remote storage, which take long to read (KIP-1075).
    timeout_ms: int = wire(int32, since=10)


@struct
class ListOffsetsPartitionResponse:
    """What was found in one partition; -1 when nothing is there."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    timestamp: int = wire(int64, default=-1)
    offset: int = wire(int64, default=-1)
    leader_epoch: int = wire(int32, since=4, default=-1)


@struct
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[ListOffsetsPartitionResponse] = wire(array(ListOffsetsPartitionResponse))


@message(api_key=2, versions=(1, 11), flexible=6)
class ListOffsetsResponse:
    """The offsets that were found."""

    throttle_time_ms: int = wire(int32, since=2)
    topics: list[ListOffsetsTopicResponse] = wire(array(ListOffsetsTopicResponse))
