"""Vote, v0-2: a candidate requests the votes of the quorum's voters.

v1 directory ids and leader endpoints · v2 pre-vote (KIP-996)
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, uint16, uuid, wire


@struct
class PartitionData:
    """The candidate and the end of its log."""

    partition_index: int = wire(int32)
    replica_epoch: int = wire(int32)
    replica_id: int = wire(int32)
    replica_directory_id: bytes = wire(uuid, since=1)
    voter_directory_id: bytes = wire(uuid, since=1)
    last_offset_epoch: int = wire(int32)
    # The end of the log, one more than the offset of its last record.
    last_offset: int = wire(int64)
    pre_vote: bool = wire(boolean, since=2)


@struct
class TopicData:
    """The partitions of one topic; the metadata topic in practice."""

    topic_name: str = wire(string)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(api_key=52, versions=(0, 2), flexible=0)
class VoteRequest:
    """The candidate, its epoch and the end of its log."""

    cluster_id: str | None = wire(string, nullable=0, default=None)
    voter_id: int = wire(int32, since=1, default=-1)
    topics: list[TopicData] = wire(array(TopicData))


@struct
class PartitionDataResponse:
    """The vote, and the leader according to the voter."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32)
    vote_granted: bool = wire(boolean)


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


@message(api_key=52, versions=(0, 2), flexible=0)
class VoteResponse:
    """Whether the vote is granted."""

    error_code: int = wire(int16)
    topics: list[TopicDataResponse] = wire(array(TopicDataResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint), since=1, tag=0)
