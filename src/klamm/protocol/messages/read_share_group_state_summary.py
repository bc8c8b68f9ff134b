"""ReadShareGroupStateSummary, v0-1: the state of share partitions in brief, without their batches.

v1 count of completed deliveries
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uuid, wire


@struct
class PartitionData:
    """One partition and its leader's epoch."""

    partition: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class ReadStateSummaryData:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=87, versions=(0, 1), flexible=0)
class ReadShareGroupStateSummaryRequest:
    """Name the partitions."""

    group_id: str = wire(string)
    topics: list[ReadStateSummaryData] = wire(array(ReadStateSummaryData))


@struct
class PartitionResult:
    """The state of one partition in brief."""

    partition: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    state_epoch: int = wire(int32)
    leader_epoch: int = wire(int32)
    start_offset: int = wire(int64)
    delivery_complete_count: int = wire(int32, since=1, default=-1)


@struct
class ReadStateSummaryResult:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=87, versions=(0, 1), flexible=0)
class ReadShareGroupStateSummaryResponse:
    """Where each partition's sharing begins."""

    results: list[ReadStateSummaryResult] = wire(array(ReadStateSummaryResult))
