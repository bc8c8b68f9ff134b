"""The configuration of a quorum member: its id, the voters, its log directory, timeouts and limits."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.model.ids import ZERO_UUID
from klamm.raft.core.events import QuorumTimeouts
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import VoterConfiguration

METADATA_FOLDER = "__cluster_metadata-0"


@dataclass(frozen=True)
class RaftConfig:
    """The part of the node's configuration that the quorum uses; defaults are Kafka's.

    `voters` maps node id to (host, port, directory id). `kraft_version` 0 means static voters
    (`controller.quorum.voters`), 1 dynamic ones, whose set is part of the log (KIP-853). A configuration in the log or
    in a snapshot takes precedence over both.
    """

    node_id: int
    voters: Mapping[int, tuple[str, int, bytes]]
    log_dir: str
    cluster_id: str = ""
    directory_id: bytes = ZERO_UUID
    kraft_version: int = 0
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1024 * 1024
    snapshot_max_bytes: int = 1024 * 1024
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    batch_bytes_max: int = 8 * 1024 * 1024
    controller_listener: str = "CONTROLLER"
    bootstrap: tuple[int, ...] = ()
    """Peers to fetch from while no voters are known; ids under which the transport has their addresses."""
    voter_set: VoterSet = field(init=False)

    def __post_init__(self) -> None:
        voters = VoterSet(
            Voter(ReplicaKey(node_id, directory_id), host, port, self.controller_listener)
            for node_id, (host, port, directory_id) in self.voters.items()
        )
        object.__setattr__(self, "voter_set", voters)

    @property
    def local(self) -> ReplicaKey:
        """This replica."""
        return ReplicaKey(self.node_id, self.directory_id)

    @property
    def initial_voters(self) -> VoterConfiguration:
        """The voters in force until the log or a snapshot names others."""
        return VoterConfiguration(self.voter_set, self.kraft_version)

    @property
    def folder(self) -> str:
        """The folder of the log, the snapshots and the quorum-state file."""
        return os.path.join(self.log_dir, METADATA_FOLDER)

    @property
    def timeouts(self) -> QuorumTimeouts:
        """The timeouts and limits of the core."""
        return QuorumTimeouts(
            election_timeout_ms=self.election_timeout_ms,
            fetch_timeout_ms=self.fetch_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            # Well below the fetch timeout: a parked fetch must not make the follower think that its leader is dead.
            fetch_max_wait_ms=min(500, self.fetch_timeout_ms // 2),
            election_backoff_max_ms=self.election_backoff_max_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            snapshot_max_bytes=self.snapshot_max_bytes,
        )
