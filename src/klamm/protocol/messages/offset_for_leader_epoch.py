"""OffsetForLeaderEpoch, v2-4: where a leader's epoch ended; how logs that parted find their last common offset.

v3 replica id · v4 flexible
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@struct
class OffsetForLeaderPartition:
    """One partition and the requested epoch."""

    partition: int = wire(int32)
    current_leader_epoch: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32)


@struct
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[OffsetForLeaderPartition] = wire(array(OffsetForLeaderPartition))


@message(api_key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochRequest:
    """Request the end offsets of epochs."""

    # -2: version 2 does not say whether a follower or a consumer sent the request.
    replica_id: int = wire(int32, since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = wire(array(OffsetForLeaderTopic))


@struct
class EpochEndOffset:
    """The largest epoch not above the requested one, and the offset after its last record."""

    error_code: int = wire(int16)
    partition: int = wire(int32)
    leader_epoch: int = wire(int32, default=-1)
    end_offset: int = wire(int64, default=-1)


@struct
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[EpochEndOffset] = wire(array(EpochEndOffset))


@message(api_key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochResponse:
    """The end offsets that are known."""

    throttle_time_ms: int = wire(int32)
    topics: list[OffsetForLeaderTopicResult] = wire(array(OffsetForLeaderTopicResult))
