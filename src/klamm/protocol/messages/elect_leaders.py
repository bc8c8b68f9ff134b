"""ElectLeaders, v0-2: move leadership, to preferred replicas or, uncleanly, to any live one.

v1 election type · v2 flexible
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@struct
class TopicPartitions:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[int] = wire(array(int32))


@message(api_key=43, versions=(0, 2), flexible=2)
class ElectLeadersRequest:
    """Request elections; null topics mean every partition that needs one."""

    # Version 0 has preferred elections only, which are type 0.
    election_type: int = wire(int8, since=1)
    topic_partitions: list[TopicPartitions] | None = wire(array(TopicPartitions), nullable=0)
    timeout_ms: int = wire(int32, default=60000)


@struct
class PartitionResult:
    """The election of one partition."""

    partition_id: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@struct
class ReplicaElectionResult:
    """The elections of one topic."""

    topic: str = wire(string)
    partition_result: list[PartitionResult] = wire(array(PartitionResult))


@message(api_key=43, versions=(0, 2), flexible=2)
class ElectLeadersResponse:
    """The result of each election."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16, since=1)
    replica_election_results: list[ReplicaElectionResult] = wire(array(ReplicaElectionResult))
