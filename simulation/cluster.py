"""Simulated machines that run real nodes: started, stopped, killed, paused, restarted, with disks that survive."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from klamm.model.ids import Uuid, uuid_to_str
from klamm.raft.config import METADATA_FOLDER
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.voter_history import DYNAMIC, VoterConfiguration
from klamm.raft.snapshot_folder import SnapshotFolder
from klamm.server.boot.config import NodeConfig
from klamm.server.boot.environment import Environment
from klamm.server.boot.first_records import write_first_records
from klamm.server.node import KlammNode
from klamm.storage.meta_properties import MetaProperties, write_meta_properties
from simulation.disk import Image, SimDisk
from simulation.layout import BROKER_PORT, CONTROLLER_PORT, DATA, Layout, host_of
from simulation.loop import Process, SimLoop
from simulation.net import SimNet
from simulation.sockets import SimSockets
from simulation.threads import SimThreads
from simulation.users import first_credentials

START_MS = 1_767_225_600_000


class SimClock:
    """A machine's clocks: the wall clock may be wrong, the other only runs, though not as fast as others do."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0
        self.rate = 1.0
        self._since = self._counted = 0.0
        """When the rate last changed, by the world's clock and by this one."""

    def run_at(self, rate: float) -> None:
        """Go faster or slower from now on."""
        self._counted, self._since = self._seconds(), self._loop.time()
        self.rate = rate

    def now_ms(self) -> int:
        """Wall time."""
        return START_MS + self.monotonic_ms() + self.offset_ms

    def monotonic_ms(self) -> int:
        """Time since the simulation began, as this machine has counted it."""
        return int(self._seconds() * 1000)

    def _seconds(self) -> float:
        return self._counted + (self._loop.time() - self._since) * self.rate


class Machine:
    """One machine of the cluster: its disk, its clock, and the process that runs on it, if one does."""

    def __init__(self, cluster: "SimCluster", node_id: int, config: NodeConfig, *, twin: bool = False) -> None:
        self.cluster = cluster
        self.id = node_id
        self.name = f"node {node_id}" + (" (the second of this id)" if twin else "")
        self.twin = twin
        self.host = host_of(node_id + 100 if twin else node_id)
        self.config = config
        self.image = Image()
        self.directory_id = Uuid(bytes(16))
        self.clock = SimClock(cluster.loop)
        self.random = cluster.chance(f"{'twin' if twin else 'node'}-{node_id}")
        self.process: Process | None = None
        self.node: KlammNode | None = None
        self.disk: SimDisk | None = None
        self.serving = False
        self.start_again = False
        """Whether a start was requested while the previous process was still stopping."""
        self.starts = 0
        self.full = False
        self.sync_delay_s = 0.0
        """What a slow disk adds to slow work at most."""
        self.old_image: Image | None = None
        """A copy of the disk as it was some time ago."""
        self.damaged: str | None = None
        """The file of this disk that has changed by itself, if one has."""

    @property
    def is_broker(self) -> bool:
        """Whether it keeps partitions."""
        return self.config.is_broker

    @property
    def running(self) -> bool:
        """Whether a process runs here, paused or not."""
        return self.process is not None and self.process.alive

    def broker_epoch(self) -> int:
        """Under which epoch the process that runs here, or ran last, was registered; -1 before it was."""
        return self.node.broker_epoch if self.node is not None else -1

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on what the disk holds."""
        if self.running:
            return
        cluster, loop = self.cluster, self.cluster.loop
        self.starts += 1
        process = self.process = Process(self.name, self.host)
        disk = self.disk = SimDisk(self.image, lambda: self.clock.now_ms() * 1_000_000, loop.add_to_digest)
        disk.full = self.full
        process.default_threads = self._threads(process, 4)
        process.clock_rate = self.clock.rate
        cluster.net.power_back(self.host)
        environment = Environment(
            clock=self.clock,
            random=self.random,
            disk=disk,
            threads=lambda count, _name: self._threads(process, count),
            sockets=SimSockets(cluster.net, process, disk.pread),
            seeded=True,
        )
        loop.spawn(process, self._main(process, environment), name=self.name)
        cluster.note(f"{self.name} starts")

    def _threads(self, process: Process, count: int) -> SimThreads:
        return SimThreads(self.cluster.loop, process, count, self._delay)

    def _delay(self) -> float:
        chance = self.cluster.net.random.random()
        return 0.0002 + chance * 0.002 + (self.sync_delay_s * chance if self.sync_delay_s else 0.0)

    async def _main(self, process: Process, environment: Environment) -> None:
        self.serving = False
        node = self.node = KlammNode(self.config, environment)
        loop = self.cluster.loop
        starting = loop.create_task(node.start(), name=f"start of {self.name}")
        stop_request = loop.create_task(node.stopping.wait(), name=f"stop of {self.name}")
        await asyncio.wait((starting, stop_request), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            error = starting.exception()
            if error is not None:
                self.cluster.on_node_failed(self, f"could not start: {error!r}", error)
                self._end(process, notify_peer=True)
                return
            self.serving = True
            self.cluster.note(f"{self.name} serves")
            await stop_request
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self.serving = False
        try:
            await node.stop()
        except Exception as error:  # noqa: BLE001 - a process that cannot stop says why and ends
            self.cluster.on_node_failed(self, f"could not stop: {error!r}", error)
        if node.failure is not None:
            self.cluster.on_node_failed(self, f"stopped by itself: {node.failure}", node.failure)
        else:
            self.cluster.note(f"{self.name} has stopped cleanly")
        self._end(process, notify_peer=True)

    def _end(self, process: Process, *, notify_peer: bool) -> None:
        self.serving = False
        if self.disk is not None:
            self.disk.dead = True
        self.cluster.graveyard.append(self.node)
        self.cluster.loop.kill(process)
        self.cluster.net.on_process_ended(process, notify_peer=notify_peer)
        if self.start_again and not self.twin:
            self.start_again = False
            self.cluster.loop.call_in(self.cluster.loop.outside, 0.1, self.cluster.restart, self.id)

    def stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        if self.running and self.serving and self.node is not None:
            self.cluster.loop.call_in(self.process, 0.0, self.node.stopping.set)  # type: ignore[arg-type]

    def kill(self) -> None:
        """End the process at once; the machine goes on."""
        if self.process is not None and self.running:
            self._end(self.process, notify_peer=True)

    def lose_power(self) -> int:
        """Cut the power: no connection is closed, and data that was not synced may be lost."""
        if self.process is None or not self.running:
            return 0
        self.cluster.net.dark.add(self.host)
        self._end(self.process, notify_peer=False)
        return self.image.lose_power(self.cluster.fault_chance)

    def run_clock_at(self, rate: float) -> None:
        """Let this machine's time go faster or slower than that of the world."""
        self.clock.run_at(rate)
        if self.process is not None:
            self.process.clock_rate = rate

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
        self.directory_id = Uuid(self.random.randbytes(16))
        write_meta_properties(disk, DATA, MetaProperties(cluster_id, self.id, self.directory_id))

    def write_credentials(self) -> None:
        """Put the first users on the empty disk, as `klamm storage format --add-scram` does."""
        disk = SimDisk(self.image, lambda: 0, lambda _: None)
        write_first_records(disk, DATA, first_credentials(), START_MS)

    def write_voters(self, voters: VoterSet) -> None:
        """Put the first voters on the empty disk, as `klamm storage format --initial-controllers` does."""
        disk = SimDisk(self.image, lambda: 0, lambda _: None)
        folder = f"{DATA}/{METADATA_FOLDER}"
        disk.makedirs(folder, exist_ok=True)
        SnapshotFolder(folder, disk).write(
            OffsetAndEpoch(0, 0),
            (),
            now_ms=START_MS,
            last_contained_log_timestamp=0,
            configuration=VoterConfiguration(voters, DYNAMIC),
        )

    def wipe(self) -> None:
        """Replace the disk by a new one, formatted."""
        self.image = Image()
        self.old_image = self.damaged = None
        self.format(self.cluster.cluster_id)

    def remember(self) -> None:
        """Keep a copy of the disk."""
        self.old_image = self.image.snapshot()

    def go_back(self) -> bool:
        """Put the copy in the disk's place; False when there is none."""
        if self.old_image is None:
            return False
        self.image, self.old_image = self.old_image, None
        return True


class SimCluster:
    """The machines, the network between them, and the chance that rules both."""

    def __init__(self, seed: int, layout: Layout, overrides: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.layout = layout
        self._overrides = overrides or {}
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
        self.machines = {i: Machine(self, i, layout.config(i, host_of(i), self._overrides)) for i in layout.roles}
        self.twins: list[Machine] = []
        """Machines that run nodes whose ids others have."""
        for machine in self.machines.values():
            machine.format(self.cluster_id)
            if layout.secured:
                machine.write_credentials()
        if layout.dynamic:
            for node in layout.controllers:
                self.machines[node].write_voters(VoterSet(map(self.voter, layout.controllers)))

    def voter(self, node: int) -> Voter:
        """A controller as the quorum knows it."""
        machine = self.machines[node]
        return Voter(ReplicaKey(node, machine.directory_id), machine.host, CONTROLLER_PORT, "CONTROLLER")

    def find_registered(self, node: int) -> Machine | None:
        """The machine whose process has the id of a broker: the one that registered last."""
        same = [twin for twin in self.twins if twin.id == node]
        if not same:
            return self.machines.get(node)
        return max((self.machines[node], *same), key=Machine.broker_epoch)

    def make_twin(self, node: int) -> Machine:
        """Another machine with an empty disk that takes itself for this node."""
        config = self.layout.config(node, host_of(node + 100), self._overrides)
        twin = Machine(self, node, config, twin=True)
        twin.format(self.cluster_id)
        self.twins.append(twin)
        return twin

    def chance(self, name: str) -> Random:
        """A source of chance of its own, so that one part of a run does not disturb another."""
        return Random(f"{self.seed}/{name}")

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append((self.loop.time(), text))

    def on_node_failed(self, machine: Machine, text: str, error: BaseException) -> None:
        """A process has ended by itself."""
        self.note(f"{machine.name} {text}")
        self.on_unexpected(machine, text, error)

    def start(self) -> None:
        """Start every machine."""
        for machine in self.machines.values():
            machine.start()

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """Where clients knock first."""
        return [(machine.host, BROKER_PORT) for machine in self.machines.values() if machine.is_broker]

    def close(self) -> None:
        """Let go of everything."""
        for machine in (*self.machines.values(), *self.twins):
            if machine.disk is not None:
                machine.disk.dead = True
        self.loop.close()
        self.graveyard.clear()
