"""JoinGroup, v0-9: become a member of a classic group and wait for its next generation.

v1 rebalance timeout · v2 throttle time · v4 member id required first · v5 static members · v6 flexible · v7
protocol type in the response · v8 reason · v9 a returning static leader may skip the assignment
"""

from klamm.protocol.schema import array, blob, boolean, int16, int32, message, string, struct, wire


@struct
class JoinGroupRequestProtocol:
    """One protocol and the member's metadata for it."""

    name: str = wire(string)
    metadata: bytes = wire(blob)


@message(api_key=11, versions=(0, 9), flexible=6)
class JoinGroupRequest:
    """Join with the supported assignment protocols, the preferred one first."""

    group_id: str = wire(string)
    session_timeout_ms: int = wire(int32)
    # -1: version 0 uses the session timeout.
    rebalance_timeout_ms: int = wire(int32, since=1, default=-1)
    # Empty in a first join, which since version 4 is answered with an id to join with (KIP-394).
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
    """The generation that began; the leader's also lists the members."""

    throttle_time_ms: int = wire(int32, since=2)
    error_code: int = wire(int16)
    generation_id: int = wire(int32, default=-1)
    protocol_type: str | None = wire(string, since=7, nullable=0, default=None)
    # Before version 7 an error has an empty name, since then null.
    protocol_name: str | None = wire(string, nullable=7)
    leader: str = wire(string)
    skip_assignment: bool = wire(boolean, since=9)
    member_id: str = wire(string)
    # Empty in every response but the leader's.
    members: list[JoinGroupResponseMember] = wire(array(JoinGroupResponseMember))
