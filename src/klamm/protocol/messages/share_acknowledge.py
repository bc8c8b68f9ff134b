"""ShareAcknowledge, v1-2: acknowledge records acquired by ShareFetch.

v1 the first stable version · v2 renewed locks
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, struct, uuid, wire


@struct
class AcknowledgementBatch:
    """What happened to a range of records."""

    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    acknowledge_types: list[int] = wire(array(int8))


@struct
class AcknowledgePartition:
    """The acknowledgements of one partition."""

    partition_index: int = wire(int32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch))


@struct
class AcknowledgeTopic:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[AcknowledgePartition] = wire(array(AcknowledgePartition))


@message(api_key=79, versions=(1, 2), flexible=0)
class ShareAcknowledgeRequest:
    """Accept, release, reject or keep ranges of records."""

    group_id: str | None = wire(string, nullable=0, default=None)
    member_id: str | None = wire(string, nullable=0)
    # -1 closes the session.
    share_session_epoch: int = wire(int32)
    is_renew_ack: bool = wire(boolean, since=2)
    topics: list[AcknowledgeTopic] = wire(array(AcknowledgeTopic))


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition."""

    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class PartitionData:
    """Whether the acknowledgements of one partition were taken."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch)


@struct
class ShareAcknowledgeTopicResponse:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[PartitionData] = wire(array(PartitionData))


@struct
class NodeEndpoint:
    """Where to find a leader named above."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable=0, default=None)


@message(api_key=79, versions=(1, 2), flexible=0)
class ShareAcknowledgeResponse:
    """The results of the acknowledgements."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(int32, since=2)
    responses: list[ShareAcknowledgeTopicResponse] = wire(array(ShareAcknowledgeTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint))
