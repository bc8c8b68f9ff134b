"""Simulated machines that run real nodes: started, stopped, killed, paused, restarted, with disks that survive."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from klamm.model.ids import Uuid, uuid_to_str
from klamm.server.config import NodeConfig, parse_config
from klamm.server.node import Node
from klamm.server.world import World
from klamm.storage.properties import MetaProperties, write_meta_properties
from klamm.testing.sim.disk import Image, SimDisk
from klamm.testing.sim.loop import Process, SimLoop
from klamm.testing.sim.net import SimNet, SimSockets
from klamm.testing.sim.threads import SimThreads

START_MS = 1_767_225_600_000
BROKER_PORT = 9092
CONTROLLER_PORT = 9093
DATA = "/data"


class SimClock:
    """A machine's clocks: the wall clock may be wrong, the other only runs."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        """Wall time."""
        return START_MS + int(self._loop.time() * 1000) + self.offset_ms

    def monotonic_ms(self) -> int:
        """Time since the simulation began."""
        return int(self._loop.time() * 1000)


class Machine:
    """One machine of the cluster: its disk, its clock, and the process that runs on it, if one does."""

    def __init__(self, cluster: "SimCluster", node_id: int, config: NodeConfig) -> None:
        self.cluster = cluster
        self.id = node_id
        self.host = host_of(node_id)
        self.config = config
        self.image = Image()
        self.clock = SimClock(cluster.loop)
        self.random = cluster.chance(f"node-{node_id}")
        self.process: Process | None = None
        self.node: Node | None = None
        self.disk: SimDisk | None = None
        self.serving = False
        self.start_again = False
        """Whether somebody asked for a start while the process before was still stopping."""
        self.starts = 0
        self.full = False
        self.sync_delay_s = 0.0
        """What a slow disk adds to slow work at most."""
        self.old_image: Image | None = None

    @property
    def running(self) -> bool:
        """Whether a process runs here, paused or not."""
        return self.process is not None and self.process.alive

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on what the disk holds."""
        if self.running:
            return
        cluster, loop = self.cluster, self.cluster.loop
        self.starts += 1
        process = self.process = Process(f"node {self.id}", self.host)
        disk = self.disk = SimDisk(self.image, lambda: self.clock.now_ms() * 1_000_000, loop.witness)
        disk.full = self.full
        process.default_threads = self._threads(process, 4)
        cluster.net.power_back(self.host)
        world = World(
            clock=self.clock,
            random=self.random,
            disk=disk,
            threads=lambda count, _name: self._threads(process, count),
            sockets=SimSockets(cluster.net, process, disk.pread),
            seeded=True,
        )
        loop.spawn(process, self._main(process, world), name=f"node {self.id}")
        cluster.note(f"node {self.id} starts")

    def _threads(self, process: Process, count: int) -> SimThreads:
        return SimThreads(self.cluster.loop, process, count, self._delay)

    def _delay(self) -> float:
        chance = self.cluster.net.random.random()
        return 0.0002 + chance * 0.002 + (self.sync_delay_s * chance if self.sync_delay_s else 0.0)

    async def _main(self, process: Process, world: World) -> None:
        self.serving = False
        node = self.node = Node(self.config, world)
        try:
            await node.start()
        except Exception as error:  # noqa: BLE001 - a process that cannot start says why and ends
            self.cluster.ended(self, f"could not start: {error!r}", error)
            self._end(process, told=True)
            return
        self.serving = True
        self.cluster.note(f"node {self.id} serves")
        await node.stopping.wait()
        self.serving = False
        try:
            await node.stop()
        except Exception as error:  # noqa: BLE001 - as above
            self.cluster.ended(self, f"could not stop: {error!r}", error)
        if node.failure is not None:
            self.cluster.ended(self, f"stopped by itself: {node.failure}", node.failure)
        else:
            self.cluster.note(f"node {self.id} has stopped cleanly")
        self._end(process, told=True)

    def _end(self, process: Process, *, told: bool) -> None:
        self.serving = False
        if self.disk is not None:
            self.disk.dead = True
        self.cluster.graveyard.append(self.node)
        self.cluster.loop.kill(process)
        self.cluster.net.process_ended(process, told=told)
        if self.start_again:
            self.start_again = False
            self.cluster.loop.call_in(self.cluster.loop.outside, 0.1, self.cluster.restart, self.id)

    def stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        if self.running and self.serving and self.node is not None:
            self.cluster.loop.call_in(self.process, 0.0, self.node.stopping.set)  # type: ignore[arg-type]

    def kill(self) -> None:
        """End the process at once; the machine goes on."""
        if self.process is not None and self.running:
            self._end(self.process, told=True)

    def lose_power(self) -> int:
        """End machine and process at once: nobody is told, and what was not synced may be gone."""
        if self.process is None or not self.running:
            return 0
        self.cluster.net.dark.add(self.host)
        self._end(self.process, told=False)
        return self.image.lose_power(self.cluster.fault_chance)

    def pause(self) -> None:
        """Let the process stand still."""
        if self.process is not None and self.running:
            self.cluster.loop.pause(self.process)

    def resume(self) -> None:
        """Let it go on."""
        if self.process is not None and self.running:
            self.cluster.loop.resume(self.process)

    def format(self, cluster_id: str) -> None:
        """Give the empty disk its identity, as `klamm storage format` does."""
        disk = SimDisk(self.image, lambda: 0, lambda _: None)
        disk.makedirs(DATA, exist_ok=True)
        directory_id = Uuid(self.random.randbytes(16))
        write_meta_properties(disk, DATA, MetaProperties(cluster_id, self.id, directory_id))

    def wipe(self) -> None:
        """Replace the disk by a new one, formatted."""
        self.image = Image()
        self.format(self.cluster.cluster_id)


class SimCluster:
    """The machines, the network between them, and the chance that rules both."""

    def __init__(self, seed: int, nodes: int = 3, overrides: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(self.chance("loop"))  # type: ignore[abstract]
        self.net = SimNet(self.loop, self.chance("net"))
        self.loop.net = self.net
        self.fault_chance = self.chance("faults")
        self.story: list[tuple[float, str]] = []
        self.graveyard: list[Any] = []
        """Nodes whose process has ended; kept, so that nothing of them is run by a garbage collector."""
        self.on_unexpected: Callable[[Machine, str, BaseException], None] = lambda *_: None
        self.restart: Callable[[int], None] = lambda node: self.machines[node].start()
        self.cluster_id = uuid_to_str(Uuid(self.chance("cluster").randbytes(16)))
        ids = range(1, nodes + 1)
        self.machines = {i: Machine(self, i, node_config(i, nodes, overrides or {})) for i in ids}
        for machine in self.machines.values():
            machine.format(self.cluster_id)

    def chance(self, name: str) -> Random:
        """A source of chance of its own, so that one part of a run does not disturb another."""
        return Random(f"{self.seed}/{name}")

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append((self.loop.time(), text))

    def ended(self, machine: Machine, text: str, error: BaseException) -> None:
        """A process has ended by itself."""
        self.note(f"node {machine.id} {text}")
        self.on_unexpected(machine, text, error)

    def start(self) -> None:
        """Start every machine."""
        for machine in self.machines.values():
            machine.start()

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """Where clients knock first."""
        return [(machine.host, BROKER_PORT) for machine in self.machines.values()]

    def close(self) -> None:
        """Let go of everything."""
        for machine in self.machines.values():
            if machine.disk is not None:
                machine.disk.dead = True
        self.loop.close()
        self.graveyard.clear()


def host_of(node_id: int) -> str:
    """The address of a node's machine."""
    return f"10.0.0.{node_id}"


_CONFIGS: dict[tuple[int, int, tuple[tuple[str, str], ...]], NodeConfig] = {}


def node_config(node_id: int, nodes: int, overrides: Mapping[str, str]) -> NodeConfig:
    """The settings of one node; parsed once per process, they do not change."""
    key = (node_id, nodes, tuple(sorted(overrides.items())))
    if key not in _CONFIGS:
        factor = str(min(nodes, 3))
        host = host_of(node_id)
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(f"{i}@{host_of(i)}:{CONTROLLER_PORT}" for i in range(1, nodes + 1)),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{host}:{BROKER_PORT},CONTROLLER://{host}:{CONTROLLER_PORT}",
            "advertised.listeners": f"PLAINTEXT://{host}:{BROKER_PORT}",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": DATA,
            "offsets.topic.replication.factor": factor,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "2" if nodes >= 3 else "1",
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "min.insync.replicas": "2" if nodes >= 3 else "1",
            "default.replication.factor": factor,
            "replica.lag.time.max.ms": "3000",
            "group.consumer.session.timeout.ms": "4000",
            "group.consumer.min.session.timeout.ms": "4000",
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "unclean.leader.election.enable": "false",
            "log.message.timestamp.after.max.ms": str(2**63 - 1),
            **overrides,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        _CONFIGS[key] = parse_config(text)
    return _CONFIGS[key]
