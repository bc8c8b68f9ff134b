"""DeleteRecords, v0-2: drop the oldest records of partitions.

v1 quota applied after the response · v2 flexible
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@struct
class DeleteRecordsPartition:
    """The new first offset of one partition."""

    partition_index: int = wire(int32)
    offset: int = wire(int64)


@struct
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[DeleteRecordsPartition] = wire(array(DeleteRecordsPartition))


@message(api_key=21, versions=(0, 2), flexible=2)
class DeleteRecordsRequest:
    """The offset before which each partition deletes; -1 means its high watermark."""

    topics: list[DeleteRecordsTopic] = wire(array(DeleteRecordsTopic))
    timeout_ms: int = wire(int32)


@struct
class DeleteRecordsPartitionResult:
    """The lowest offset that any replica still has."""

    partition_index: int = wire(int32)
    low_watermark: int = wire(int64)
    error_code: int = wire(int16)


@struct
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[DeleteRecordsPartitionResult] = wire(array(DeleteRecordsPartitionResult))


@message(api_key=21, versions=(0, 2), flexible=2)
class DeleteRecordsResponse:
    """Where each partition now begins."""

    throttle_time_ms: int = wire(int32)
    topics: list[DeleteRecordsTopicResult] = wire(array(DeleteRecordsTopicResult))
