"""CreatePartitions, v0-3: give topics more partitions.

v1 quota applied after the response · v2 flexible · v3 quota errors
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, wire


@struct
class CreatePartitionsAssignment:
    """The replicas of one new partition."""

    broker_ids: list[int] = wire(array(int32))


@struct
class CreatePartitionsTopic:
    """One topic, its new count, and where the new partitions go."""

    name: str = wire(string)
    count: int = wire(int32)
    # Null lets the controller place the new partitions.
    assignments: list[CreatePartitionsAssignment] | None = wire(array(CreatePartitionsAssignment), nullable=0)


@message(api_key=37, versions=(0, 3), flexible=2)
class CreatePartitionsRequest:
    """The number of partitions that each topic should have in all."""

    topics: list[CreatePartitionsTopic] = wire(array(CreatePartitionsTopic))
    timeout_ms: int = wire(int32)
    validate_only: bool = wire(boolean)


@struct
class CreatePartitionsTopicResult:
    """Whether one topic grew."""

    name: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@message(api_key=37, versions=(0, 3), flexible=2)
class CreatePartitionsResponse:
    """The result of each topic."""

    throttle_time_ms: int = wire(int32)
    results: list[CreatePartitionsTopicResult] = wire(array(CreatePartitionsTopicResult))
