"""AddRaftVoter, v0-1: add a controller to the quorum (KIP-853).

v1 the response need not wait for the commit
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, uint16, uuid, wire


@struct
class Listener:
    """An address of the voter."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@message(api_key=80, versions=(0, 1), flexible=0)
class AddRaftVoterRequest:
    """Name the new voter and where it listens."""

    # Null skips the comparison with the cluster's id.
    cluster_id: str | None = wire(string, nullable=0)
    timeout_ms: int = wire(int32)
    voter_id: int = wire(int32)
    voter_directory_id: bytes = wire(uuid)
    listeners: list[Listener] = wire(array(Listener))
    ack_when_committed: bool = wire(boolean, since=1, default=True)


@message(api_key=80, versions=(0, 1), flexible=0)
class AddRaftVoterResponse:
    """Whether it votes now."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
