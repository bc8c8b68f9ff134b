"""DescribeProducers, v0: the producers that write to partitions, and their open transactions.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, wire


@struct
class TopicRequest:
    """The partitions of one topic."""

    name: str = wire(string)
    partition_indexes: list[int] = wire(array(int32))


@message(api_key=61, versions=(0, 0), flexible=0)
class DescribeProducersRequest:
    """Name the partitions."""

    topics: list[TopicRequest] = wire(array(TopicRequest))


@struct
class ProducerState:
    """The state of one producer in the log."""

    producer_id: int = wire(int64)
    # 32 bits here, although an epoch has 16 everywhere else.
    producer_epoch: int = wire(int32)
    last_sequence: int = wire(int32, default=-1)
    last_timestamp: int = wire(int64, default=-1)
    coordinator_epoch: int = wire(int32)
    current_txn_start_offset: int = wire(int64, default=-1)


@struct
class PartitionResponse:
    """The producers of one partition."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    active_producers: list[ProducerState] = wire(array(ProducerState))


@struct
class TopicResponse:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[PartitionResponse] = wire(array(PartitionResponse))


@message(api_key=61, versions=(0, 0), flexible=0)
class DescribeProducersResponse:
    """The producers of each partition."""

    throttle_time_ms: int = wire(int32)
    topics: list[TopicResponse] = wire(array(TopicResponse))
