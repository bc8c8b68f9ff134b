"""Produce, v3-13: append record batches to partitions.

v5 log start offset · v7 zstd allowed · v8 errors of single records · v9 flexible · v10 current leader in refusals ·
v12 partitions join the transaction by themselves (KIP-890) · v13 topic ids instead of names
"""

from klamm.protocol.schema import Records, array, int16, int32, int64, message, records, string, struct, uuid, wire


@struct
class PartitionProduceData:
    """The batches for one partition."""

    index: int = wire(int32)
    # One batch per partition: more are refused since version 3.
    records: Records = wire(records, nullable=0)


@struct
class TopicProduceData:
    """The partitions of one topic."""

    name: str = wire(string, until=12)
    topic_id: bytes = wire(uuid, since=13)
    partition_data: list[PartitionProduceData] = wire(array(PartitionProduceData))


@message(api_key=0, versions=(3, 13), flexible=9)
class ProduceRequest:
    """Append batches; `acks` is how many replicas must have them before the response, 0 for no response at all."""

    transactional_id: str | None = wire(string, nullable=0, default=None)
    acks: int = wire(int16)
    timeout_ms: int = wire(int32)
    topic_data: list[TopicProduceData] = wire(array(TopicProduceData))


@struct
class BatchIndexAndErrorMessage:
    """One record that made its batch refused."""

    batch_index: int = wire(int32)
    batch_index_error_message: str | None = wire(string, nullable=0, default=None)


@struct
class LeaderIdAndEpoch:
    """The current leader, for a producer that sent to another broker."""

    leader_id: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32, default=-1)


@struct
class PartitionProduceResponse:
    """What happened to the batches of one partition."""

    index: int = wire(int32)
    error_code: int = wire(int16)
    base_offset: int = wire(int64)
    # -1 unless the topic has LogAppendTime.
    log_append_time_ms: int = wire(int64, default=-1)
    log_start_offset: int = wire(int64, since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = wire(array(BatchIndexAndErrorMessage), since=8)
    error_message: str | None = wire(string, since=8, nullable=0, default=None)
    # With NOT_LEADER_OR_FOLLOWER: the producer needs no Metadata request (KIP-951).
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=10, tag=0, default=None)


@struct
class TopicProduceResponse:
    """The partitions of one topic."""

    name: str = wire(string, until=12)
    topic_id: bytes = wire(uuid, since=13)
    partition_responses: list[PartitionProduceResponse] = wire(array(PartitionProduceResponse))


@struct
class NodeEndpoint:
    """Where to find a leader named above."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable=0, default=None)


@message(api_key=0, versions=(3, 13), flexible=9)
class ProduceResponse:
    """Where each batch landed, or why it was refused."""

    responses: list[TopicProduceResponse] = wire(array(TopicProduceResponse))
    throttle_time_ms: int = wire(int32)
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=10, tag=0)
