"""ShareGroupDescribe, v1: show share groups.

v1 the first stable version
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, uuid, wire


@message(api_key=77, versions=(1, 1), flexible=0)
class ShareGroupDescribeRequest:
    """Request share groups by name."""

    group_ids: list[str] = wire(array(string))
    include_authorized_operations: bool = wire(boolean)


@struct
class TopicPartitions:
    """The partitions of one topic."""

    topic_id: bytes = wire(uuid)
    topic_name: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class Assignment:
    """All partitions of a member."""

    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@struct
class Member:
    """One member and what it reads."""

    member_id: str = wire(string)
    rack_id: str | None = wire(string, nullable=0, default=None)
    member_epoch: int = wire(int32)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: list[str] = wire(array(string))
    assignment: Assignment = wire(Assignment)


@struct
class DescribedGroup:
    """One group."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    assignor_name: str = wire(string)
    members: list[Member] = wire(array(Member))
    authorized_operations: int = wire(int32, default=-(2**31))


@message(api_key=77, versions=(1, 1), flexible=0)
class ShareGroupDescribeResponse:
    """The groups and their members."""

    throttle_time_ms: int = wire(int32)
    groups: list[DescribedGroup] = wire(array(DescribedGroup))
