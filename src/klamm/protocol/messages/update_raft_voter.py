"""UpdateRaftVoter, v0: a voter reports its addresses and its versions to the quorum (KIP-853).

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uint16, uuid, wire


@struct
class Listener:
    """An address of the voter."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@struct
class KRaftVersionFeature:
    """The versions of the quorum protocol the voter supports."""

    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@message(api_key=82, versions=(0, 0), flexible=0)
class UpdateRaftVoterRequest:
    """The voter's current listeners."""

    cluster_id: str | None = wire(string, nullable=0)
    current_leader_epoch: int = wire(int32)
    voter_id: int = wire(int32)
    voter_directory_id: bytes = wire(uuid)
    listeners: list[Listener] = wire(array(Listener))
    kraft_version_feature: KRaftVersionFeature = wire(KRaftVersionFeature)


@struct
class CurrentLeader:
    """The leader of the quorum and its address."""

    leader_id: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32, default=-1)
    host: str = wire(string)
    port: int = wire(int32)


@message(api_key=82, versions=(0, 0), flexible=0)
class UpdateRaftVoterResponse:
    """Whether it was stored, and the leader."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    current_leader: CurrentLeader | None = wire(CurrentLeader, tag=0, default=None)
