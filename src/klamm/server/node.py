"""The composition root: opens what is on disk, joins the quorum, registers the broker, serves, and stops in order.

Sockets are bound first and read last: a taken port is known before anything is touched, and no client is let in before
the node can answer it.
"""

import asyncio
import signal
from collections.abc import Callable

from klamm.controller import CatalogValidator, Controller, ControllerConfig
from klamm.metadata.image import Endpoint, FeatureRange
from klamm.metadata.publisher import MetadataLoader
from klamm.model.errors import ConfigError
from klamm.model.ids import ZERO_UUID, TopicPartition, Uuid, uuid_to_str
from klamm.net import NetConfig, NetServer, TurnLoop
from klamm.raft import RaftConfig, RaftDriver
from klamm.replication import FetchSessions, ReplicaManager
from klamm.server.config import NodeConfig
from klamm.server.context import ListenerContext
from klamm.server.controller_runtime import ControllerRuntime
from klamm.server.coordinators import Coordinators
from klamm.server.lifecycle import BrokerLifecycle
from klamm.server.producer_ids import ProducerIds
from klamm.server.publishers import BrokerPublisher
from klamm.server.router import Router
from klamm.server.routes import routes
from klamm.server.services import Services
from klamm.server.snapshots import Snapshotter
from klamm.server.topic_settings import TopicSettingsResolver
from klamm.server.world import World
from klamm.storage import CleanerConfig, LogManager, StorageConfig
from klamm.storage.properties import read_meta_properties
from klamm.telemetry.log import get_logger

log = get_logger("node")

HOUSEKEEPING_SECONDS = 1.0
FAREWELL_SECONDS = 0.5
"""How long a stopping node lets its clients read the replies they were sent."""
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
TOLERATED_FEATURES = {
    "group.version": FeatureRange(0, 1),
    "kraft.version": FeatureRange(0, 1),
    "share.version": FeatureRange(0, 1),
    "streams.version": FeatureRange(0, 1),
    "transaction.version": FeatureRange(0, 2),
}
"""Levels a folder written by Apache Kafka may have finalized. They do not stop this broker from joining, but clients
are told only of features it serves."""
_IGNORED_IN_EMPTY = frozenset({".lock", "lost+found"})


class Node:
    """One process of a cluster: broker, controller, or both."""

    def __init__(self, config: NodeConfig, world: World | None = None) -> None:
        self.config = config
        self.world = world or World()
        self.clock = self.world.clock
        self.random = self.world.random
        self.addresses: dict[str, tuple[str, int]] = {}
        self.failure: BaseException | None = None
        self.stopping = asyncio.Event()
        self._housekeeper: asyncio.Task[None] | None = None
        self.services: Services
        self._net: NetServer
        self._router: Router
        self._logs: LogManager
        self._raft: RaftDriver
        self._snapshotter: Snapshotter
        self._publisher: BrokerPublisher
        self._lifecycle: BrokerLifecycle

    # Starting

    async def start(self) -> None:
        """Serve; ConfigError means that nothing was touched."""
        _refuse_several(self.config)
        loop = asyncio.get_running_loop()
        self._net = NetServer(loop, _net_config(self.config), self.world.sockets)
        try:
            for listener in self.config.listeners:
                host = listener.host or "0.0.0.0"  # noqa: S104 - an empty host is how Kafka writes every interface
                self.addresses[listener.name] = self._net.bind(listener.name, host, listener.port)
            await self._open_logs(loop)
            await self._join_quorum(loop)
            await self._join_cluster()
        except BaseException:
            self._net.stop()
            raise
        kinds = dict.fromkeys(self.config.controller_listener_names, "controller")
        contexts = {
            name: ListenerContext(name, kinds.get(name, "broker"), routes(kinds.get(name, "broker")))
            for name in self.addresses
        }
        self._net.start(self._router, contexts)
        self._housekeeper = loop.create_task(self._keep_house(), name="housekeeping")

    async def _open_logs(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        dirs = tuple(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))
        cluster_id = _identify(self.world, dirs, may_format=len(config.voters) == 1 and config.is_controller)
        self._logs = LogManager(
            StorageConfig(
                log_dirs=dirs,
                recovery_threads_per_dir=config.integer("num.recovery.threads.per.data.dir"),
                checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
                producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
                retention_check_interval_ms=config.integer("log.retention.check.interval.ms"),
                cleaner=_cleaner_config(config),
                vital_dirs=(config.metadata_log_dir,),
                metadata_only_dirs=tuple({config.metadata_log_dir} - set(config.log_dirs)),
            ),
            clock=self.clock,
            disk=self.world.disk,
            threads=self.world.threads,
            new_uuid=self.world.new_uuid,
        )
        self._logs.group_sync.call_on_loop = loop.call_soon_threadsafe
        self._logs.cleaner.wake = lambda: loop.call_soon_threadsafe(self._logs.cleaner.step)
        self._logs.on_failure = lambda _, failure: self._fail(failure)
        await loop.run_in_executor(None, lambda: self._logs.start(cluster_id, config.node_id, format_empty=True))

    async def _join_quorum(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        loader = MetadataLoader()
        self._snapshotter = Snapshotter(
            loader,
            self.clock,
            bytes_max=config.integer("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=config.integer("metadata.log.max.snapshot.interval.ms"),
        )
        self._raft = RaftDriver(
            RaftConfig(
                node_id=config.node_id,
                voters={v.node_id: (v.host, v.port, ZERO_UUID) for v in config.voters},
                log_dir=config.metadata_log_dir,
                cluster_id=self._logs.cluster_id or "",
                directory_id=self._logs.directory_ids[config.metadata_log_dir],
                election_timeout_ms=config.integer("controller.quorum.election.timeout.ms"),
                fetch_timeout_ms=config.integer("controller.quorum.fetch.timeout.ms"),
                request_timeout_ms=config.integer("controller.quorum.request.timeout.ms"),
                segment_bytes=config.integer("metadata.log.segment.bytes"),
                controller_listener=config.controller_listener_names[0],
            ),
            self.clock,
            self.random,
            self._snapshotter,
            on_fatal=self._fail,
            disk=self.world.disk,
            threads=self.world.threads,
        )
        await self._raft.start()
        controller_config = ControllerConfig(
            node_id=config.node_id,
            cluster_id=self._logs.cluster_id or "",
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            delete_topic_enable=config.delete_topic_enable,
            broker_session_timeout_ms=config.integer("broker.session.timeout.ms"),
        )
        validator = CatalogValidator(config.static)
        runtime = ControllerRuntime(
            lambda: Controller(controller_config, validator, self.random), self._raft, loader, self.clock
        )
        await runtime.start()
        replicas = ReplicaManager(config.node_id, self._logs, self.clock)
        replicas.schedule_commit = self._net.turn.schedule
        self._net.turn.on_commit(replicas.commit, self._fail)
        self.services = Services(
            loop=loop,
            node_id=config.node_id,
            cluster_id=self._logs.cluster_id or "",
            config=config,
            clock=self.clock,
            random=self.random,
            logs=self._logs,
            replicas=replicas,
            sessions=FetchSessions(config.fetch_session_slots, self.random),
            metadata=loader,
            raft=self._raft,
            controller=runtime,
            producer_ids=ProducerIds(config.node_id, runtime),
            supported_features=controller_config.supported_features,
            controller_address=self.addresses[config.controller_listener_names[0]],
            new_uuid=self.world.new_uuid,
        )
        self.services.coordinators = Coordinators(self.services)
        self._router = Router(self.services)

    async def _join_cluster(self) -> None:
        services, config = self.services, self.config
        self._lifecycle = BrokerLifecycle(
            config.node_id,
            services.cluster_id,
            self.world.new_uuid().bytes,
            services.controller,
            services.metadata,
            heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
        )
        services.producer_ids.broker_epoch = await self._lifecycle.register(
            self._endpoints(),
            {**TOLERATED_FEATURES, **services.supported_features},
            config.rack,
            [self._logs.directory_ids[path] for path in config.log_dirs],
            self._logs.previous_broker_epoch,
        )
        self._set_strays_aside()
        self._publisher = BrokerPublisher(
            config.node_id, services.replicas, TopicSettingsResolver(config.node_id, config.static)
        )
        self._publisher.followers.append(services.coordinators.on_metadata)
        self._publisher.start()
        services.metadata.add_publisher(self._publisher)
        services.controller.applied = self._publisher.wait_for
        await self._lifecycle.become_ready()
        await self._publisher.wait_for(services.image.provenance.offset)

    def _endpoints(self) -> dict[str, Endpoint]:
        advertised = {listener.name: listener for listener in self.config.advertised_listeners}
        endpoints = {}
        for listener in self.config.broker_listeners:
            told = advertised.get(listener.name)
            host, port = (told.host, told.port) if told else self.addresses[listener.name]
            endpoints[listener.name] = Endpoint(host, port, SECURITY_PROTOCOLS[listener.security_protocol])
        return endpoints

    def _set_strays_aside(self) -> None:
        """Folders of partitions the metadata does not know are kept, out of the way, for a person to look at."""
        known = {
            TopicPartition(topic.name, index): topic.id
            for topic, index, partition in self.services.image.topics.partitions()
            if self.config.node_id in partition.replicas
        }
        for stray in self._logs.strays(known):
            log.warning("the metadata does not know a partition that lies here; it is set aside", partition=stray.name)
            self._logs.set_aside(stray)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            self._logs.tick()
            self._snapshotter.maybe_write(self._raft)

    def _fail(self, error: BaseException) -> None:
        """The metadata log cannot be trusted any more: stop, so that nothing is acknowledged on top of it."""
        if self.failure is None:
            self.failure = error
            log.error("the node stops", reason=error)
        self.stopping.set()

    # Stopping

    async def stop(self) -> None:
        """Answer what is under way, close the logs cleanly."""
        self._net.stop_listening()
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        await self._router.drain()
        self.services.coordinators.stop()
        await self._lifecycle.stop()
        await self.services.controller.stop()
        await self._publisher.stop()
        self.services.replicas.commit()
        await self._net.leave(FAREWELL_SECONDS)
        self._net.stop()
        await self._raft.stop()
        clean = self.failure is None
        epoch = self._lifecycle.broker_epoch
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: self._logs.close(clean=clean, broker_epoch=epoch)
        )


def _net_config(config: NodeConfig) -> NetConfig:
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


def _refuse_several(config: NodeConfig) -> None:
    """Nodes do not talk to each other yet: a node that would wait for others says so instead."""
    if not (config.is_broker and config.is_controller) or [v.node_id for v in config.voters] != [config.node_id]:
        raise ConfigError(
            "this version of Klamm runs clusters of one node: write process.roles=broker,controller and name this node"
            f" alone in controller.quorum.voters ({config.node_id}@host:port)"
        )


def _identify(world: World, dirs: tuple[str, ...], *, may_format: bool) -> str:
    """The cluster the folders belong to; empty folders of a node that is its own quorum get a new one."""
    disk = world.disk
    found = {path: read_meta_properties(disk, path) for path in dirs}
    known = sorted({meta.cluster_id for meta in found.values() if meta is not None})
    if len(known) > 1:
        raise ConfigError(f"the data folders belong to different clusters: {', '.join(known)}")
    for path, meta in found.items():
        if meta is not None:
            continue
        content = set(disk.listdir(path)) - _IGNORED_IN_EMPTY if disk.isdir(path) else set()
        if content or not may_format:
            raise ConfigError(
                f"the data folder {path} is not formatted: run `klamm storage format -t CLUSTER_ID -c FILE` first"
                + (f" or choose an empty folder (it holds {min(content)})" if content else "")
            )
    return known[0] if known else uuid_to_str(Uuid(world.new_uuid().bytes))


def run_node(config: NodeConfig, *, on_ready: Callable[[str], None]) -> int:
    """Run a node until it is told to stop; `on_ready` hears its address once it serves. Returns the exit code."""
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(_run(config, on_ready))


async def _run(config: NodeConfig, on_ready: Callable[[str], None]) -> int:
    node = Node(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.stopping.set)
    for sentence in config.warnings:
        log.warning(sentence)
    if config.ignored:
        log.info("settings without meaning here were accepted", settings=",".join(config.ignored))
    await node.start()
    host, port = node.addresses[config.broker_listeners[0].name]
    on_ready(f"{host}:{port}")
    await node.stopping.wait()
    await node.stop()
    return 1 if node.failure is not None else 0
