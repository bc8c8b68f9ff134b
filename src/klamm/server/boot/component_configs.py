"""From a node's configuration to the small configurations of its rooms; nothing is decided here.

The node (`node.py`) owns the order of things; what each room is told is written here.
"""

import contextlib
import socket
from typing import Final

from klamm.controller import ControllerConfig
from klamm.metadata.image import FeatureRange
from klamm.model.errors import ConfigError
from klamm.model.ids import ZERO_UUID, Uuid, uuid_to_str
from klamm.net import NetConfig
from klamm.raft import RaftConfig
from klamm.replication.settings import ReplicationConfig
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.environment import Environment
from klamm.server.boot.format import IGNORED_IN_EMPTY
from klamm.server.controller.raft_transport import bootstrap_ids
from klamm.storage import CleanerConfig, StorageConfig
from klamm.storage.config import MAX_LONG
from klamm.storage.meta_properties import MetaProperties, read_meta_properties

SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
TOLERATED_FEATURES: Final = {
    "group.version": FeatureRange(0, 1),
    "kraft.version": FeatureRange(0, 1),
    "share.version": FeatureRange(0, 1),
    "streams.version": FeatureRange(0, 1),
    "transaction.version": FeatureRange(0, 2),
}
"""Levels a folder written by Apache Kafka may have finalized. They do not stop this broker from joining, but clients
are told only of features it serves."""
_ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


def net_config(config: NodeConfig) -> NetConfig:
    """What the sockets are allowed."""
    overrides = {}
    for entry in (config.text("max.connections.per.ip.overrides") or "").split(","):
        address, _, limit = entry.strip().rpartition(":")
        if address:
            overrides[address] = int(limit)
    written = config.static
    return NetConfig(
        request_bytes_max=config.integer("socket.request.max.bytes"),
        # Kafka's default buffers are small; unless somebody chose a size, the kernel's own tuning does better.
        send_buffer_bytes=config.integer("socket.send.buffer.bytes") if "socket.send.buffer.bytes" in written else -1,
        receive_buffer_bytes=(
            config.integer("socket.receive.buffer.bytes") if "socket.receive.buffer.bytes" in written else -1
        ),
        listen_backlog_size=config.integer("socket.listen.backlog.size"),
        connections_max_idle_ms=config.integer("connections.max.idle.ms"),
        max_connections=config.integer("max.connections"),
        max_connections_per_ip=config.integer("max.connections.per.ip"),
        max_connections_per_ip_overrides=overrides,
    )


def storage_config(config: NodeConfig) -> StorageConfig:
    """Which folders hold logs, and how they are kept; a controller without a broker keeps metadata only."""
    return StorageConfig(
        log_dirs=data_folders(config),
        recovery_threads_per_dir=config.integer("num.recovery.threads.per.data.dir"),
        checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        cleaner=_cleaner_config(config),
        vital_dirs=(config.metadata_log_dir,),
        metadata_only_dirs=tuple({config.metadata_log_dir} - set(config.log_dirs)),
    )


def data_folders(config: NodeConfig) -> tuple[str, ...]:
    """Every folder this node opens."""
    partitions = config.log_dirs if config.is_broker else ()
    return tuple(dict.fromkeys((*partitions, config.metadata_log_dir)))


def _cleaner_config(config: NodeConfig) -> CleanerConfig:
    return CleanerConfig(
        enabled=config.flag("log.cleaner.enable"),
        threads=config.integer("log.cleaner.threads"),
        dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
        load_factor=float(str(config.value("log.cleaner.io.buffer.load.factor"))),
        io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
        bytes_per_second=float(str(config.value("log.cleaner.io.max.bytes.per.second"))),
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
    )


def raft_config(config: NodeConfig, cluster_id: str, directory_id: bytes) -> RaftConfig:
    """Who this member of the quorum is, who votes, how patient it is."""
    return RaftConfig(
        node_id=config.node_id,
        voters={v.node_id: (v.host, v.port, ZERO_UUID) for v in config.voters},
        log_dir=config.metadata_log_dir,
        cluster_id=cluster_id,
        directory_id=directory_id,
        election_timeout_ms=config.integer("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.integer("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=config.integer("controller.quorum.fetch.timeout.ms"),
        request_timeout_ms=config.integer("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.integer("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=config.integer("controller.quorum.fetch.max.bytes"),
        snapshot_max_bytes=config.integer("controller.quorum.fetch.snapshot.max.bytes"),
        segment_bytes=config.integer("metadata.log.segment.bytes"),
        controller_listener=config.controller_listener_names[0],
        bootstrap=bootstrap_ids(len(config.bootstrap_servers)),
    )


def replication_config(config: NodeConfig) -> ReplicationConfig:
    """Kafka's replica.* settings."""
    written = config.static
    buffer = "replica.socket.receive.buffer.bytes"
    return ReplicationConfig(
        lag_time_max_ms=config.integer("replica.lag.time.max.ms"),
        fetch_max_bytes=config.integer("replica.fetch.max.bytes"),
        fetch_wait_max_ms=config.integer("replica.fetch.wait.max.ms"),
        fetch_min_bytes=config.integer("replica.fetch.min.bytes"),
        fetch_response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
        fetch_backoff_ms=config.integer("replica.fetch.backoff.ms"),
        socket_timeout_ms=config.integer("replica.socket.timeout.ms"),
        socket_receive_buffer_bytes=config.integer(buffer) if buffer in written else -1,
        fetchers=config.integer("num.replica.fetchers"),
        checkpoint_interval_ms=config.integer("replica.high.watermark.checkpoint.interval.ms"),
        leader_throttled_rate=min(config.integer("leader.replication.throttled.rate"), MAX_LONG),
        follower_throttled_rate=min(config.integer("follower.replication.throttled.rate"), MAX_LONG),
    )


def quorum_endpoint(config: NodeConfig, addresses: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Where other members reach this one: as advertised, as the voters are written, or as bound."""
    name = config.controller_listener_names[0]
    if name not in addresses:
        return None
    told = next((each for each in config.advertised_listeners if each.name == name), None)
    if told is not None:
        return told.host, told.port
    host, port = addresses[name]
    written = next((voter for voter in config.voters if voter.node_id == config.node_id), None)
    if written is not None:
        return written.host, written.port or port
    return (socket.gethostname() if host in _ANYWHERE else host), port


def bootstrap_addresses(config: NodeConfig) -> list[tuple[str, int]]:
    """controller.quorum.bootstrap.servers as hosts and ports."""
    found = []
    for text in config.bootstrap_servers:
        host, _, port = text.rpartition(":")
        found.append((host.strip("[]"), int(port)))
    return found


def controller_config(config: NodeConfig, cluster_id: str) -> ControllerConfig:
    """What the controller decides by."""
    return ControllerConfig(
        node_id=config.node_id,
        cluster_id=cluster_id,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        delete_topic_enable=config.delete_topic_enable,
        broker_session_timeout_ms=config.integer("broker.session.timeout.ms"),
    )


def identify(environment: Environment, config: NodeConfig) -> str:
    """The cluster the folders belong to; empty folders of a node that is its own quorum get a new one."""
    disk = environment.disk
    may_format = config.is_controller and [voter.node_id for voter in config.voters] == [config.node_id]
    found: dict[str, MetaProperties | None] = {}
    for path in data_folders(config):
        # A folder the disk refuses is for the storage to judge: it fails alone if the node can do without it.
        with contextlib.suppress(OSError):
            found[path] = read_meta_properties(disk, path)
    known = sorted({meta.cluster_id for meta in found.values() if meta is not None})
    if len(known) > 1:
        raise ConfigError(f"the data folders belong to different clusters: {', '.join(known)}")
    for path, meta in found.items():
        if meta is not None:
            continue
        content = set(disk.listdir(path)) - IGNORED_IN_EMPTY if disk.isdir(path) else set()
        if content or not may_format:
            raise ConfigError(
                f"the data folder {path} is not formatted: run `klamm storage format -t CLUSTER_ID -c FILE` first"
                + (f" or choose an empty folder (it holds {min(content)})" if content else "")
            )
    return known[0] if known else uuid_to_str(Uuid(environment.new_uuid().bytes))
