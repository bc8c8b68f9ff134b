"""The values of raft's control records: the quorum's own records inside `__cluster_metadata-0` and its snapshots.

Their keys (version, type) are in `records/control.py`; `api_key` here is the control type. Each value repeats its
version as its first field, because a control record has no other place for it.
"""

from klamm.protocol.schema import array, int16, int32, int64, message, string, struct, uint16, uuid, wire


@struct
class LeaderChangeVoter:
    """A voter as a leader change names it."""

    voter_id: int = wire(int32)
    # Kafka 4.3 neither writes nor reads version 1.
    voter_directory_id: bytes = wire(uuid, since=1)


@message(api_key=2, versions=(0, 1), flexible=0)
class LeaderChangeMessage:
    """The first record of every epoch: its leader, the voters, and the voters that elected it. v1 names directories."""

    version: int = wire(int16)
    leader_id: int = wire(int32)
    voters: list[LeaderChangeVoter] = wire(array(LeaderChangeVoter))
    granting_voters: list[LeaderChangeVoter] = wire(array(LeaderChangeVoter))


@message(api_key=3, versions=(0, 0), flexible=0)
class SnapshotHeaderRecord:
    """The first record of a snapshot: when the last record it contains was appended."""

    version: int = wire(int16)
    last_contained_log_timestamp: int = wire(int64)


@message(api_key=4, versions=(0, 0), flexible=0)
class SnapshotFooterRecord:
    """The last record of a snapshot: without it the snapshot is not whole."""

    version: int = wire(int16)


@message(api_key=5, versions=(0, 0), flexible=0)
class KRaftVersionRecord:
    """The level of kraft.version from here on."""

    version: int = wire(int16)
    k_raft_version: int = wire(int16)


@struct
class VotersEndpoint:
    """A listener on which a voter is reached."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@struct
class KRaftVersionFeature:
    """The levels of kraft.version a voter can run."""

    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@struct
class VotersVoter:
    """A member of the quorum."""

    voter_id: int = wire(int32)
    voter_directory_id: bytes = wire(uuid)
    endpoints: list[VotersEndpoint] = wire(array(VotersEndpoint))
    k_raft_version_feature: KRaftVersionFeature = wire(KRaftVersionFeature)


@message(api_key=6, versions=(0, 0), flexible=0)
class VotersRecord:
    """The whole quorum from here on (KIP-853)."""

    version: int = wire(int16)
    voters: list[VotersVoter] = wire(array(VotersVoter))
