"""DescribeTopicPartitions, v0: topics with many partitions, page by page, eligible leaders included.

v0 flexible from the start
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, uuid, wire


@struct
class TopicRequest:
    """A topic by its name."""

    name: str = wire(string)


@struct
class Cursor:
    """The first partition of a page."""

    topic_name: str = wire(string)
    partition_index: int = wire(int32)


@message(api_key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsRequest:
    """Request some topics, or for all with none, from a cursor on."""

    topics: list[TopicRequest] = wire(array(TopicRequest))
    response_partition_limit: int = wire(int32, default=2000)
    cursor: Cursor | None = wire(Cursor, nullable=0, default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    """One partition: its leader, its replicas and the replicas that could lead."""

    error_code: int = wire(int16)
    partition_index: int = wire(int32)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32, default=-1)
    replica_nodes: list[int] = wire(array(int32))
    isr_nodes: list[int] = wire(array(int32))
    eligible_leader_replicas: list[int] | None = wire(array(int32), nullable=0, default=None)
    last_known_elr: list[int] | None = wire(array(int32), nullable=0, default=None)
    offline_replicas: list[int] = wire(array(int32))


@struct
class DescribeTopicPartitionsResponseTopic:
    """One topic, or the reason it cannot be shown."""

    error_code: int = wire(int16)
    name: str | None = wire(string, nullable=0)
    topic_id: bytes = wire(uuid)
    is_internal: bool = wire(boolean)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(array(DescribeTopicPartitionsResponsePartition))
    # The smallest int32 stands for operations that were not requested.
    topic_authorized_operations: int = wire(int32, default=-(2**31))


@message(api_key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsResponse:
    """A page of partitions, and where the next page begins."""

    throttle_time_ms: int = wire(int32)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = wire(Cursor, nullable=0, default=None)
