"""kafka-metadata-quorum: the leader of the quorum, its voters and observers, and their lag."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage
from klamm.cli.kafka.script import ToolFailed, columns, connect, read_flags
from klamm.model.ids import uuid_to_str

if TYPE_CHECKING:
    from klamm.client.admin.cluster_types import QuorumDescription, QuorumReplica

FLAGS: Final = Flags(
    "kafka-metadata-quorum",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses"),
    COMMAND_CONFIG,
    Flag("status", "With describe: the quorum as a whole."),
    Flag("replication", "With describe: every member."),
    Flag("human-readable", "With --replication: times relative to now.", letter="hr"),
    Flag("controller-id", "With remove-controller: the controller.", "number", letter="i"),
    Flag("controller-directory-id", "With remove-controller: its directory.", "id", letter="d"),
    Flag("dry-run", "Only print what would be done."),
)
_USAGE = (
    "usage: kafka-metadata-quorum [-h] [--command-config COMMAND_CONFIG] (--bootstrap-server BOOTSTRAP_SERVER |"
    " --bootstrap-controller BOOTSTRAP_CONTROLLER) {describe,add-controller,remove-controller} ...\n"
    "kafka-metadata-quorum: error: "
)


def main(args: list[str]) -> int:
    """Run kafka-metadata-quorum."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    if not parsed.rest:
        raise ToolFailed(_USAGE + "too few arguments")
    if not (parsed.text("bootstrap-server") or parsed.text("bootstrap-controller")):
        raise ToolFailed(_USAGE + "one of the arguments --bootstrap-server --bootstrap-controller is required")
    if parsed.has("bootstrap-server") and parsed.has("bootstrap-controller"):
        raise ToolFailed(_USAGE + "argument --bootstrap-controller: not allowed with argument --bootstrap-server")
    command = parsed.rest[0]
    if command == "describe":
        return _describe(parsed)
    if command in ("add-controller", "remove-controller"):
        return _change(command, parsed)
    raise ToolFailed(
        f"{_USAGE}invalid choice: '{command}' (choose from 'describe', 'add-controller', 'remove-controller')"
    )


def _describe(parsed: Parsed) -> int:
    if parsed.has("status") and parsed.has("replication"):
        raise ToolFailed("Only one of --status or --replication should be specified with describe sub-command")
    if parsed.has("status") and parsed.has("human-readable"):
        raise ToolFailed("The option --human-readable is only supported along with --replication")
    if not (parsed.has("status") or parsed.has("replication")):
        raise ToolFailed("One of --status or --replication must be specified with describe sub-command")
    from klamm.cli.queries.cluster import describe_quorum

    with connect(parsed) as cluster:
        quorum = describe_quorum(cluster)
        if parsed.has("replication"):
            print(_replication(quorum, human=parsed.has("human-readable")))
        else:
            print(_status(quorum, cluster.cluster_id))
    return 0


def _replication(quorum: QuorumDescription, *, human: bool) -> str:
    leader = next(voter for voter in quorum.voters if voter.replica_id == quorum.leader_id)
    now = int(time.time() * 1000)

    def when(moment: int | None) -> str:
        if moment is None:
            return "-1"
        return f"{max(now - moment, 0)} ms ago" if human else str(moment)

    def row(replica: QuorumReplica, status: str) -> list[str]:
        return [
            str(replica.replica_id),
            uuid_to_str(replica.directory_id),
            str(replica.log_end_offset),
            str(leader.log_end_offset - replica.log_end_offset),
            when(replica.last_fetch_timestamp),
            when(replica.last_caught_up_timestamp),
            status,
        ]

    heads = ["NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"]
    rows = [row(leader, "Leader")]
    rows += [row(voter, "Follower") for voter in quorum.voters if voter.replica_id != quorum.leader_id]
    rows += [row(observer, "Observer") for observer in quorum.observers]
    return columns(heads, rows)


def _status(quorum: QuorumDescription, cluster_id: str | None) -> str:
    leader = next(voter for voter in quorum.voters if voter.replica_id == quorum.leader_id)
    followers = [voter for voter in quorum.voters if voter.replica_id != quorum.leader_id]
    behind = min(followers, key=attrgetter("log_end_offset"), default=leader)
    lag_time: object = 0
    # A follower at the end has no lag, whatever its last fetch was.
    if behind is not leader and behind.log_end_offset != leader.log_end_offset:
        caught_up = behind.last_caught_up_timestamp
        newest = leader.last_caught_up_timestamp
        lag_time = -1 if caught_up is None else max((-1 if newest is None else newest) - caught_up, 0)

    def members(nodes: Sequence[QuorumReplica]) -> str:
        entries: list[dict[str, Any]] = []
        for node in nodes:
            entry: dict[str, Any] = {"id": node.replica_id}
            # Static voters have no directory id; it is all zeros.
            if any(node.directory_id):
                entry["directoryId"] = uuid_to_str(node.directory_id)
            addresses = [f"{name}://{host}:{port}" for name, host, port in quorum.nodes.get(node.replica_id, ())]
            if addresses:
                entry["endpoints"] = addresses
            entries.append(entry)
        return "[" + ", ".join(json.dumps(entry) for entry in entries) + "]"

    lines = {
        "ClusterId": cluster_id,
        "LeaderId": quorum.leader_id,
        "LeaderEpoch": quorum.leader_epoch,
        "HighWatermark": quorum.high_watermark,
        "MaxFollowerLag": leader.log_end_offset - behind.log_end_offset,
        "MaxFollowerLagTimeMs": lag_time,
        "CurrentVoters": members(quorum.voters),
        "CurrentObservers": members(quorum.observers),
    }
    return "\n".join(f"{name + ':':<24}{value}" for name, value in lines.items())


def _change(command: str, parsed: Parsed) -> int:
    if command == "remove-controller":
        identity, directory = parsed.integer("controller-id"), parsed.get("controller-directory-id")
        if identity is None or directory is None:
            raise Usage(_USAGE + "arguments --controller-id and --controller-directory-id are required", flags=False)
        voter_directory = _directory_id(directory)
        if parsed.has("dry-run"):
            print(f"DRY RUN of removing  KRaft controller {identity} with directory id {directory}")
            return 0
        from klamm.cli.queries.cluster import remove_raft_voter

        with connect(parsed) as cluster:
            remove_raft_voter(cluster, identity, voter_directory)
        print(f"Removed KRaft controller {identity} with directory id {directory}")
        return 0
    return _add(parsed)


def _directory_id(text: str) -> bytes:
    """The id behind --controller-directory-id; ToolFailed with Kafka's sentence for what is none."""
    complaint = "Failed to parse --controller-directory-id: "
    try:
        # Kafka writes UUIDs in URL-safe base64 without padding.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise ToolFailed(f"{complaint}{text} is no base64") from None
    if len(data) != 16:
        raise ToolFailed(
            f"{complaint}Input string `{text}` decoded as {len(data)} bytes, which is not equal to the expected 16"
            " bytes of a base64-encoded UUID"
        )
    return data


def _add(parsed: Parsed) -> int:
    from klamm.cli.queries.cluster import add_raft_voter
    from klamm.server.boot.config import load_config
    from klamm.server.boot.format import read_identities

    file = parsed.get("command-config")
    if not file:
        raise ToolFailed(
            "You must supply the configuration file of the controller you are adding when using add-controller."
        )
    config = load_config(file)
    identity = read_identities(config)[config.metadata_log_dir]
    if identity is None:
        raise ToolFailed(f"Unable to read meta.properties from {config.metadata_log_dir}")
    directory = identity.directory_id
    listeners = [
        # An empty host binds all addresses, which cannot be advertised to the other voters.
        (listener.name, listener.host or "localhost", listener.port)
        for listener in config.controller_listeners
    ]
    where = ", ".join(f"{name}://{host}:{port}" for name, host, port in listeners)
    sentence = f"controller {config.node_id} with directory id {uuid_to_str(directory)} and endpoints: {where}"
    if parsed.has("dry-run"):
        print(f"DRY RUN of adding {sentence}")
        return 0
    with connect(parsed) as cluster:
        # The cluster id of the formatted directory: the active controller refuses one of another cluster.
        add_raft_voter(cluster, config.node_id, directory, listeners, identity.cluster_id)
    print(f"Added {sentence}")
    return 0
