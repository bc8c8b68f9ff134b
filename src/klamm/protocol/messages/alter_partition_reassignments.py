"""AlterPartitionReassignments, v0-1: move partitions to other brokers.

v1 a changed replication factor can be refused
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, wire


@struct
class ReassignablePartition:
    """The new replicas of one partition."""

    partition_index: int = wire(int32)
    # Null cancels; an empty list is an error.
    replicas: list[int] | None = wire(array(int32), nullable=0, default=None)


@struct
class ReassignableTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[ReassignablePartition] = wire(array(ReassignablePartition))


@message(api_key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsRequest:
    """Give the new replicas of partitions; null takes a move back."""

    timeout_ms: int = wire(int32, default=60000)
    allow_replication_factor_change: bool = wire(boolean, since=1, default=True)
    topics: list[ReassignableTopic] = wire(array(ReassignableTopic))


@struct
class ReassignablePartitionResponse:
    """Whether one move was accepted."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@struct
class ReassignableTopicResponse:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[ReassignablePartitionResponse] = wire(array(ReassignablePartitionResponse))


@message(api_key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsResponse:
    """Which moves were accepted."""

    throttle_time_ms: int = wire(int32)
    allow_replication_factor_change: bool = wire(boolean, since=1, default=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    responses: list[ReassignableTopicResponse] = wire(array(ReassignableTopicResponse))
