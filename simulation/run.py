"""One run of one seed: a plan is drawn, a cluster is started, loaded and hurt, healed, and judged."""

import gc
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from klamm.model.errors import ConfigError, KlammError
from klamm.telemetry.log import Level, configure
from simulation.admin import SimAdmin
from simulation.cluster import Machine, SimCluster
from simulation.consumers import SimConsumer
from simulation.convergence import find_unowned, find_unsettled, not_serving, note_state, partition_ends, refusing
from simulation.disk_faults import QUORUM
from simulation.fault import Fault
from simulation.faults import HARMLESS, KINDS, LOSING, UNCLEAN
from simulation.final import check_end
from simulation.guests import RightsAdmin
from simulation.keyed import KeyedRecords
from simulation.ledger import Ledger
from simulation.limits import may_lose, out_of_sync
from simulation.load import make_load, topics_of
from simulation.plan import RunPlan, draw_plan
from simulation.rights import RightsModel, unready
from simulation.tls import encryption_in_memory
from simulation.users import seeded_secrets
from simulation.watch import InvariantWatch

START_S = 30.0
"""A cluster without faults serves within this time."""
WRITABLE_S = 30.0
"""After everything has healed, every partition takes records within this time."""
QUIET_S = 60.0
"""After everything has healed, groups are stable and all that was begun is finished within this time."""
HEALING_EVENTS = 2_000
"""About what is left of a plan's events for healing."""
QUIET_PACE_S = 0.3
"""How often producers write while the cluster comes to rest."""


@dataclass(slots=True)
class RunResult:
    """How a run ended."""

    plan: RunPlan
    events: int
    digest: int
    violation: str | None
    story: list[str] = field(default_factory=list)
    acks: int = 0
    reads: int = 0
    seconds: float = 0.0


class Run:
    """A cluster, its load, its faults and its judges."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        layout = plan.nodes
        factor = self.factor = min(len(layout.brokers), plan.factor)
        self.cluster = SimCluster(plan.seed, layout, _settings(plan, factor))
        self.violation: str | None = None
        self.ledger = Ledger(self.violate)
        self.watch = InvariantWatch(self.cluster, self.ledger, self.violate)
        self.watch.compacts = plan.hot
        self.rights = RightsModel(self.violate)
        self.rights_admin: RightsAdmin
        if plan.secured:
            self.watch.rights = self.rights
            self.rights_admin = RightsAdmin(self)
        self.cluster.on_unexpected = self._on_ended
        self.cluster.restart = self.start
        self.clients: list[Any] = []
        self.keyed = KeyedRecords()
        self.partitions = self.wanted = plan.partitions
        """How many partitions the topic is known to have, and is to have."""
        self.topics = topics_of(self)
        self.hurting = self.healing = False
        self.admin: SimAdmin
        self._endings: list[Callable[[], None]] = []

    def violate(self, text: str) -> None:
        """An invariant does not hold: the run ends here."""
        if self.violation is None:
            self.violation = text
            self.note(f"VIOLATION {text}")

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.cluster.note(text)

    def start(self, *nodes: int) -> None:
        """Start machines that do not run."""
        for node in nodes:
            machine = self.cluster.machines[node]
            if not machine.running:
                machine.start()
                self.watch.attach(machine)
            elif machine.node is not None and machine.node.stopping.is_set():
                machine.start_again = True

    def _on_ended(self, machine: Machine, text: str, error: BaseException) -> None:
        if not self.hurting and not self.plan.faults:
            self.violate(f"18: node {machine.id} {text} although nothing was wrong")
        elif not isinstance(error, (OSError, KlammError, ConfigError)):
            self.violate(f"0: node {machine.id} {text}, which no fault explains")
        if machine.damaged is not None and QUORUM in machine.damaged and isinstance(error, KlammError):
            if QUORUM not in str(error):
                self.violate(f"0: node {machine.id} {text}, though {machine.damaged} is damaged")
            self.cluster.loop.call_in(self.cluster.loop.outside, 1.0, self._replace_damaged_disk, machine)
        elif not machine.twin:
            self.cluster.loop.call_in(self.cluster.loop.outside, 1.0, self.start, machine.id)

    def _replace_damaged_disk(self, machine: Machine) -> None:
        """A voter that refuses to start says why; the operator gives it an empty disk as soon as that is safe."""
        if machine.damaged is not None and not machine.running and self.may_lose(machine.id):
            self.wipe(machine.id)
        self.start(machine.id)

    def on_partitions_added(self, topic: str, partitions: int) -> None:
        """A topic has so many partitions now."""
        self.partitions = max(self.partitions, partitions)
        for client in self.clients:
            if client.topic == topic:
                client.grow(self.partitions)

    def may_lose(self, node: int) -> bool:
        """Whether the cluster can do without everything this node has on its disk."""
        return may_lose(self, node)

    def wipe(self, node: int) -> None:
        """End a node and give it an empty disk; where voters may change, it is to vote again under its new one."""
        machine = self.cluster.machines[node]
        before = self.cluster.voter(node)
        machine.kill()
        machine.wipe()
        self.ledger.damaged.discard(node)
        self.watch.record_loss(node)
        self.note(f"node {node} is killed and gets an empty disk")
        if self.plan.dynamic and node in self.cluster.layout.controllers:
            self.admin.changing_voters = True
            work = self.admin.replace_voter(before, self.cluster.voter(node))
            self.cluster.loop.spawn(self.admin.process, work, name="admin")

    def took_over(self, twin: Machine) -> bool:
        """Whether a second process has got the id of the first."""
        return twin.broker_epoch() >= 0

    def end_twin(self, twin: Machine) -> None:
        """The second process of an id goes, and with it what only it had."""
        if self.took_over(twin):
            self.watch.record_loss(twin.id)
        twin.kill()
        self.cluster.twins.remove(twin)
        self.cluster.graveyard.append(twin)
        self.note(f"{twin.name} is gone")

    # --- phases ------------------------------------------------------------------------------------------------------

    def execute(self) -> RunResult:
        """Run the plan from start to judgement."""
        collecting = gc.isenabled()
        gc.disable()  # finalizers would run at times no seed decides
        try:
            for phase in (self._begin, self._inject_faults, self._end_faults, self._stop_load, lambda: check_end(self)):
                if self.violation is None:
                    phase()
            if self.violation is not None:
                note_state(self)
            loop = self.cluster.loop
            return RunResult(
                self.plan,
                loop.events,
                loop.digest,
                self.violation,
                [f"{at:9.4f}  {text}" for at, text in self.cluster.story],
                self.ledger.acks,
                self.ledger.reads,
                loop.time(),
            )
        finally:
            self.cluster.close()
            if collecting:
                gc.enable()

    def _over(self) -> bool:
        if self.cluster.loop.failures and self.violation is None:
            self.violate(f"0: {self.cluster.loop.failures[0]}")
        return self.violation is not None

    def _run_until(self, done: Callable[[], bool], limit_s: float, complaint: Callable[[], str]) -> None:
        if self.violation is not None:
            return
        loop = self.cluster.loop
        deadline = loop.time() + limit_s
        loop.run(lambda: self._over() or done(), until=deadline)
        if self.violation is None and not done():
            self.violate(f"18: {complaint()} within {limit_s:.0f} s")

    def _begin(self) -> None:
        machines = self.cluster.machines.values()
        self.start(*self.cluster.machines)
        self._run_until(
            lambda: all(m.serving for m in machines), START_S, lambda: f"nodes {not_serving(self)} do not serve"
        )
        if self.violation is not None:
            return
        admin = self.admin = SimAdmin(self)
        admin.start()
        self._run_until(lambda: admin.ready, START_S, lambda: "topics were not made")
        if self.plan.secured:
            self._run_until(lambda: not unready(self), START_S, lambda: f"nodes {unready(self)} lack ACLs")
        self.clients = make_load(self)
        for client in self.clients:
            client.start()

    def _inject_faults(self) -> None:
        loop = self.cluster.loop
        self.hurting = True
        begun = loop.time()
        for fault in self.plan.faults:
            loop.call_in(loop.outside, fault.at, self._inject, fault)
        events = max(self.plan.events - HEALING_EVENTS - loop.events, 1000)
        loop.run(self._over, events=events, until=begun + self.plan.seconds)

    def _inject(self, fault: Fault) -> None:
        if not self.hurting or self._too_much(fault):
            return
        ending = KINDS[fault.kind](self, fault)
        if ending is None:
            return

        def end() -> None:
            if ending in self._endings:
                self._endings.remove(ending)
                ending()

        self._endings.append(ending)
        self.cluster.loop.call_in(self.cluster.loop.outside, fault.lasts, end)

    def _too_much(self, fault: Fault) -> bool:
        """Whether a fault would break what replication promises (see `limits`).

        The controller cannot tell a killed process from a lost disk, so while one machine is made good, no other may
        stop uncleanly. With records that are synced before they are acknowledged, only lost disks count. A second
        process with the id of a first one may take its place whenever that is out of sight: a lost disk at any time.
        """
        if fault.kind == "two with one id" and (self._endings or out_of_sync(self)):
            return True
        if self.cluster.twins and fault.kind not in HARMLESS and fault.nodes != (self.cluster.twins[0].id,):
            return True
        if fault.kind in LOSING:
            return not may_lose(self, fault.nodes[0])
        if fault.kind not in UNCLEAN:
            return False
        if self.plan.flush and not self.watch.wiped:
            return False
        if fault.kind != "power" and not self.watch.excused:
            return False
        if out_of_sync(self):
            return True
        self.watch.on_all_in_sync()
        return False

    def _end_faults(self) -> None:
        self.note("everything heals")
        self.healing = True
        for ending in list(self._endings):
            self._endings.remove(ending)
            ending()
        cluster = self.cluster
        cluster.net.reset_chance = 0.0
        cluster.net.slow.clear()
        cluster.net.heal()
        for machine in cluster.machines.values():
            machine.resume()
        self.start(*cluster.machines)
        self.hurting = False
        self._stop_twins()
        self._replace_damaged_disks()
        self.ledger.healed = True
        for client in self.clients:
            client.pace = max(getattr(client, "pace", 0.0), QUIET_PACE_S)
        self._run_until(
            lambda: not refusing(self), WRITABLE_S, lambda: f"partitions {refusing(self)} take no records again"
        )
        self._run_until(lambda: not not_serving(self), QUIET_S, lambda: f"nodes {not_serving(self)} do not serve again")
        self._run_until(
            lambda: not find_unowned(self), QUIET_S, lambda: f"groups are not stable ({find_unowned(self)})"
        )

    def _can_do_without(self, node: int) -> bool:
        if not out_of_sync(self):
            self.watch.on_all_in_sync()
        return may_lose(self, node)

    def _stop_twins(self) -> None:
        """Where two processes had one id, only the first is left; what the second had kept must be elsewhere."""
        for twin in list(self.cluster.twins):
            if self.took_over(twin):
                self._run_until(
                    lambda twin=twin: self._can_do_without(twin.id),  # type: ignore[misc]
                    QUIET_S,
                    lambda twin=twin: f"not everything of {twin.name} was copied",  # type: ignore[misc]
                )
            self.end_twin(twin)

    def _replace_damaged_disks(self) -> None:
        """An operator who finds damaged disks replaces one after the other, each once the others have everything."""
        while self.violation is None:
            damaged = [machine.id for machine in self.cluster.machines.values() if machine.damaged is not None]
            if not damaged:
                return
            self._run_until(
                lambda damaged=damaged: any(map(self._can_do_without, damaged)),  # type: ignore[misc]
                QUIET_S,
                lambda damaged=damaged: f"not everything of nodes {damaged} was copied",  # type: ignore[misc]
            )
            node = next(filter(self._can_do_without, damaged), damaged[0])
            self.wipe(node)
            self.start(node)

    def _stop_load(self) -> None:
        readers = [client for client in self.clients if isinstance(client, SimConsumer)]
        busy = [client for client in self.clients if client not in readers]
        for client in busy:
            client.stopping = True
        self._run_until(
            lambda: all(client.done for client in busy),
            QUIET_S,
            lambda: f"{[client.name for client in busy if not client.done]} could not finish",
        )
        self._run_until(
            lambda: not find_unsettled(self), QUIET_S, lambda: f"replicas did not become equal ({find_unsettled(self)})"
        )
        if self.violation is not None:
            return
        for reader in readers:
            reader.ends = partition_ends(self, "t")
        self._run_until(
            lambda: all(reader.done for reader in readers),
            QUIET_S,
            lambda: f"{[reader.name for reader in readers if not reader.done]} could not read everything",
        )


def _settings(plan: RunPlan, factor: int) -> dict[str, str]:
    in_sync = "2" if factor == 3 else "1"
    settings = {
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
    }
    if plan.flush:
        settings["log.flush.interval.messages"] = "1"
    if plan.snapshots:
        settings["metadata.log.max.record.bytes.between.snapshots"] = "400"
    if plan.hot:
        settings |= {
            "log.roll.ms": "1000",
            "log.cleaner.backoff.ms": "500",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.cleaner.delete.retention.ms": str(plan.tombstones_ms),
            "log.cleaner.dedupe.buffer.size": str(1 << 20),
        }
    return settings


class _LogCapture(io.StringIO):
    """Lets what nodes write into their logs become a part of the story."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def write(self, text: str) -> int:
        for line in text.rstrip("\n").split("\n"):
            message = line.split(" ", 2)[-1] if line[:2] == "20" else line
            self._cluster.note(f"    {self._cluster.loop.process}: {message}")
        return len(text)


def run_seed(seed: int, *, plan: RunPlan | None = None, verbose: bool = False) -> RunResult:
    """Run a seed, or a plan made of one."""
    run = Run(plan or draw_plan(seed))
    configure(Level.INFO if verbose else Level.OFF, _LogCapture(run.cluster) if verbose else None)
    try:
        secrets = seeded_secrets(run.cluster.chance("secrets"))
        with warnings.catch_warnings(), secrets, encryption_in_memory():
            # Killed processes leave coroutines that never began.
            warnings.simplefilter("ignore", RuntimeWarning)
            outcome = run.execute()
            del run
            gc.collect()
        return outcome
    finally:
        configure()


__all__ = ["Run", "RunPlan", "RunResult", "draw_plan", "run_seed"]
