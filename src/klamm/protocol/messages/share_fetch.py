"""ShareFetch, v1-2: acquire records for a share group's member, acknowledging earlier ones on the way.

v1 the first stable version · v2 acquire mode, renewed locks
"""

from klamm.protocol.schema import (
    Records,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    records,
    string,
    struct,
    uuid,
    wire,
)


@struct
class AcknowledgementBatch:
    """What happened to a range of records."""

    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    acknowledge_types: list[int] = wire(array(int8))


@struct
class FetchPartition:
    """One partition and the acknowledgements for it."""

    partition_index: int = wire(int32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch))


@struct
class FetchTopic:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[FetchPartition] = wire(array(FetchPartition))


@struct
class ForgottenTopic:
    """Partitions to leave out of the session from now on."""

    topic_id: bytes = wire(uuid)
    partitions: list[int] = wire(array(int32))


@message(api_key=78, versions=(1, 2), flexible=0)
class ShareFetchRequest:
    """Request records; they stay locked for this member until acknowledged."""

    group_id: str | None = wire(string, nullable=0, default=None)
    member_id: str | None = wire(string, nullable=0)
    # 0 opens a session, -1 closes it.
    share_session_epoch: int = wire(int32)
    max_wait_ms: int = wire(int32)
    min_bytes: int = wire(int32)
    max_bytes: int = wire(int32, default=2**31 - 1)
    max_records: int = wire(int32)
    batch_size: int = wire(int32)
    share_acquire_mode: int = wire(int8, since=2)
    is_renew_ack: bool = wire(boolean, since=2)
    topics: list[FetchTopic] = wire(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = wire(array(ForgottenTopic))


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition."""

    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class AcquiredRecords:
    """A range of records now locked, and how often it was delivered."""

    first_offset: int = wire(int64)
    last_offset: int = wire(int64)
    delivery_count: int = wire(int16)


@struct
class PartitionData:
    """The batches of one partition."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    acknowledge_error_code: int = wire(int16)
    acknowledge_error_message: str | None = wire(string, nullable=0, default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch)
    records: Records = wire(records, default=b"")
    acquired_records: list[AcquiredRecords] = wire(array(AcquiredRecords))


@struct
class ShareFetchableTopicResponse:
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


@message(api_key=78, versions=(1, 2), flexible=0)
class ShareFetchResponse:
    """Batches, and which of their records this member has acquired."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(int32)
    responses: list[ShareFetchableTopicResponse] = wire(array(ShareFetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint))
