"""The composition root: opens what is on disk, joins the quorum, registers the broker, serves, and stops in order.

Sockets are bound first: a taken port is known before anything is touched. The controller listener is served as soon as
this member of the quorum runs, because the others need its vote; no client is let in before the node can answer it.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from enum import Enum, auto

from klamm.controller import CatalogValidator, Controller
from klamm.metadata.image import Endpoint
from klamm.metadata.loader import MetadataLoader
from klamm.model.ids import TopicPartition
from klamm.net import NetServer, TurnLoop
from klamm.raft import RaftDriver
from klamm.replication import FetchSessions, ReplicaManager
from klamm.server.boot.component_configs import (
    SECURITY_PROTOCOLS,
    TOLERATED_FEATURES,
    bootstrap_addresses,
    controller_config,
    identify,
    net_config,
    quorum_endpoint,
    raft_config,
    storage_config,
)
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.descriptors import raise_limit
from klamm.server.boot.environment import World
from klamm.server.cluster.directory_reports import DirectoryReports
from klamm.server.cluster.lifecycle import BrokerLifecycle
from klamm.server.cluster.listed_brokers import AddressBook
from klamm.server.cluster.move_service import Moves
from klamm.server.cluster.publishers import BrokerPublisher
from klamm.server.cluster.replication_service import Replication, replication_config
from klamm.server.controller.link import ControllerLink
from klamm.server.controller.quorum_membership import QuorumMembership
from klamm.server.controller.raft_transport import RaftTransport
from klamm.server.controller.runtime import ControllerRuntime, Duties
from klamm.server.controller.snapshots import Snapshotter
from klamm.server.coordinators.local_coordinators import Coordinators
from klamm.server.coordinators.producer_ids import ProducerIds
from klamm.server.requests.context import ListenerContext
from klamm.server.requests.record_checks import RecordChecks
from klamm.server.requests.router import Router
from klamm.server.requests.routes import routes
from klamm.server.services import Services
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.server.settings.topic_settings import TopicSettingsResolver
from klamm.storage import LogManager
from klamm.telemetry.log import get_logger

log = get_logger("node")

HOUSEKEEPING_SECONDS = 1.0
HURRY_SECONDS = 0.02
"""Between two pieces of housekeeping that does not fit into one."""
SWITCH_SECONDS = 0.0005
FAREWELL_SECONDS = 0.5
"""How long a stopping node lets its clients read the replies they were sent."""
WAIT_REPORT_SECONDS = 5.0
"""How often a node that waits for its quorum says so."""


class _Stage(Enum):
    """How far a start has come, which is what a stop has to undo."""

    NOTHING = auto()
    BOUND = auto()
    OPEN = auto()
    JOINING = auto()


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
        self._stage = _Stage.NOTHING
        self.services: Services
        self._net: NetServer
        self.router: Router
        self._logs: LogManager
        self._raft: RaftDriver
        self._transport: RaftTransport
        self._membership: QuorumMembership
        self._snapshotter: Snapshotter
        self._publisher: BrokerPublisher
        self._lifecycle: BrokerLifecycle
        self._controllers: ControllerLink
        self._replication: Replication
        self._moves: Moves
        self._directories: DirectoryReports

    # Starting

    async def start(self) -> None:
        """Serve; ConfigError means that nothing was touched."""
        loop = asyncio.get_running_loop()
        self._net = NetServer(loop, net_config(self.config), self.world.sockets)
        try:
            for listener in self.config.listeners:
                host = listener.host or "0.0.0.0"  # noqa: S104 - an empty host is how Kafka writes every interface
                self.addresses[listener.name] = self._net.bind(listener.name, host, listener.port)
            self._stage = _Stage.BOUND
            await self._open_logs(loop)
            self._stage = _Stage.OPEN
            self._compose(loop)
            await self._join_quorum()
            if self.config.is_broker:
                await self._join_cluster()
        except asyncio.CancelledError:
            raise  # whoever cancels stops the node
        except BaseException:
            self._net.stop()
            raise
        self._serve(broker=True)
        self._housekeeper = loop.create_task(self._keep_house(), name="housekeeping")

    def _serve(self, *, broker: bool) -> None:
        """Let connections of one kind of listener in."""
        kind = "broker" if broker else "controller"
        names = [name for name in self.addresses if (name in self.config.controller_listener_names) is not broker]
        table = routes(kind)
        self._net.start(self.router, {name: ListenerContext(name, kind, table) for name in names})

    async def _open_logs(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        cluster_id = identify(self.world, config)
        self._logs = LogManager(
            storage_config(config),
            clock=self.clock,
            disk=self.world.disk,
            threads=self.world.threads,
            new_uuid=self.world.new_uuid,
        )
        self._logs.group_sync.call_on_loop = loop.call_soon_threadsafe
        self._logs.cleaner.wake = lambda: loop.call_soon_threadsafe(self._logs.cleaner.step)
        self._logs.on_failure = lambda _, failure: self._fail(failure)
        await loop.run_in_executor(None, lambda: self._logs.start(cluster_id, config.node_id, format_empty=True))

    def _compose(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the parts and tie them together; none of them runs yet."""
        config = self.config
        cluster_id = self._logs.cluster_id or ""
        loader = MetadataLoader()
        self._snapshotter = Snapshotter(
            loader,
            self.clock,
            bytes_max=config.integer("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=config.integer("metadata.log.max.snapshot.interval.ms"),
        )
        self._transport = RaftTransport(
            loop,
            config.node_id,
            cluster_id,
            listener=config.controller_listener_names[0],
            endpoint=quorum_endpoint(config, self.addresses),
            bootstrap=bootstrap_addresses(config),
            request_timeout_ms=config.integer("controller.quorum.request.timeout.ms"),
        )
        self._raft = self._transport.driver = RaftDriver(
            raft_config(config, cluster_id, self._logs.directory_ids[config.metadata_log_dir]),
            self.clock,
            self.random,
            self._snapshotter,
            self._transport,
            on_fatal=self._fail,
            disk=self.world.disk,
            threads=self.world.threads,
        )
        self._membership = QuorumMembership(
            loop,
            self._raft,
            self._transport,
            cluster_id=cluster_id,
            endpoint=quorum_endpoint(config, self.addresses),
            auto_join=config.flag("controller.quorum.auto.join.enable"),
        )
        decides_by = controller_config(config, cluster_id)
        validator = CatalogValidator(config.static)
        runtime = ControllerRuntime(
            lambda: Controller(decides_by, validator, self.random),
            self._raft,
            loader,
            self.clock,
            Duties(
                config.flag("auto.leader.rebalance.enable"),
                config.integer("leader.imbalance.check.interval.seconds") * 1000,
                config.integer("unclean.leader.election.interval.ms"),
            ),
        )
        runtime.raise_kraft_version = lambda level, timeout_ms, validate_only: self._membership.raise_kraft_version(
            level, timeout_ms, validate_only=validate_only
        )
        self._controllers = ControllerLink(loop, self._raft, runtime, self._transport)
        self._snapshotter.leader_watchers.append(self._controllers.on_leader_change)
        replicas = ReplicaManager(config.node_id, self._logs, self.clock, replication_config(config))
        replicas.schedule_commit = self._net.turn.schedule
        self._net.turn.on_commit(replicas.commit, self._fail)
        addresses = AddressBook(self.clock, config.integer("broker.session.timeout.ms"))
        loader.add_publisher(addresses)
        self.services = Services(
            loop=loop,
            node_id=config.node_id,
            cluster_id=cluster_id,
            config=config,
            settings=BrokerSettings(config.node_id, config.static),
            clock=self.clock,
            random=self.random,
            logs=self._logs,
            replicas=replicas,
            sessions=FetchSessions(config.fetch_session_slots, self.random),
            metadata=loader,
            addresses=addresses,
            raft=self._raft,
            quorum=self._transport,
            membership=self._membership,
            controllers=self._controllers,
            producer_ids=ProducerIds(config.node_id, self._controllers.isr),
            supported_features=decides_by.supported_features,
            controller_address=self.addresses.get(config.controller_listener_names[0]),
            new_uuid=self.world.new_uuid,
        )
        self.services.coordinators = Coordinators(self.services)
        self.services.checks = RecordChecks(loop, self.world.threads)
        self.router = Router(self.services)

    async def _join_quorum(self) -> None:
        """Take part in the quorum; returns once it has a leader, however long that takes."""
        self._stage = _Stage.JOINING
        await self._raft.start()
        self._serve(broker=False)
        if self.config.is_controller:
            await self._controllers.runtime.start()
            self._membership.start()
            self._controllers.register_controller(
                self.config.node_id,
                self.world.new_uuid().bytes,
                self._controller_endpoints(),
                {**TOLERATED_FEATURES, **self.services.supported_features},
            )
        waited = False
        while True:
            try:
                async with asyncio.timeout(WAIT_REPORT_SECONDS if waited else 1.0):
                    await self._raft.wait_for_leader()
                    return
            except TimeoutError:
                waited = True
                log.info("waiting for the metadata quorum to have a leader", **self._transport.reachable())

    async def _join_cluster(self) -> None:
        services, config = self.services, self.config
        self._lifecycle = BrokerLifecycle(
            config.node_id,
            services.cluster_id,
            self.world.new_uuid().bytes,
            services.controllers.heartbeat,
            services.metadata,
            heartbeat_interval_ms=config.integer("broker.heartbeat.interval.ms"),
            session_timeout_ms=config.integer("broker.session.timeout.ms"),
            registration_timeout_ms=config.integer("initial.broker.registration.timeout.ms"),
        )
        self._snapshotter.leader_watchers.append(lambda _leader, _epoch: self._lifecycle.beat_now())
        services.producer_ids.broker_epoch = await self._lifecycle.register(
            self._endpoints(),
            {**TOLERATED_FEATURES, **services.supported_features},
            config.rack,
            [bytes(each) for each in self._logs.online_directory_ids(config.log_dirs)],
            self._logs.previous_broker_epoch,
        )
        self._lifecycle.offline_log_dirs = self._offline_directories
        self._lifecycle.on_replaced = self._fail
        self._logs.on_dir_offline = lambda _: self._lifecycle.beat_now()
        self._set_strays_aside()
        self._publisher = BrokerPublisher(config.node_id, services.replicas, TopicSettingsResolver(services.settings))
        self._replication = Replication(services, lambda: self._lifecycle.broker_epoch)
        self._replication.start()
        self._directories = DirectoryReports(
            config.node_id, self._logs, services.controllers.isr, lambda: self._lifecycle.broker_epoch
        )
        self._moves = Moves(services, self._directories, self.world.threads)
        self._moves.settle()
        self._publisher.followers += [
            self._replication.on_metadata,
            services.coordinators.on_metadata,
            self._directories.on_metadata,
            self._moves.on_metadata,
        ]
        self._publisher.start()
        services.metadata.add_publisher(services.coordinators)
        services.metadata.add_publisher(self._publisher)
        services.controller.applied = self._publisher.wait_answerable
        await self._lifecycle.become_ready()
        await self._publisher.wait_for(services.image.provenance.offset)
        services.moves.resume()

    def _offline_directories(self) -> list[bytes]:
        return [bytes(each) for each in self._logs.offline_directory_ids()]

    def _controller_endpoints(self) -> dict[str, Endpoint]:
        name = self.config.controller_listener_names[0]
        host, port = quorum_endpoint(self.config, self.addresses) or self.addresses[name]
        return {name: Endpoint(host, port, SECURITY_PROTOCOLS["PLAINTEXT"])}

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
            await asyncio.sleep(HURRY_SECONDS if self._logs.behind else HOUSEKEEPING_SECONDS)
            self._logs.tick()
            self._snapshotter.maybe_write(self._raft)

    def _fail(self, error: BaseException) -> None:
        """What this node lives by is lost, its metadata log or its id: stop, so that nothing more is acknowledged."""
        if self.failure is None:
            self.failure = error
            log.error("the node stops", reason=error)
        self.stopping.set()

    # Stopping

    async def stop(self) -> None:
        """Hand leadership over, answer what is under way, close the logs cleanly; a half start is undone too."""
        if self._stage is _Stage.NOTHING:
            return
        if hasattr(self, "_lifecycle") and self.config.flag("controlled.shutdown.enable"):
            await self._lifecycle.leave()
        self._net.stop_listening()
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        if self._stage is _Stage.JOINING:
            await self._stop_serving()
        self._net.stop()
        if self._stage is _Stage.JOINING:
            await self._transport.close()
            await self._raft.stop()
        if self._stage is not _Stage.BOUND:
            clean = self.failure is None
            epoch = self._lifecycle.broker_epoch if hasattr(self, "_lifecycle") else -1
            await asyncio.get_running_loop().run_in_executor(
                None, lambda: self._logs.close(clean=clean, broker_epoch=epoch)
            )

    async def _stop_serving(self) -> None:
        await self._membership.stop()
        self._raft.resign()
        await self.router.drain()
        self.services.checks.stop()
        self.services.coordinators.stop()
        if hasattr(self, "_lifecycle"):
            await self._lifecycle.stop()
        await self._controllers.stop()
        if hasattr(self, "_publisher"):
            await self._publisher.stop()
            await self._directories.stop()
            await self._moves.stop()
            await self._replication.stop()
        self.services.replicas.commit()
        await self._net.leave(FAREWELL_SECONDS)
        await self._raft.hand_over()


def run_node(config: NodeConfig, *, on_ready: Callable[[str], None]) -> int:
    """Run a node until it is told to stop; `on_ready` hears its address once it serves. Returns the exit code."""
    # A thread that cleans or copies lets the loop have its turn within half a millisecond instead of five.
    sys.setswitchinterval(SWITCH_SECONDS)
    raise_limit()
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
    starting = loop.create_task(node.start(), name="start")
    told_to_stop = loop.create_task(node.stopping.wait(), name="stop")
    await asyncio.wait((starting, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        await starting
        host, port = node.addresses[(config.broker_listeners or config.controller_listeners)[0].name]
        on_ready(f"{host}:{port}")
        await told_to_stop
    else:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await node.stop()
    return 1 if node.failure is not None else 0
