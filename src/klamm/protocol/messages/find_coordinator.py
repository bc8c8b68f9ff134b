"""FindCoordinator, v0-6: which broker coordinates a group or a transactional id.

v1 transactions · v3 flexible · v4 many keys at once · v5 abortable errors (KIP-890) · v6 share groups
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@message(api_key=10, versions=(0, 6), flexible=3)
class FindCoordinatorRequest:
    """Request the coordinator of keys of one kind: 0 groups, 1 transactions, 2 share partitions."""

    # Up to version 3 one key, whose coordinator is in the response itself.
    key: str = wire(string, until=3)
    key_type: int = wire(int8, since=1)
    coordinator_keys: list[str] = wire(array(string), since=4)


@struct
class Coordinator:
    """The coordinator of one key."""

    key: str = wire(string)
    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@message(api_key=10, versions=(0, 6), flexible=3)
class FindCoordinatorResponse:
    """Where the coordinators are."""

    throttle_time_ms: int = wire(int32, since=1)
    error_code: int = wire(int16, until=3)
    error_message: str | None = wire(string, since=1, until=3, nullable=0)
    node_id: int = wire(int32, until=3)
    host: str = wire(string, until=3)
    port: int = wire(int32, until=3)
    coordinators: list[Coordinator] = wire(array(Coordinator), since=4)
