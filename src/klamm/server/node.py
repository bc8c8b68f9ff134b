"""A node of a cluster: opens what is on disk, joins the quorum, registers the broker, serves, and stops in order.

Sockets are bound first, so that a port in use stops the start before anything on disk changes. The controller listener
is served as soon as this member of the quorum runs, because the other voters need its vote. The listeners for clients
are served last, once the broker is unfenced.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from functools import partial

from klamm.metadata.image import Endpoint, FeatureRange
from klamm.model.garbage_collection import freeze_survivors
from klamm.net import FrameHandler, NetServer, TurnLoop
from klamm.replication import FetchSessions, ReplicaManager
from klamm.server.boot.component_configs import (
    SECURITY_PROTOCOL_IDS,
    TOLERATED_FEATURES,
    controller_config,
    find_cluster_id,
    net_config,
    quorum_endpoint,
)
from klamm.server.boot.composition import (
    QuorumMember,
    make_access_control,
    make_controller_link,
    make_lifecycle,
    make_logs,
    make_quorum_member,
    make_quotas,
    make_replicas,
)
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.config_checks import early_listeners
from klamm.server.boot.descriptors import raise_limit
from klamm.server.boot.environment import Environment
from klamm.server.boot.first_records import read_first_records
from klamm.server.cluster.broker_runtime import BrokerRuntime
from klamm.server.cluster.directory_reports import DirectoryReports
from klamm.server.cluster.lifecycle import BrokerLifecycle
from klamm.server.cluster.listed_brokers import ListedBrokers
from klamm.server.cluster.move_service import make_log_dir_moves
from klamm.server.cluster.publishers import BrokerPublisher
from klamm.server.controller.link import ControllerLink
from klamm.server.coordinators.producer_ids import ProducerIds
from klamm.server.login.security import NodeSecurity
from klamm.server.metrics.service import MetricsService, has_metrics
from klamm.server.requests.context import ListenerContext
from klamm.server.requests.record_checks import RecordChecks
from klamm.server.requests.router import Router
from klamm.server.requests.routes import routes
from klamm.server.services import Services
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.server.settings.connection_limits import ConnectionLimitsPublisher
from klamm.server.settings.store_changes import StoreChanges
from klamm.server.settings.topic_settings import TopicSettingsResolver
from klamm.storage import LogManager
from klamm.telemetry.log import get_logger

log = get_logger("node")

HOUSEKEEPING_SECONDS = 1.0
HOUSEKEEPING_BEHIND_SECONDS = 0.02
"""The pause while housekeeping has work left over from its last tick."""
SWITCH_SECONDS = 0.0005
DRAIN_SECONDS = 0.5
"""How long a stopping node lets its clients read the replies they were sent."""
WAIT_REPORT_SECONDS = 5.0
"""How often a node that waits for its quorum logs that it does."""


class _BootStage(Enum):
    """The stage that the start has reached; a stop undoes this stage and those before it."""

    NOTHING = auto()
    BOUND = auto()
    OPEN = auto()
    JOINING = auto()


class KlammNode:
    """One process of a cluster: broker, controller, or both."""

    def __init__(
        self,
        config: NodeConfig,
        environment: Environment | None = None,
        *,
        wrap_handler: Callable[[FrameHandler], FrameHandler] | None = None,
    ) -> None:
        """`wrap_handler` puts a frame handler in front of the router, such as one that injects faults."""
        self._wrap_handler = wrap_handler
        self.config = config
        self.environment = environment or Environment()
        self.addresses: dict[str, tuple[str, int]] = {}
        """The bound host and port of each listener, by its name."""
        self.failure: BaseException | None = None
        self.stopping = asyncio.Event()
        self._heartbeat_due = asyncio.Event()
        self._housekeeper: asyncio.Task[None] | None = None
        self._metrics: MetricsService | None = None
        self._stage = _BootStage.NOTHING
        # Set from _BootStage.BOUND on:
        self.net: NetServer
        self._security: NodeSecurity
        self.logs: LogManager
        # Set from _BootStage.OPEN on:
        self.services: Services
        self.router: Router
        self._handler: FrameHandler
        self._quorum: QuorumMember
        self._broker: BrokerRuntime | None = None

    @property
    def broker_epoch(self) -> int:
        """The epoch of this node's broker; -1 before its registration and on a node without one."""
        return self._broker.lifecycle.broker_epoch if self._broker is not None else -1

    # Starting

    async def start(self) -> None:
        """Start and serve; ConfigError means that nothing on disk has changed."""
        loop = asyncio.get_running_loop()
        # Before anything is bound: a certificate that cannot be used stops the start.
        self._security = NodeSecurity(self.config, self.environment.clock)
        self._security.start()
        self.net = NetServer(loop, net_config(self.config), self.environment.sockets)
        try:
            for listener in self.config.listeners:
                host = listener.host or "0.0.0.0"  # noqa: S104 - an empty host is how Kafka writes every interface
                self.addresses[listener.name] = self.net.bind(listener.name, host, listener.port)
            self._stage = _BootStage.BOUND
            if has_metrics(self.config):
                self._metrics = MetricsService(self.config)
            # Before raft is made: it needs the cluster id and the directory id that the log manager reads from
            # meta.properties.
            await self._open_logs(loop)
            self._stage = _BootStage.OPEN
            self._compose(loop)
            await self._join_quorum()
            if self._metrics is not None:
                # Before the broker has joined: /ready shows how far it is.
                self._metrics.start()
            # Before the first listener of clients accepts: a login without keys would be refused. The keys are fetched
            # meanwhile; a voter does not keep its quorum waiting for them, and the other voters log in again.
            await self._security.wait_for_keys()
            if self._broker is not None:
                await self._broker.join(
                    self._broker_endpoints(),
                    {**TOLERATED_FEATURES, **self.services.supported_features},
                    on_following=partial(self._serve, "broker", early=True),
                )
        except asyncio.CancelledError:
            raise  # the task that cancels a start also calls stop
        except BaseException:
            self.net.stop()
            self._security.close()
            if self._metrics is not None:
                self._metrics.close()
            raise
        if self._broker is not None:
            # The broker has caught up with the metadata log, so all ACLs and users are loaded.
            if self.services.access is not None:
                self.services.access.authorizer.ready = True
            self._security.warn_of_missing_users(self.services.image)
        # Last: a client that connects earlier would get NOT_LEADER_OR_FOLLOWER from a broker without replicas.
        self._serve("broker", early=False)
        self._housekeeper = loop.create_task(self._run_housekeeping(), name="housekeeping")

    def _serve(self, kind: str, *, early: bool) -> None:
        """Accept connections on the listeners of one kind, "broker" or "controller": the early ones, or the others."""
        controller, first = kind == "controller", early_listeners(self.config)
        names = [
            name
            for name in self.addresses
            if (name in self.config.controller_listener_names) is controller and (name in first) is early
        ]
        table = routes(kind, authorized=self.services.access is not None)
        contexts = {name: ListenerContext(name, kind, table) for name in names}
        self.net.start(self._handler, contexts, self._security.openers(self.services, self._handler))

    async def _open_logs(self, loop: asyncio.AbstractEventLoop) -> None:
        cluster_id = find_cluster_id(self.environment, self.config)
        self.logs = make_logs(
            loop, self.config, self.environment, fail=self._fail, on_dir_offline=self._heartbeat_due.set
        )
        # In a thread: recovery blocks, and a start must stay cancellable by a signal.
        start = partial(self.logs.start, cluster_id, self.config.node_id, format_empty=True)
        await loop.run_in_executor(None, start)

    def _compose(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the parts and tie them together; none of them runs yet."""
        config, environment, logs = self.config, self.environment, self.logs
        self._quorum = quorum = make_quorum_member(
            loop, config, environment, logs, self.addresses, self._security, fail=self._fail
        )
        # Replicas before the publisher that gives them roles, and both before the link, whose answers wait until the
        # publisher has applied a change.
        replicas = make_replicas(config, environment, logs, self.net.turn, self._security, fail=self._fail)
        settings = BrokerSettings(config.node_id, config.static)
        names = [listener.name for listener in config.listeners]
        quorum.loader.add_publisher(ConnectionLimitsPublisher(config.node_id, settings, self.net, names))
        publisher = BrokerPublisher(config.node_id, replicas, TopicSettingsResolver(settings))
        first_records = read_first_records(environment.disk, config.metadata_log_dir)
        rules = replace(controller_config(config, logs.cluster_id or ""), first_records=first_records)
        controllers = make_controller_link(
            loop,
            config,
            environment,
            quorum,
            rules,
            wait_applied=publisher.wait_answerable,
            on_heartbeat_lost=self._heartbeat_due.set,
        )
        lifecycle = make_lifecycle(config, environment, logs, quorum, controllers, self._heartbeat_due, fail=self._fail)
        directory_reports = DirectoryReports(config.node_id, logs, controllers.isr, lifecycle.epoch)
        self.services = self._make_services(
            loop, rules.supported_features, replicas, settings, controllers, lifecycle, directory_reports
        )
        if config.is_broker:
            self._broker = BrokerRuntime(self.services, lifecycle, publisher, directory_reports)
        self.router = Router(self.services)
        self.net.watch_turns(self.router.times.turns.observe)
        if self._metrics is not None:
            logins = self._security.login_counts
            self._metrics.compose(self.services, self.net, logins, lifecycle, environment, self._failure)
        self._handler = self.router if self._wrap_handler is None else self._wrap_handler(self.router)

    def _make_services(
        self,
        loop: asyncio.AbstractEventLoop,
        supported_features: Mapping[str, FeatureRange],
        replicas: ReplicaManager,
        settings: BrokerSettings,
        controllers: ControllerLink,
        lifecycle: BrokerLifecycle,
        directory_reports: DirectoryReports,
    ) -> Services:
        config, environment, logs = self.config, self.environment, self.logs
        listed_brokers = ListedBrokers(environment.clock, config.integer("broker.session.timeout.ms"))
        self._quorum.loader.add_publisher(listed_brokers)
        stores = StoreChanges(config, self._security)
        self._quorum.loader.add_publisher(stores)
        return Services(
            loop=loop,
            node_id=config.node_id,
            cluster_id=logs.cluster_id or "",
            config=config,
            settings=settings,
            clock=environment.clock,
            random=environment.random,
            new_uuid=environment.new_uuid,
            logs=logs,
            replicas=replicas,
            sessions=FetchSessions(config.fetch_session_slots, environment.random),
            metadata=self._quorum.loader,
            listed_brokers=listed_brokers,
            raft=self._quorum.raft,
            quorum=self._quorum.transport,
            membership=self._quorum.membership,
            controllers=controllers,
            producer_ids=ProducerIds(config.node_id, controllers.isr, lifecycle.epoch),
            checks=RecordChecks(loop, environment.threads),
            moves=make_log_dir_moves(loop, config, replicas, environment.clock, directory_reports, environment.threads),
            supported_features=supported_features,
            access=make_access_control(config, self._quorum),
            stores=stores,
            quotas=make_quotas(config, environment, self._quorum, self.net),
            controller_address=self.addresses.get(config.controller_listener_names[0]),
        )

    async def _join_quorum(self) -> None:
        """Take part in the quorum; returns once it has a leader, however long that takes."""
        self._stage = _BootStage.JOINING
        quorum, controllers = self._quorum, self.services.controllers
        await quorum.raft.start()
        # Raft runs by now: before, a request of another voter is refused with BROKER_NOT_AVAILABLE.
        self._serve("controller", early=True)
        if self.config.is_controller:
            # The runtime before the registration: on a quorum of one it is the controller that answers it.
            await controllers.runtime.start()
            quorum.membership.start()
            controllers.register_controller(
                self.config.node_id,
                self.environment.new_uuid().bytes,
                self._controller_endpoints(),
                {**TOLERATED_FEATURES, **self.services.supported_features},
            )
        # The first report is early: a quorum of one should have its leader at once. Later ones are rare.
        report_after = 1.0
        while True:
            try:
                async with asyncio.timeout(report_after):
                    await quorum.raft.wait_for_leader()
                    return
            except TimeoutError:
                report_after = WAIT_REPORT_SECONDS
                log.info("metadata quorum has no leader, waiting", **quorum.transport.reachable())

    def _controller_endpoints(self) -> dict[str, Endpoint]:
        name = self.config.controller_listener_names[0]
        # As in the voter set, where there is one: the registration and the quorum name one address.
        host, port = quorum_endpoint(self.config, self.addresses) or self.addresses[name]
        protocol = next(listener.security_protocol for listener in self.config.listeners if listener.name == name)
        return {name: Endpoint(host, port, SECURITY_PROTOCOL_IDS[protocol])}

    def _broker_endpoints(self) -> dict[str, Endpoint]:
        advertised = {listener.name: (listener.host, listener.port) for listener in self.config.advertised_listeners}
        endpoints = {}
        for listener in self.config.broker_listeners:
            host, port = advertised.get(listener.name) or self.addresses[listener.name]
            endpoints[listener.name] = Endpoint(host, port, SECURITY_PROTOCOL_IDS[listener.security_protocol])
        return endpoints

    async def _run_housekeeping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = HOUSEKEEPING_BEHIND_SECONDS if self.logs.behind else HOUSEKEEPING_SECONDS
            due = loop.time() + pause
            await asyncio.sleep(pause)
            if self._metrics is not None:
                self._metrics.tick(loop.time() - due)
            self.logs.tick()
            self._security.reload_changed()
            self._quorum.snapshotter.maybe_write(self._quorum.raft)

    def _failure(self) -> BaseException | None:
        return self.failure

    @property
    def metrics_addresses(self) -> list[tuple[str, int]]:
        """The bound addresses of the metrics listeners."""
        return self._metrics.addresses if self._metrics is not None else []

    def _fail(self, error: BaseException) -> None:
        """Stop the node: its metadata log or its broker id is lost, and nothing more may be acknowledged."""
        if self.failure is None:
            self.failure = error
            log.error("the node stops", reason=error)
        self.stopping.set()

    # Stopping

    async def stop(self) -> None:
        """Hand leadership over, answer what is under way, close the logs cleanly; a half start is undone too."""
        if self._stage is _BootStage.NOTHING:
            return
        # First, while the node still serves: its leaders move to other brokers, and clients are served until they have.
        if self._broker is not None and self.config.flag("controlled.shutdown.enable"):
            await self._broker.lifecycle.leave()
        # Before the requests under way are drained: a new connection would add to them without end.
        self.net.stop_listening()
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        if self._stage is _BootStage.JOINING:
            await self._stop_serving()
        self.net.stop()
        self._security.close()
        # Last of the listeners: until here /ready tells that the node is leaving.
        if self._metrics is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._metrics.close)
        # The transport outlives the connections: `hand_over` has sent the end of the epoch through it.
        if self._stage is _BootStage.JOINING:
            await self._quorum.transport.close()
            await self._quorum.raft.stop()
        if self._stage is not _BootStage.BOUND:
            # A clean stop is marked on disk together with the broker epoch, which the next registration names.
            close = partial(self.logs.close, clean=self.failure is None, broker_epoch=self.broker_epoch)
            await asyncio.get_running_loop().run_in_executor(None, close)

    async def _stop_serving(self) -> None:
        services, broker = self.services, self._broker
        # Before resigning, or it would send this node's voter record to the next leader.
        await self._quorum.membership.stop()
        # Early, so that another voter is elected while the steps below take their time.
        self._quorum.raft.resign()
        await self.router.drain()
        # After the drain: requests under way may still need the threads that validate records.
        services.checks.stop()
        services.coordinators.stop()
        if broker is not None:
            # Heartbeats end before the channels they are sent over.
            await broker.lifecycle.stop()
        await services.controllers.stop()
        if broker is not None:
            await broker.stop()
        # What coordinators and the last requests have staged is written before the replies leave in `net.leave`.
        services.replicas.write_staged()
        await self.net.leave(DRAIN_SECONDS)
        # Last: the other voters acknowledge the end of this epoch while connections drain.
        await self._quorum.raft.hand_over()


def run_node(
    config: NodeConfig, *, on_ready: Callable[[str], None], before_stop: Callable[[], None] | None = None
) -> int:
    """Run a node until a signal or a failure stops it; `on_ready` gets its address once it serves.

    `before_stop` is called in a thread while the node still serves. Returns the exit code.
    """
    # A thread that cleans or copies yields to the loop within half a millisecond instead of five.
    sys.setswitchinterval(SWITCH_SECONDS)
    freeze_survivors()
    # Before the first log is opened: each holds descriptors.
    raise_limit()
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(_run(config, on_ready, before_stop))


async def _run(config: NodeConfig, on_ready: Callable[[str], None], before_stop: Callable[[], None] | None) -> int:
    node = KlammNode(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, node.stopping.set)
    for sentence in config.warnings:
        log.warning(sentence)
    if config.ignored:
        log.info("configs without effect in Klamm ignored", configs=",".join(config.ignored))
    starting = loop.create_task(node.start(), name="start")
    stop_requested = loop.create_task(node.stopping.wait(), name="stop")
    await asyncio.wait((starting, stop_requested), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        if starting.exception() is not None:
            # A failed start has closed its sockets. Logs that stay open would be recovered by the next start.
            await node.stop()
        await starting
        host, port = node.addresses[(config.broker_listeners or config.controller_listeners)[0].name]
        on_ready(f"{host}:{port}")
        await stop_requested
        if before_stop is not None:
            await loop.run_in_executor(None, before_stop)
    else:
        # A signal during the start: `stop` undoes the stages that were reached.
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await node.stop()
    return 1 if node.failure is not None else 0
