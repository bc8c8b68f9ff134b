"""ConsumerGroupHeartbeat, v0-1: the one request of the new group protocol: join, stay, acknowledge and leave (KIP-848).

v1 the client makes its member id, subscription by pattern
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uuid, wire


@struct
class TopicPartitions:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[int] = wire(array(int32))


@message(api_key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatRequest:
    """What has changed since the last heartbeat; member epoch 0 joins, -1 leaves, -2 leaves temporarily."""

    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    # From here on null, or -1 for the timeout, means unchanged since the last heartbeat.
    instance_id: str | None = wire(string, nullable=0, default=None)
    rack_id: str | None = wire(string, nullable=0, default=None)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    subscribed_topic_names: list[str] | None = wire(array(string), nullable=0, default=None)
    subscribed_topic_regex: str | None = wire(string, since=1, nullable=0, default=None)
    server_assignor: str | None = wire(string, nullable=0, default=None)
    # The partitions still owned: leaving one out confirms that it is revoked.
    topic_partitions: list[TopicPartitions] | None = wire(array(TopicPartitions), nullable=0, default=None)


@struct
class Assignment:
    """All partitions of a member."""

    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@message(api_key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch and, when it changed, its assignment."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    member_id: str | None = wire(string, nullable=0, default=None)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    # Null is unchanged; an empty assignment takes everything away.
    assignment: Assignment | None = wire(Assignment, nullable=0, default=None)
