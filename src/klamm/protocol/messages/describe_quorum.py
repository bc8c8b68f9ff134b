"""DescribeQuorum, v0-2: show the controller quorum: voters, observers and how far each has come.

v1 fetch timestamps · v2 error messages, directory ids, listeners of the nodes
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uint16, uuid, wire


@struct
class PartitionData:
    """A requested partition."""

    partition_index: int = wire(int32)


@struct
class TopicData:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=55, versions=(0, 2), flexible=0)
class DescribeQuorumRequest:
    """Request the state of the metadata partition."""

    topics: list[TopicData] = wire(array(TopicData))


@struct
class ReplicaState:
    """How far one replica has come."""

    replica_id: int = wire(int32)
    replica_directory_id: bytes = wire(uuid, since=2)
    log_end_offset: int = wire(int64)
    last_fetch_timestamp: int = wire(int64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(int64, since=1, default=-1)


@struct
class PartitionDataResponse:
    """The leader of one partition and its replicas."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, since=2, nullable=0)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)
    high_watermark: int = wire(int64)
    current_voters: list[ReplicaState] = wire(array(ReplicaState))
    observers: list[ReplicaState] = wire(array(ReplicaState))


@struct
class TopicDataResponse:
    """The partitions of one topic."""

    topic_name: str = wire(string)
    partitions: list[PartitionDataResponse] = wire(array(PartitionDataResponse))


@struct
class Listener:
    """An address of a node."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@struct
class Node:
    """One node and its addresses."""

    node_id: int = wire(int32)
    listeners: list[Listener] = wire(array(Listener))


@message(api_key=55, versions=(0, 2), flexible=0)
class DescribeQuorumResponse:
    """The quorum as its leader sees it."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, since=2, nullable=0)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))
    nodes: list[Node] = wire(array(Node), since=2)
