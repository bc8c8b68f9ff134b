"""Giving data folders their identity: cluster, node and folder id, written once before the first start.

Everything is checked before anything is written, so a refusal leaves all folders as they were.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from klamm.model.errors import ConfigError
from klamm.model.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_from_str, uuid_to_str
from klamm.raft.config import METADATA_FOLDER
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, VoterSet
from klamm.raft.core.quorum import Voter as RaftVoter
from klamm.raft.core.voter_history import DYNAMIC, VoterConfiguration
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.server.boot.config import NodeConfig
from klamm.storage.disk import Disk
from klamm.storage.meta_properties import META_PROPERTIES, MetaProperties, read_meta_properties, write_meta_properties

_INITIAL_CONTROLLER = re.compile(r"(?P<id>\d+)@(?P<host>\[[^\]]+\]|[^:\[\]]+):(?P<port>\d+):(?P<directory>[\w-]+)")

IGNORED_IN_EMPTY = frozenset({".lock", "lost+found", "pipelines"})
"""What an empty data folder may hold; pipelines keep their state in the last where nothing else was asked for."""

METADATA_VERSION = "4.3-IV0"
"""The metadata level a new cluster begins with."""


@dataclass(frozen=True, slots=True)
class FormatReport:
    """Which folders got an identity now, and which had it already."""

    formatted: tuple[str, ...]
    skipped: tuple[str, ...]


def random_uuid(entropy: Callable[[int], bytes] = os.urandom) -> Uuid:
    """A new id as Kafka makes them: version 4, none of the reserved ones, and no leading dash in its text."""
    while True:
        raw = bytearray(entropy(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        candidate = Uuid(bytes(raw))
        if candidate not in (ZERO_UUID, METADATA_TOPIC_ID) and not uuid_to_str(candidate).startswith("-"):
            return candidate


def all_folders(config: NodeConfig) -> tuple[str, ...]:
    """Every folder the node writes to: data and metadata."""
    return tuple(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))


def check_folders(paths: Sequence[str]) -> None:
    """Refuse a folder that could not be made or written, without making or writing it."""
    for path in paths:
        existing = path
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
    """What every folder says it belongs to; folders of two clusters, or of another node, are refused."""
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
        (one, first), (other, second), *_ = clusters.items()
        raise ConfigError(
            f"{first} belongs to cluster {one} but {second} to cluster {other}; use folders of one cluster"
        )
    return identities


def check_voters(config: NodeConfig, disk: Disk | None = None) -> None:
    """Refuse static voters unlike those the metadata folder was last used with.

    A voter that is started with fewer would elect itself, acknowledge records, and lose them when the others return.
    """
    folder = os.path.join(config.metadata_log_dir, METADATA_FOLDER)
    known = QuorumStateFile(folder, disk or Disk()).read_static_voters()
    configured = {voter.node_id for voter in config.voters}
    if known is None or not config.is_controller or known == configured:
        return
    raise ConfigError(
        f"{config.metadata_log_dir} was last used with the voters {_listed(known)}, but controller.quorum.voters names"
        f" {_listed(configured)}; name the same voters, or use another folder"
    )


def _listed(ids: Iterable[int]) -> str:
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
    dry_run: bool = False,
) -> FormatReport:
    """Write meta.properties into every folder that has none; `dry_run` checks everything and writes nothing.

    `voters` are the first of a quorum that may change; they go into a snapshot that the log begins with. A directory
    id of zero in this node's own entry stands for the one its metadata folder gets here.
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
    if formatted and not ignore_formatted:
        raise ConfigError(
            f"log directory {formatted[0]} is already formatted;"
            " add --ignore-formatted to leave it as it is and format the others"
        )
    fresh = [path for path in folders if identities[path] is None]
    for path in () if dry_run else fresh:
        directory_id = new_uuid()
        if path == config.metadata_log_dir and voters is not None:
            own = voters.get(config.node_id)
            if own is not None and own.key.directory_id != ZERO_UUID:
                directory_id = Uuid(own.key.directory_id)
            _write_voters(disk, path, _with_directory(voters, config.node_id, directory_id), now_ms)
        disk.makedirs(path, exist_ok=True)
        write_meta_properties(disk, path, MetaProperties(cluster_id, config.node_id, directory_id))
    return FormatReport(tuple(fresh), tuple(formatted))


def standalone_voters(config: NodeConfig) -> VoterSet:
    """This node as the only voter of a quorum that may grow."""
    listener = config.controller_listeners[0]
    told = next((each for each in config.advertised_listeners if each.name == listener.name), listener)
    host = socket.gethostname() if told.host in ("", "0.0.0.0", "::") else told.host  # noqa: S104 - compared with
    return VoterSet([RaftVoter(ReplicaKey(config.node_id), host, told.port, listener.name)])


def parse_initial_controllers(config: NodeConfig, text: str) -> VoterSet:
    """Voters as kafka-storage takes them: id@host:port:directory-id, separated by commas."""
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
        voters.append(
            RaftVoter(key, match["host"].strip("[]"), int(match["port"]), config.controller_listener_names[0])
        )
    if len({voter.id for voter in voters}) != len(voters):
        raise ConfigError("--initial-controllers names a node twice; write every id once")
    found = VoterSet(voters)
    if config.is_controller and config.node_id not in found:
        raise ConfigError(
            f"node.id={config.node_id} is not among --initial-controllers; add it, or write --no-initial-controllers"
        )
    return found


def _with_directory(voters: VoterSet, node_id: int, directory_id: bytes) -> VoterSet:
    return VoterSet(replace(v, key=ReplicaKey(v.id, directory_id)) if v.id == node_id else v for v in voters)


def _write_voters(disk: Disk, log_dir: str, voters: VoterSet, now_ms: int) -> None:
    """The snapshot before the first record: empty but for who votes."""
    folder = os.path.join(log_dir, METADATA_FOLDER)
    disk.makedirs(folder, exist_ok=True)
    SnapshotFolder(folder, disk).write(
        OffsetAndEpoch(0, 0),
        (),
        now_ms=now_ms,
        last_contained_log_timestamp=0,
        configuration=VoterConfiguration(voters, DYNAMIC),
    )


def _data_folder(path: str) -> str:
    return f"data folder {path}"
