"""LeaveGroup, v0-5: leave a classic group without waiting for the session to end.

v1 throttle time · v3 many members at once, static members · v4 flexible · v5 reason
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@struct
class MemberIdentity:
    """A member by its id, or by its instance id when it is static."""

    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, nullable=0, default=None)
    reason: str | None = wire(string, since=5, nullable=0, default=None)


@message(api_key=13, versions=(0, 5), flexible=4)
class LeaveGroupRequest:
    """Remove members from a group."""

    group_id: str = wire(string)
    member_id: str = wire(string, until=2)
    members: list[MemberIdentity] = wire(array(MemberIdentity), since=3)


@struct
class MemberResponse:
    """Whether one member was removed."""

    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, nullable=0)
    error_code: int = wire(int16)


@message(api_key=13, versions=(0, 5), flexible=4)
class LeaveGroupResponse:
    """The members that were removed."""

    throttle_time_ms: int = wire(int32, since=1)
    error_code: int = wire(int16)
    members: list[MemberResponse] = wire(array(MemberResponse), since=3)
