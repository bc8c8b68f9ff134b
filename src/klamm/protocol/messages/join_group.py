"""JoinGroup, v0-9: become a member of a classic group and wait for its next generation.

v1 rebalance timeout · v2 throttle time · v4 member id required first · v5 static members · v6 flexible · v7
protocol type in the answer · v8 reason · v9 a returning static leader may skip the assignment
"""

from klamm.protocol.schema import array, blob, boolean, int16, int32, message, string, struct, wire


@struct
class JoinGroupRequestProtocol:
    """One protocol and what the member says in it."""

    name: str = wire(string)
    metadata: bytes = wire(blob)


@message(api_key=11, versions=(0, 9), flexible=6)
class JoinGroupRequest:
    """Offer oneself as a member, with the assignment protocols one understands, best first."""

    group_id: str = wire(string)
    session_timeout_ms: int = wire(int32)
    rebalance_timeout_ms: int = wire(int32, since=1, default=-1)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=5, nullable=0, default=None)
    protocol_type: str = wire(string)
    protocols: list[JoinGroupRequestProtocol] = wire(array(JoinGroupRequestProtocol))
    reason: str | None = wire(string, since=8, nullable=0, default=None)


@struct
class JoinGroupResponseMember:
    """A member, as the leader sees it."""

    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=5, nullable=0, default=None)
    metadata: bytes = wire(blob)


@message(api_key=11, versions=(0, 9), flexible=6)
class JoinGroupResponse:
    """The generation that began; the leader also learns who the members are."""

    throttle_time_ms: int = wire(int32, since=2)
    error_code: int = wire(int16)
    generation_id: int = wire(int32, default=-1)
    protocol_type: str | None = wire(string, since=7, nullable=0, default=None)
    protocol_name: str | None = wire(string, nullable=7)
    leader: str = wire(string)
    skip_assignment: bool = wire(boolean, since=9)
    member_id: str = wire(string)
    members: list[JoinGroupResponseMember] = wire(array(JoinGroupResponseMember))
