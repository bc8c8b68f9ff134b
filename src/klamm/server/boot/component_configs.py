"""The configurations of a node's parts, derived from the configuration of the node."""

import contextlib
import socket
from dataclasses import replace
from typing import Final

from klamm.controller import ControllerConfig
from klamm.metadata.image import FeatureRange
from klamm.model.errors import ConfigError
from klamm.model.ids import ZERO_UUID, Uuid, uuid_to_str
from klamm.net import NetConfig
from klamm.raft import RaftConfig
from klamm.replication.settings import ReplicationConfig
from klamm.security.core.delegation_tokens import TokenSettings
from klamm.security.core.quota_windows import WindowConfig
from klamm.security.core.secret import Secret
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.environment import Environment
from klamm.server.boot.format import IGNORED_IN_EMPTY
from klamm.server.controller.raft_transport import bootstrap_ids
from klamm.server.settings.connection_limits import read_connection_limits, resolve_overrides
from klamm.storage import CleanerConfig, StorageConfig
from klamm.storage.config import MAX_LONG
from klamm.storage.meta_properties import MetaProperties, read_meta_properties

SECURITY_PROTOCOL_IDS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
TOLERATED_FEATURES: Final = {
    "group.version": FeatureRange(0, 1),
    "kraft.version": FeatureRange(0, 1),
    "share.version": FeatureRange(0, 1),
    "streams.version": FeatureRange(0, 1),
    "transaction.version": FeatureRange(0, 2),
}
"""Levels that a cluster formed by Apache Kafka may have finalized. They do not keep this broker from joining, but
ApiVersions lists only the features it serves."""
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


def net_config(config: NodeConfig) -> NetConfig:
    """Return the limits of sockets and connections."""
    names = [listener.name for listener in config.listeners]
    limits = read_connection_limits(config.values, names)
    # Here, not when the limits are read: a name server may block, and the node does not serve yet.
    limits = replace(limits, per_ip_overrides=resolve_overrides(limits.per_ip_overrides))
    configured = config.static
    return NetConfig(
        request_bytes_max=config.integer("socket.request.max.bytes"),
        # Kafka's default buffers are small: unless a size is configured, the kernel's own tuning does better.
        send_buffer_bytes=config.integer("socket.send.buffer.bytes")
        if "socket.send.buffer.bytes" in configured
        else -1,
        receive_buffer_bytes=(
            config.integer("socket.receive.buffer.bytes") if "socket.receive.buffer.bytes" in configured else -1
        ),
        listen_backlog_size=config.integer("socket.listen.backlog.size"),
        connections_max_idle_ms=config.integer("connections.max.idle.ms"),
        queued_request_bytes_max=config.integer("queued.max.request.bytes"),
        limits=limits,
        rate_window=client_quota_window(config),
        protected_listener=config.inter_broker_listener_name,
        separate_listeners=frozenset(config.controller_listener_names),
    )


def storage_config(config: NodeConfig) -> StorageConfig:
    """Return the log directories and how they are maintained; a node without a broker has only the metadata's."""
    return StorageConfig(
        # The metadata folder is opened by the log manager too: it holds the lock and the identity of the folder.
        log_dirs=data_folders(config),
        recovery_threads_per_dir=config.integer("num.recovery.threads.per.data.dir"),
        checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
        cleaner=_cleaner_config(config),
        # As in Kafka, the failure of any other folder does not stop the node.
        vital_dirs=(config.metadata_log_dir,),
        metadata_only_dirs=tuple({config.metadata_log_dir} - set(config.log_dirs)),
    )


def data_folders(config: NodeConfig) -> tuple[str, ...]:
    """Return all log directories that this node opens."""
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
    """Return the identity, voters and timeouts of this member of the quorum."""
    return RaftConfig(
        node_id=config.node_id,
        # Directory ids of static voters are unknown until each introduces itself to the leader (KIP-853).
        voters={voter.node_id: (voter.host, voter.port, ZERO_UUID) for voter in config.voters},
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
    """Return the replica.* configs."""
    buffer = "replica.socket.receive.buffer.bytes"
    return ReplicationConfig(
        lag_time_max_ms=config.integer("replica.lag.time.max.ms"),
        fetch_max_bytes=config.integer("replica.fetch.max.bytes"),
        fetch_wait_max_ms=config.integer("replica.fetch.wait.max.ms"),
        fetch_min_bytes=config.integer("replica.fetch.min.bytes"),
        fetch_response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
        fetch_backoff_ms=config.integer("replica.fetch.backoff.ms"),
        socket_timeout_ms=config.integer("replica.socket.timeout.ms"),
        # As for clients' sockets: only a configured size replaces the kernel's own tuning.
        socket_receive_buffer_bytes=config.integer(buffer) if buffer in config.static else -1,
        fetchers=config.integer("num.replica.fetchers"),
        checkpoint_interval_ms=config.integer("replica.high.watermark.checkpoint.interval.ms"),
        leader_throttled_rate=min(config.integer("leader.replication.throttled.rate"), MAX_LONG),
        follower_throttled_rate=min(config.integer("follower.replication.throttled.rate"), MAX_LONG),
    )


def quorum_endpoint(config: NodeConfig, addresses: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Return the address of this member for others: as advertised, as in the list of voters, or as bound."""
    name = config.controller_listener_names[0]
    if name not in addresses:
        return None
    advertised = next((listener for listener in config.advertised_listeners if listener.name == name), None)
    if advertised is not None:
        return advertised.host, advertised.port
    host, port = addresses[name]
    own = next((voter for voter in config.voters if voter.node_id == config.node_id), None)
    if own is not None:
        # Port 0 in controller.quorum.voters stands for the bound one; `klamm up` writes it for a node alone.
        return own.host, own.port or port
    # Other machines cannot connect to a wildcard address; Kafka, too, advertises the host name instead.
    return (socket.gethostname() if host in _WILDCARDS else host), port


def bootstrap_addresses(config: NodeConfig) -> list[tuple[str, int]]:
    """Return the hosts and ports of controller.quorum.bootstrap.servers."""
    addresses = []
    for text in config.bootstrap_servers:
        host, _, port = text.rpartition(":")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def controller_config(config: NodeConfig, cluster_id: str) -> ControllerConfig:
    """Return the configs that the controller decides by."""
    return ControllerConfig(
        node_id=config.node_id,
        cluster_id=cluster_id,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        delete_topic_enable=config.delete_topic_enable,
        broker_session_timeout_ms=config.integer("broker.session.timeout.ms"),
        tokens=token_settings(config),
        mutation_window=WindowConfig(
            config.integer("controller.quota.window.num"),
            config.integer("controller.quota.window.size.seconds") * 1000,
        ),
    )


def client_quota_window(config: NodeConfig) -> WindowConfig:
    """Return the window of client quotas."""
    return WindowConfig(config.integer("quota.window.num"), config.integer("quota.window.size.seconds") * 1000)


def token_settings(config: NodeConfig) -> TokenSettings:
    """Return the configs of delegation tokens."""
    key = config.text("delegation.token.secret.key")
    return TokenSettings(
        Secret(key) if key else None,
        config.integer("delegation.token.max.lifetime.ms"),
        config.integer("delegation.token.expiry.time.ms"),
    )


def find_cluster_id(environment: Environment, config: NodeConfig) -> str:
    """Return the id of the cluster the folders belong to; a new one for empty folders of a single-node quorum."""
    disk = environment.disk
    # Only a quorum of one may make up a cluster id: nodes of a larger one have to agree on it (`klamm storage format`).
    may_format = config.is_controller and [voter.node_id for voter in config.voters] == [config.node_id]
    identities: dict[str, MetaProperties | None] = {}
    for path in data_folders(config):
        # An unreadable folder is left to the log manager, which takes it offline if the node can do without it.
        with contextlib.suppress(OSError):
            identities[path] = read_meta_properties(disk, path)
    known = sorted({meta.cluster_id for meta in identities.values() if meta is not None})
    if len(known) > 1:
        raise ConfigError(f"the data folders belong to different clusters: {', '.join(known)}")
    for path, meta in identities.items():
        if meta is not None:
            continue
        content = set(disk.listdir(path)) - IGNORED_IN_EMPTY if disk.isdir(path) else set()
        if content or not may_format:
            raise ConfigError(
                f"the data folder {path} is not formatted: run `klamm storage format -t CLUSTER_ID -c FILE` first"
                + (f" or choose an empty folder (it holds {min(content)})" if content else "")
            )
    return known[0] if known else uuid_to_str(Uuid(environment.new_uuid().bytes))
