"""One run of one seed: a plan is drawn, a cluster is started, loaded and hurt, healed, and judged."""

import gc
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from klamm.telemetry.log import Level, configure
from klamm.testing.sim.admin import Admin
from klamm.testing.sim.cluster import Machine, SimCluster
from klamm.testing.sim.consumers import Consumer
from klamm.testing.sim.faults import KINDS, Fault, draw
from klamm.testing.sim.final import check_end
from klamm.testing.sim.ledger import Ledger, Violation
from klamm.testing.sim.members import Member
from klamm.testing.sim.producers import Producer
from klamm.testing.sim.transactions import TransactionalProducer
from klamm.testing.sim.watch import Watch

UNCLEAN = frozenset({"kill", "power", "full disk", "failing sync"})
"""After these a process has not said goodbye to its disk."""
START_S = 30.0
"""A cluster without faults serves within this time."""
QUIET_S = 60.0
"""After everything has healed, all that was begun is finished within this time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does; drawn from its seed, or made shorter by hand."""

    seed: int
    nodes: int = 3
    factor: int = 3
    partitions: int = 2
    producers: int = 2
    consumers: int = 1
    transactional: int = 0
    members: int = 0
    pace: float = 0.1
    seconds: float = 20.0
    events: int = 20_000
    flush: bool = False
    """Whether records are synced before they are acknowledged: then every machine may lose power at once."""
    faults: tuple[Fault, ...] = ()


def draw_plan(seed: int, nodes: int = 3) -> Plan:
    """The plan of a seed: each draws its own subset of what can go wrong."""
    chance = Random(f"{seed}/plan")
    flush = chance.random() < 0.3
    kinds = sorted(kind for kind in KINDS if nodes > 1 or flush or kind != "power")
    chosen = chance.sample(kinds, chance.randint(0, min(6, len(kinds))))
    seconds = 20.0
    faults = draw(chance, chosen, nodes, seconds, chance.randint(1, 10), flush=flush) if chosen else []
    return Plan(
        seed,
        nodes=nodes,
        partitions=chance.randint(1, 3),
        producers=chance.randint(1, 3),
        consumers=chance.randint(1, 2),
        transactional=chance.choice((0, 0, 1, 2)),
        members=chance.choice((0, 0, 2)),
        pace=chance.choice((0.02, 0.05, 0.1)),
        seconds=seconds,
        flush=flush,
        faults=tuple(faults),
    )


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    plan: Plan
    events: int
    digest: int
    violation: str | None
    story: list[str] = field(default_factory=list)
    acks: int = 0
    reads: int = 0
    seconds: float = 0.0


class Run:
    """A cluster, its load, its faults and its judges."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        factor = min(plan.nodes, plan.factor)
        internal = {
            "offsets.topic.replication.factor": str(factor),
            "transaction.state.log.replication.factor": str(factor),
            "transaction.state.log.min.isr": "2" if factor == 3 else "1",
            "min.insync.replicas": "2" if factor == 3 else "1",
        }
        if plan.flush:
            internal["log.flush.interval.messages"] = "1"
        self.cluster = SimCluster(plan.seed, plan.nodes, internal)
        self.violation: str | None = None
        self.ledger = Ledger(self.violate)
        self.watch = Watch(self.cluster, self.ledger, self.violate)
        self.cluster.on_unexpected = self._ended
        self.cluster.restart = self.start
        self.clients: list[Any] = []
        configs = {"min.insync.replicas": "2" if factor == 3 else "1"}
        self.topics = [("t", plan.partitions, factor, configs)]
        self.hurting = False
        self.admin: Admin
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

    def _ended(self, machine: Machine, text: str, error: BaseException) -> None:
        if not self.hurting and not self.plan.faults:
            self.violate(f"18: node {machine.id} {text} although nothing was wrong")
        self.cluster.loop.call_in(self.cluster.loop.outside, 1.0, self.start, machine.id)

    # --- phases ------------------------------------------------------------------------------------------------------

    def execute(self) -> Outcome:
        """Run the plan from start to judgement."""
        collecting = gc.isenabled()
        gc.disable()  # finalizers would run at times no seed decides
        try:
            self._begin()
            if self.violation is None:
                self._hurt()
            if self.violation is None:
                self._heal()
            if self.violation is None:
                check_end(self)
            if self.violation is not None:
                self._tell_state()
            loop = self.cluster.loop
            return Outcome(
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

    def _tell_state(self) -> None:
        """Add to the story how things stand."""
        for machine in self.cluster.machines.values():
            services = getattr(machine.node, "services", None)
            if services is None or not machine.running:
                self.note(f"node {machine.id} does not run")
                continue
            core = services.raft.core
            provenance = services.metadata.image.provenance
            self.note(
                f"node {machine.id}: quorum epoch {core.epoch}, {'leads, ' if core.is_leader else ''}"
                f"high watermark {core.high_watermark}, metadata up to {provenance.offset}"
            )
            for replica in services.replicas:
                state, log = replica.state, replica.log
                followers = {k: (v.log_end_offset, v.broker_epoch, v.last_fetch_ms) for k, v in state.followers.items()}
                self.note(
                    f"    {replica.topic}-{replica.index}: leader {state.leader} epoch {state.leader_epoch}, in sync"
                    f" {state.isr} epoch {state.partition_epoch} proposed {state.proposed}, {log.log_start_offset} to"
                    f" {log.log_end_offset}, high watermark {state.high_watermark}, followers {followers}"
                )

    def _over(self) -> bool:
        if self.cluster.loop.failures and self.violation is None:
            self.violate(f"0: {self.cluster.loop.failures[0]}")
        return self.violation is not None

    def _run_until(self, done: Callable[[], bool], limit_s: float, complaint: Callable[[], str]) -> None:
        loop = self.cluster.loop
        deadline = loop.time() + limit_s
        loop.run(lambda: self._over() or done(), until=deadline)
        if self.violation is None and not done():
            self.violate(f"18: {complaint()} within {limit_s:.0f} s")

    def _begin(self) -> None:
        machines = self.cluster.machines.values()
        self.start(*self.cluster.machines)
        self._run_until(
            lambda: all(m.serving for m in machines),
            START_S,
            lambda: f"nodes {[m.id for m in machines if not m.serving]} do not serve",
        )
        if self.violation is not None:
            return
        admin = self.admin = Admin(self)
        admin.start()
        self._run_until(lambda: admin.ready, START_S, lambda: "topics were not made")
        self._make_load()

    def _make_load(self) -> None:
        plan = self.plan
        for i in range(plan.producers):
            self.clients.append(Producer(self.cluster, self.ledger, f"producer-{i}", "t", plan.partitions, plan.pace))
        for i in range(plan.consumers):
            self.clients.append(
                Consumer(self.cluster, self.ledger, f"consumer-{i}", "t", plan.partitions, committed_only=bool(i % 2))
            )
        for i in range(plan.transactional):
            self.clients.append(
                TransactionalProducer(self.cluster, self.ledger, i, "t", plan.partitions, 3 * plan.pace)
            )
        for i in range(plan.members):
            self.clients.append(Member(self.cluster, self.ledger, i, "t"))
        for client in self.clients:
            client.start()

    def _hurt(self) -> None:
        loop = self.cluster.loop
        self.hurting = True
        begun = loop.time()
        for fault in self.plan.faults:
            loop.call_in(loop.outside, fault.at, self._strike, fault)
        loop.run(self._over, events=max(self.plan.events - loop.events, 1000), until=begun + self.plan.seconds)

    def _strike(self, fault: Fault) -> None:
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
        """Whether a fault would break what replication promises without syncing.

        A machine that loses what it had not synced is made good by the others; that takes until it is in sync again,
        and so long nobody else may stop uncleanly. (The controller cannot tell a killed process from a lost disk.)
        """
        if self.plan.flush or fault.kind not in UNCLEAN:
            return False
        if fault.kind != "power" and not self.watch.excused:
            return False
        if self._out_of_sync():
            return True
        self.watch.excused.clear()
        return False

    def _out_of_sync(self) -> bool:
        machines = self.cluster.machines.values()
        if not all(machine.serving and machine.node is not None for machine in machines):
            return True
        led = set()
        for machine in machines:
            for replica in machine.node.services.replicas:  # type: ignore[union-attr]
                if replica.leads:
                    led.add((replica.topic_id, replica.index))
                    if len(replica.state.isr) < len(replica.state.replicas):
                        return True
        known = {
            (topic.id, index)
            for machine in machines
            for topic, index, _ in machine.node.services.metadata.image.topics.partitions()  # type: ignore[union-attr]
        }
        return led != known

    def _heal(self) -> None:
        self.note("everything heals")
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
        self._run_until(
            lambda: all(m.serving for m in cluster.machines.values()),
            QUIET_S,
            lambda: f"nodes {[m.id for m in cluster.machines.values() if not m.serving]} do not serve again",
        )
        for client in self.clients:
            client.stopping = True
        busy = [client for client in self.clients if hasattr(client, "done")]
        self._run_until(
            lambda: all(client.done for client in busy),
            QUIET_S,
            lambda: f"{[client.name for client in busy if not client.done]} could not finish",
        )
        self._run_until(self._settled, QUIET_S, lambda: f"replicas did not become equal ({self._unsettled()})")

    def _settled(self) -> bool:
        return not self._unsettled()

    def _unsettled(self) -> str:
        """What is not yet as it should be in a cluster at rest."""
        for machine in self.cluster.machines.values():
            if not machine.serving or machine.node is None:
                return f"node {machine.id} does not serve"
        ends: dict[tuple[bytes, int], set[tuple[int, int]]] = {}
        leaders: dict[tuple[bytes, int], int] = {}
        for machine in self.cluster.machines.values():
            assert machine.node is not None
            for replica in machine.node.services.replicas:
                key = (replica.topic_id, replica.index)
                ends.setdefault(key, set()).add((replica.log.log_end_offset, replica.log.high_watermark))
                if replica.leads:
                    leaders[key] = machine.id
                    if replica.log.last_stable_offset < replica.log.high_watermark:
                        return f"{replica.topic}-{replica.index} has an open transaction"
                    if len(replica.state.isr) < len(replica.state.replicas):
                        return f"{replica.topic}-{replica.index} has only {replica.state.isr} in sync"
        for key, found in ends.items():
            if key not in leaders:
                return f"{key[1]} of {key[0].hex()} has no leader"
            if len(found) > 1 or any(end != mark for end, mark in found):
                return f"{key[1]} of {key[0].hex()} ends at {sorted(found)}"
        return ""


class _Voice(io.StringIO):
    """Lets what nodes write into their logs become a part of the story."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def write(self, text: str) -> int:
        for line in text.rstrip("\n").split("\n"):
            said = line.split(" ", 2)[-1] if line[:2] == "20" else line
            self._cluster.note(f"    {self._cluster.loop.process}: {said}")
        return len(text)


def run_seed(seed: int, *, plan: Plan | None = None, verbose: bool = False, nodes: int = 3) -> Outcome:
    """Run a seed, or a plan made of one."""
    run = Run(plan or draw_plan(seed, nodes))
    configure(Level.INFO if verbose else Level.OFF, _Voice(run.cluster) if verbose else None)
    try:
        with warnings.catch_warnings():
            # Killed processes leave coroutines that never began.
            warnings.simplefilter("ignore", RuntimeWarning)
            outcome = run.execute()
            del run
            gc.collect()
        return outcome
    finally:
        configure()


__all__ = ["Outcome", "Plan", "Run", "Violation", "draw_plan", "replace", "run_seed"]
