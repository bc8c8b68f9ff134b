"""Heartbeat, v0-4: a member of a classic group renews its session.

v1 throttle time · v2 quota applied after the response · v3 static members · v4 flexible
"""

from klamm.protocol.schema import int16, int32, message, string, wire


@message(api_key=12, versions=(0, 4), flexible=4)
class HeartbeatRequest:
    """Keep a member alive in its group."""

    group_id: str = wire(string)
    generation_id: int = wire(int32)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, since=3, nullable=0, default=None)


@message(api_key=12, versions=(0, 4), flexible=4)
class HeartbeatResponse:
    """Success, or an error such as REBALANCE_IN_PROGRESS."""

    throttle_time_ms: int = wire(int32, since=1)
    error_code: int = wire(int16)
