"""FetchSnapshot, v0-1: load a snapshot of the metadata log from the quorum's leader, piece by piece.

v1 directory ids and leader endpoints
"""

from klamm.protocol.schema import (
    Records,
    array,
    int16,
    int32,
    int64,
    message,
    records,
    string,
    struct,
    uint16,
    uuid,
    wire,
)


@struct
class SnapshotId:
    """A snapshot by the offset and epoch it ends at."""

    end_offset: int = wire(int64)
    epoch: int = wire(int32)


@struct
class PartitionSnapshot:
    """Which snapshot, and where to go on in it."""

    partition: int = wire(int32)
    current_leader_epoch: int = wire(int32)
    snapshot_id: SnapshotId = wire(SnapshotId)
    position: int = wire(int64)
    replica_directory_id: bytes = wire(uuid, since=1, tag=0)


@struct
class TopicSnapshot:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[PartitionSnapshot] = wire(array(PartitionSnapshot))


@message(api_key=59, versions=(0, 1), flexible=0)
class FetchSnapshotRequest:
    """Request bytes of a snapshot from a position on."""

    cluster_id: str | None = wire(string, nullable=0, tag=0, default=None)
    replica_id: int = wire(int32, default=-1)
    max_bytes: int = wire(int32, default=2**31 - 1)
    topics: list[TopicSnapshot] = wire(array(TopicSnapshot))


@struct
class LeaderIdAndEpoch:
    """The current leader of the partition."""

    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class PartitionSnapshotResponse:
    """A piece of one snapshot."""

    index: int = wire(int32)
    error_code: int = wire(int16)
    snapshot_id: SnapshotId = wire(SnapshotId)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, tag=0, default=None)
    size: int = wire(int64)
    position: int = wire(int64)
    # Bytes of a file: a chunk may begin and end inside a batch.
    unaligned_records: Records = wire(records, default=b"")


@struct
class TopicSnapshotResponse:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[PartitionSnapshotResponse] = wire(array(PartitionSnapshotResponse))


@struct
class NodeEndpoint:
    """Where to find a leader named above."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(uint16)


@message(api_key=59, versions=(0, 1), flexible=0)
class FetchSnapshotResponse:
    """The bytes at that position."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    topics: list[TopicSnapshotResponse] = wire(array(TopicSnapshotResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=1, tag=0)
