"""Fetch, v4-18: read record batches; for consumers, followers and the metadata quorum alike.

v5 log start offset · v7 fetch sessions (KIP-227) · v9 leader epoch · v10 zstd allowed · v11 rack of the consumer ·
v12 flexible, divergence by epoch · v13 topic ids · v15 replica state instead of replica id · v16 leader
endpoints · v17 directory id of a quorum voter · v18 high watermark of a follower
"""

from klamm.protocol.schema import (
    Records,
    array,
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
class ReplicaState:
    """The follower that fetches, and its broker epoch."""

    replica_id: int = wire(int32, default=-1)
    replica_epoch: int = wire(int64, default=-1)


@struct
class FetchPartition:
    """Where to go on in one partition."""

    partition: int = wire(int32)
    # -1 skips the comparison, for consumers without an epoch (KIP-320).
    current_leader_epoch: int = wire(int32, since=9, default=-1)
    fetch_offset: int = wire(int64)
    # Lets the leader detect divergence without OffsetForLeaderEpoch (KIP-595).
    last_fetched_epoch: int = wire(int32, since=12, default=-1)
    # The follower's own: the smallest of them is DeleteRecords' low watermark.
    log_start_offset: int = wire(int64, since=5, default=-1)
    partition_max_bytes: int = wire(int32)
    replica_directory_id: bytes = wire(uuid, since=17, tag=0)
    # 2^63 - 1: the follower does not report it; -1: it has none yet (KIP-1166).
    high_watermark: int = wire(int64, since=18, tag=1, default=2**63 - 1)


@struct
class FetchTopic:
    """The partitions of one topic."""

    topic: str = wire(string, until=12)
    topic_id: bytes = wire(uuid, since=13)
    partitions: list[FetchPartition] = wire(array(FetchPartition))


@struct
class ForgottenTopic:
    """Partitions to leave out of the session from now on."""

    topic: str = wire(string, until=12)
    topic_id: bytes = wire(uuid, since=13)
    partitions: list[int] = wire(array(int32))


@message(api_key=1, versions=(4, 18), flexible=12)
class FetchRequest:
    """Request batches, waiting up to `max_wait_ms` until `min_bytes` of them are there."""

    cluster_id: str | None = wire(string, since=12, nullable=0, tag=0, default=None)
    # -1 is a consumer; from version 15 on followers use `replica_state` (KIP-903).
    replica_id: int = wire(int32, until=14, default=-1)
    replica_state: ReplicaState | None = wire(ReplicaState, since=15, tag=1, default=None)
    max_wait_ms: int = wire(int32)
    min_bytes: int = wire(int32)
    max_bytes: int = wire(int32, default=2**31 - 1)
    isolation_level: int = wire(int8)
    session_id: int = wire(int32, since=7)
    # -1 is a full fetch without a session, 0 opens one (KIP-227).
    session_epoch: int = wire(int32, since=7, default=-1)
    topics: list[FetchTopic] = wire(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = wire(array(ForgottenTopic), since=7)
    rack_id: str = wire(string, since=11)


@struct
class EpochEndOffset:
    """Where a follower's log parts from the leader's."""

    epoch: int = wire(int32, default=-1)
    end_offset: int = wire(int64, default=-1)


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition."""

    leader_id: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32, default=-1)


@struct
class SnapshotId:
    """The snapshot to load when the log no longer reaches back far enough."""

    end_offset: int = wire(int64, default=-1)
    epoch: int = wire(int32, default=-1)


@struct
class AbortedTransaction:
    """A transaction in the returned range whose records must not be shown."""

    producer_id: int = wire(int64)
    first_offset: int = wire(int64)


@struct
class PartitionData:
    """The batches of one partition and the offsets around them."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    high_watermark: int = wire(int64)
    last_stable_offset: int = wire(int64, default=-1)
    log_start_offset: int = wire(int64, since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = wire(EpochEndOffset, since=12, tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=12, tag=1, default=None)
    snapshot_id: SnapshotId | None = wire(SnapshotId, since=12, tag=2, default=None)
    # Null under read_uncommitted.
    aborted_transactions: list[AbortedTransaction] | None = wire(array(AbortedTransaction), nullable=0)
    # A follower in the consumer's rack; the response has no records then (KIP-392).
    preferred_read_replica: int = wire(int32, since=11, default=-1)
    records: Records = wire(records, nullable=0)


@struct
class FetchableTopicResponse:
    """The partitions of one topic."""

    topic: str = wire(string, until=12)
    topic_id: bytes = wire(uuid, since=13)
    partitions: list[PartitionData] = wire(array(PartitionData))


@struct
class NodeEndpoint:
    """Where to find a leader named above."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable=0, default=None)


@message(api_key=1, versions=(4, 18), flexible=12)
class FetchResponse:
    """Whole batches of each partition, from the one that holds the requested offset on."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16, since=7)
    session_id: int = wire(int32, since=7)
    responses: list[FetchableTopicResponse] = wire(array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=16, tag=0)
