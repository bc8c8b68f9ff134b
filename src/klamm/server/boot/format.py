"""Formats data folders: writes cluster, node and directory id once, before the first start.

Everything is checked before anything is written, so an error leaves all folders unchanged.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from klamm.model.errors import ConfigError
from klamm.model.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_from_str, uuid_to_str
from klamm.protocol.messages.metadata_records import MetadataRecord
from klamm.raft.config import METADATA_FOLDER
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import DYNAMIC, VoterConfiguration
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.first_records import write_first_records
from klamm.storage.disk import Disk
from klamm.storage.meta_properties import META_PROPERTIES, MetaProperties, read_meta_properties, write_meta_properties

# An IPv6 host is in brackets, as in Kafka.
_INITIAL_CONTROLLER = re.compile(r"(?P<id>\d+)@(?P<host>\[[^\]]+\]|[^:\[\]]+):(?P<port>\d+):(?P<directory>[\w-]+)")

IGNORED_IN_EMPTY = frozenset({".lock", "lost+found", "pipelines"})
"""Entries an empty data folder may have; `pipelines` is where older versions kept the state of pipelines."""

METADATA_VERSION = "4.3-IV0"
"""The metadata.version of a new cluster."""


@dataclass(frozen=True, slots=True)
class FormatReport:
    """The folders that were formatted, and those that already were."""

    formatted: tuple[str, ...]
    skipped: tuple[str, ...]


def random_uuid(entropy: Callable[[int], bytes] = os.urandom) -> Uuid:
    """Return a new id as Kafka generates them: version 4, not reserved, and without a leading dash as text."""
    while True:
        raw = bytearray(entropy(16))
        # Version 4 and the RFC 4122 variant.
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        candidate = Uuid(bytes(raw))
        if candidate not in (ZERO_UUID, METADATA_TOPIC_ID) and not uuid_to_str(candidate).startswith("-"):
            return candidate


def all_folders(config: NodeConfig) -> tuple[str, ...]:
    """Return all folders the node writes to: data and metadata."""
    return tuple(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))


def check_folders(paths: Sequence[str]) -> None:
    """Raise ConfigError for a folder that cannot be created or written, without creating it."""
    for path in paths:
        # `os.access` needs an existing path, and checking must not create one.
        existing = path
        # A folder that does not exist yet is created inside its nearest existing parent, so that one is checked.
        while not os.path.lexists(existing):
            existing = os.path.dirname(existing)
        if not os.path.isdir(existing):
            raise ConfigError(f"{existing} is not a folder, so {_data_folder(path)} cannot be used; choose another")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigError(
                f"{existing} cannot be written to, so {_data_folder(path)} cannot be used;"
                " allow it or choose another folder"
            )


def read_identities(config: NodeConfig, disk: Disk | None = None) -> dict[str, MetaProperties | None]:
    """Return the identity of every folder; ConfigError for folders of two clusters or of another node."""
    identities = {path: read_meta_properties(disk or Disk(), path) for path in all_folders(config)}
    known = {path: identity for path, identity in identities.items() if identity is not None}
    for path, identity in known.items():
        if identity.node_id != config.node_id:
            raise ConfigError(
                f"{path} belongs to node {identity.node_id}, but node.id={config.node_id};"
                " write the folder's own node.id or use another folder"
            )
    clusters = {identity.cluster_id: path for path, identity in known.items()}
    if len(clusters) > 1:
        (first_id, first), (second_id, second), *_ = clusters.items()
        raise ConfigError(
            f"{first} belongs to cluster {first_id} but {second} to cluster {second_id}; use folders of one cluster"
        )
    return identities


def check_voters(config: NodeConfig, disk: Disk | None = None) -> None:
    """Raise ConfigError for static voters other than those the metadata folder was last used with.

    With fewer voters a node could elect itself, acknowledge records, and lose them when the others return.
    """
    folder = os.path.join(config.metadata_log_dir, METADATA_FOLDER)
    known = QuorumStateFile(folder, disk or Disk()).read_static_voters()
    configured = {voter.node_id for voter in config.voters}
    # None: a new folder, or a dynamic quorum, whose voters are in the log.
    if known is None or not config.is_controller or known == configured:
        return
    raise ConfigError(
        f"{config.metadata_log_dir} was last used with the voters {_join_ids(known)}, but controller.quorum.voters"
        f" names {_join_ids(configured)}; name the same voters, or use another folder"
    )


def _join_ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))


def format_folders(
    config: NodeConfig,
    cluster_id: str,
    *,
    ignore_formatted: bool = False,
    voters: VoterSet | None = None,
    now_ms: int = 0,
    disk: Disk | None = None,
    new_uuid: Callable[[], Uuid] = random_uuid,
    first_records: Sequence[MetadataRecord] = (),
    dry_run: bool = False,
) -> FormatReport:
    """Write meta.properties into every folder that has none; `dry_run` checks everything and writes nothing.

    `voters` are the initial voters of a dynamic quorum, written as a snapshot at the start of the log. A zero directory
    id in this node's own entry stands for the one that its metadata folder gets here. The first active controller
    writes `first_records` to the metadata log.
    """
    if not cluster_id or not cluster_id.isprintable() or cluster_id != cluster_id.strip():
        raise ConfigError("the cluster id is empty or unprintable; make one with klamm storage random-uuid")
    disk = disk or Disk()
    folders = all_folders(config)
    check_folders(folders)
    identities = read_identities(config, disk)
    formatted = [path for path in folders if identities[path] is not None]
    for path in formatted:
        identity = identities[path]
        if identity is not None and identity.cluster_id != cluster_id:
            raise ConfigError(
                f"{path} belongs to cluster {identity.cluster_id}, not {cluster_id};"
                f" use that id, or another folder, or remove {os.path.join(path, META_PROPERTIES)} if the data may go"
            )
    # As kafka-storage, which formats none of the folders either.
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"log directory {formatted[0]} is already formatted;"
            " add --ignore-formatted to leave it as it is and format the others"
        )
    fresh = [path for path in folders if identities[path] is None]
    # The voters' snapshot is written before meta.properties: a crash in between leaves an unformatted folder.
    for path in () if dry_run else fresh:
        directory_id = new_uuid()
        if path == config.metadata_log_dir and voters is not None:
            own = voters.get(config.node_id)
            if own is not None and own.key.directory_id != ZERO_UUID:
                # --initial-controllers names the directory ids of all voters, ours among them: the folder has to get
                # that one.
                directory_id = Uuid(own.key.directory_id)
            _write_voters(disk, path, _set_directory(voters, config.node_id, directory_id), now_ms)
        disk.makedirs(path, exist_ok=True)
        if path == config.metadata_log_dir and first_records:
            write_first_records(disk, path, first_records, now_ms)
        write_meta_properties(disk, path, MetaProperties(cluster_id, config.node_id, directory_id))
    return FormatReport(tuple(fresh), tuple(formatted))


def standalone_voters(config: NodeConfig) -> VoterSet:
    """Return this node as the only voter of a dynamic quorum."""
    listener = config.controller_listeners[0]
    advertised = next((other for other in config.advertised_listeners if other.name == listener.name), listener)
    host = socket.gethostname() if advertised.host in ("", "0.0.0.0", "::") else advertised.host  # noqa: S104 - compared with
    return VoterSet([Voter(ReplicaKey(config.node_id), host, advertised.port, listener.name)])


def parse_initial_controllers(config: NodeConfig, text: str) -> VoterSet:
    """Parse voters in the form of kafka-storage: id@host:port:directory-id, separated by commas."""
    voters = []
    for entry in text.split(","):
        match = _INITIAL_CONTROLLER.fullmatch(entry.strip())
        try:
            directory_id = uuid_from_str(match["directory"]) if match else b""
        except ValueError:
            match = None
        if match is None:
            raise ConfigError(
                f"{entry.strip()!r} names no controller; write id@host:port:directory-id, the last made with"
                " klamm storage random-uuid"
            )
        key = ReplicaKey(int(match["id"]), directory_id)
        voters.append(Voter(key, match["host"].strip("[]"), int(match["port"]), config.controller_listener_names[0]))
    if len({voter.id for voter in voters}) != len(voters):
        raise ConfigError("--initial-controllers names a node twice; write every id once")
    voter_set = VoterSet(voters)
    if config.is_controller and config.node_id not in voter_set:
        raise ConfigError(
            f"node.id={config.node_id} is not among --initial-controllers; add it, or write --no-initial-controllers"
        )
    return voter_set


def _set_directory(voters: VoterSet, node_id: int, directory_id: bytes) -> VoterSet:
    return VoterSet(
        replace(voter, key=ReplicaKey(voter.id, directory_id)) if voter.id == node_id else voter for voter in voters
    )


def _write_voters(disk: Disk, log_dir: str, voters: VoterSet, now_ms: int) -> None:
    """Write the snapshot that a dynamic quorum begins with: empty except for the voters."""
    folder = os.path.join(log_dir, METADATA_FOLDER)
    disk.makedirs(folder, mode=0o700, exist_ok=True)
    SnapshotFolder(folder, disk).write(
        # Kafka's bootstrap snapshot, too, is at offset 0 of epoch 0: everything in the log comes after it.
        OffsetAndEpoch(0, 0),
        (),
        now_ms=now_ms,
        last_contained_log_timestamp=0,
        configuration=VoterConfiguration(voters, DYNAMIC),
    )


def _data_folder(path: str) -> str:
    return f"data folder {path}"
