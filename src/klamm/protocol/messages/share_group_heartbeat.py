"""ShareGroupHeartbeat, v1: join, stay in and leave a share group (KIP-932).

v1 the first stable version
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uuid, wire


@message(api_key=76, versions=(1, 1), flexible=0)
class ShareGroupHeartbeatRequest:
    """The member's subscription; member epoch 0 joins, -1 leaves."""

    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    rack_id: str | None = wire(string, nullable=0, default=None)
    subscribed_topic_names: list[str] | None = wire(array(string), nullable=0, default=None)


@struct
class TopicPartitions:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    partitions: list[int] = wire(array(int32))


@struct
class Assignment:
    """All partitions of a member."""

    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@message(api_key=76, versions=(1, 1), flexible=0)
class ShareGroupHeartbeatResponse:
    """The member's epoch and, when it changed, its assignment."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    member_id: str | None = wire(string, nullable=0, default=None)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    assignment: Assignment | None = wire(Assignment, nullable=0, default=None)
