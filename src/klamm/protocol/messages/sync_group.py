"""SyncGroup, v0-5: hand out the assignment of a new generation.

v1 throttle time · v3 static members · v4 flexible · v5 protocol type and name are checked
"""

from klamm.protocol.schema import array, blob, int16, int32, message, string, struct, wire


@struct
class SyncGroupRequestAssignment:
    """What the leader gives to one member."""

    member_id: str = wire(string)
    assignment: bytes = wire(blob)


@message(api_key=14, versions=(0, 5), flexible=4)
class SyncGroupRequest:
    """Wait for the member's assignment; the leader sends the assignments of all."""

    group_id: str = wire(string)
    generation_id: int = wire(int32)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=3, nullable=0, default=None)
    # Compared with the group's when they are not null (KIP-559).
    protocol_type: str | None = wire(string, since=5, nullable=0, default=None)
    protocol_name: str | None = wire(string, since=5, nullable=0, default=None)
    assignments: list[SyncGroupRequestAssignment] = wire(array(SyncGroupRequestAssignment))


@message(api_key=14, versions=(0, 5), flexible=4)
class SyncGroupResponse:
    """The member's own assignment."""

    throttle_time_ms: int = wire(int32, since=1)
    error_code: int = wire(int16)
    protocol_type: str | None = wire(string, since=5, nullable=0, default=None)
    protocol_name: str | None = wire(string, since=5, nullable=0, default=None)
    assignment: bytes = wire(blob)
