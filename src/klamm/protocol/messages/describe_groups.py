"""DescribeGroups, v0-6: show classic groups to administrators.

v1 throttle time · v3 authorized operations · v4 static members · v5 flexible · v6 an unknown group is an error with
a message
"""

from klamm.protocol.schema import array, blob, boolean, int16, int32, message, string, struct, wire


@message(api_key=15, versions=(0, 6), flexible=5)
class DescribeGroupsRequest:
    """Request groups by name."""

    groups: list[str] = wire(array(string))
    include_authorized_operations: bool = wire(boolean, since=3)


@struct
class DescribedGroupMember:
    """One member, what it subscribed to and what it was given."""

    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=4, nullable=0, default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    member_metadata: bytes = wire(blob)
    member_assignment: bytes = wire(blob)


@struct
class DescribedGroup:
    """One group."""

    error_code: int = wire(int16)
    # Before version 6 an unknown group is a dead group and no error.
    error_message: str | None = wire(string, since=6, nullable=0, default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    protocol_type: str = wire(string)
    protocol_data: str = wire(string)
    members: list[DescribedGroupMember] = wire(array(DescribedGroupMember))
    # The smallest int32 stands for operations that were not requested.
    authorized_operations: int = wire(int32, since=3, default=-(2**31))


@message(api_key=15, versions=(0, 6), flexible=5)
class DescribeGroupsResponse:
    """The groups, their state and their members."""

    throttle_time_ms: int = wire(int32, since=1)
    groups: list[DescribedGroup] = wire(array(DescribedGroup))
