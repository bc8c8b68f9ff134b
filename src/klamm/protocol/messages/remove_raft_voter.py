"""RemoveRaftVoter, v0: take a controller out of the quorum (KIP-853).

v0 flexible from the start
"""

from klamm.protocol.schema import int16, int32, message, string, uuid, wire


@message(api_key=81, versions=(0, 0), flexible=0)
class RemoveRaftVoterRequest:
    """Name the voter to remove."""

    cluster_id: str | None = wire(string, nullable=0)
    voter_id: int = wire(int32)
    voter_directory_id: bytes = wire(uuid)


@message(api_key=81, versions=(0, 0), flexible=0)
class RemoveRaftVoterResponse:
    """Whether it is gone."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
