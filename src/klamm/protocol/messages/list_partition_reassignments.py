"""ListPartitionReassignments, v0: the moves that are under way.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@struct
class ListPartitionReassignmentsTopics:
    """The partitions of one topic."""

    name: str = wire(string)
    partition_indexes: list[int] = wire(array(int32))


@message(api_key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsRequest:
    """Request some topics, or all with null."""

    timeout_ms: int = wire(int32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = wire(
        array(ListPartitionReassignmentsTopics), nullable=0, default=None
    )


@struct
class OngoingPartitionReassignment:
    """One move: the replicas that are added and removed."""

    partition_index: int = wire(int32)
    replicas: list[int] = wire(array(int32))
    adding_replicas: list[int] = wire(array(int32))
    removing_replicas: list[int] = wire(array(int32))


@struct
class OngoingTopicReassignment:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[OngoingPartitionReassignment] = wire(array(OngoingPartitionReassignment))


@message(api_key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsResponse:
    """The partitions that are moving."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    topics: list[OngoingTopicReassignment] = wire(array(OngoingTopicReassignment))
