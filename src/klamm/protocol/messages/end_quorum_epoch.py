"""EndQuorumEpoch, v0-1: a quorum leader steps down and names its best successors.

v1 flexible, candidates with directory ids
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uint16, uuid, wire


@struct
class ReplicaInfo:
    """A candidate, in the order in which they should try."""

    candidate_id: int = wire(int32)
    candidate_directory_id: bytes = wire(uuid)


@struct
class PartitionData:
    """The epoch that ends and the preferred successors."""

    partition_index: int = wire(int32)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)
    # Version 0 names nodes, version 1 nodes with their directories (KIP-853).
    preferred_successors: list[int] = wire(array(int32), until=0)
    preferred_candidates: list[ReplicaInfo] = wire(array(ReplicaInfo), since=1)


@struct
class TopicData:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[PartitionData] = wire(array(PartitionData))


@struct
class LeaderEndpoint:
    """An address of the leader."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@message(api_key=54, versions=(0, 1), flexible=1)
class EndQuorumEpochRequest:
    """Announce the end of the epoch to the voters, so that none has to wait for a timeout."""

    cluster_id: str | None = wire(string, nullable=0, default=None)
    topics: list[TopicData] = wire(array(TopicData))
    leader_endpoints: list[LeaderEndpoint] = wire(array(LeaderEndpoint), since=1)


@struct
class PartitionDataResponse:
    """The leader according to the voter."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)


@struct
class TopicDataResponse:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[PartitionDataResponse] = wire(array(PartitionDataResponse))


@struct
class NodeEndpoint:
    """Where to find a leader named above."""

    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(uint16)


@message(api_key=54, versions=(0, 1), flexible=1)
class EndQuorumEpochResponse:
    """The leader according to the voter."""

    error_code: int = wire(int16)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=1, tag=0)
