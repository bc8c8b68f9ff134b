"""BrokerHeartbeat, v0-2: a broker renews its session at the controller.

v1 log dirs that failed · v2 cordoned log dirs
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, uuid, wire


@message(api_key=63, versions=(0, 2), flexible=0)
class BrokerHeartbeatRequest:
    """The broker's metadata offset, and the change of state it requests."""

    broker_id: int = wire(int32)
    broker_epoch: int = wire(int64, default=-1)
    current_metadata_offset: int = wire(int64)
    want_fence: bool = wire(boolean)
    want_shut_down: bool = wire(boolean)
    offline_log_dirs: list[bytes] = wire(array(uuid), since=1, tag=0)
    # Null changes nothing; an empty list removes all cordons (KIP-1066).
    cordoned_log_dirs: list[bytes] | None = wire(array(uuid), since=2, nullable=0, tag=1, default=None)


@message(api_key=63, versions=(0, 2), flexible=0)
class BrokerHeartbeatResponse:
    """What the broker may do: serve, stay fenced, or stop."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    is_caught_up: bool = wire(boolean)
    is_fenced: bool = wire(boolean, default=True)
    should_shut_down: bool = wire(boolean)
