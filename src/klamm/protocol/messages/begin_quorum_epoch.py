"""BeginQuorumEpoch, v0-1: a new quorum leader announces its epoch.

v1 flexible, directory ids and leader endpoints
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uint16, uuid, wire


@struct
class PartitionData:
    """The leader and the epoch of one partition."""

    partition_index: int = wire(int32)
    voter_directory_id: bytes = wire(uuid, since=1)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)


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


@message(api_key=53, versions=(0, 1), flexible=1)
class BeginQuorumEpochRequest:
    """Announce the leader of the new epoch to a voter."""

    cluster_id: str | None = wire(string, nullable=0, default=None)
    # -1: version 0 does not name the voter it is meant for.
    voter_id: int = wire(int32, since=1, default=-1)
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


@message(api_key=53, versions=(0, 1), flexible=1)
class BeginQuorumEpochResponse:
    """Whether the voter follows."""

    error_code: int = wire(int16)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=1, tag=0)
