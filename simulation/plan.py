"""What a run does: how the cluster is made, who loads it, what goes wrong and when. A seed draws all of it.

Half of the seeds draw from everything there is. The others draw one of the situations below, in which certain faults
meet a load that makes them matter: what is rare among all seeds is common among these.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from simulation.faults import KINDS, Fault, draw
from simulation.layout import Layout

FREE = 0.5
"""The share of seeds that draw from everything."""
SECURED = 0.15
"""The share of seeds whose clusters require logins and rights."""
ENCRYPTED = 0.4
"""The share of these whose connections are encrypted."""
SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does; drawn from its seed, or made shorter by hand."""

    seed: int
    layout: str = "combined"
    dynamic: bool = False
    """Whether voters may change."""
    racks: bool = False
    """Whether brokers have racks, and consumers read from the replica in theirs."""
    factor: int = 3
    partitions: int = 2
    producers: int = 2
    consumers: int = 1
    transactional: int = 0
    eager: int = 0
    """Transactional producers that begin again at once, on all partitions."""
    pipelined: int = 0
    """Producers that send on without waiting for answers."""
    copiers: int = 0
    members: int = 0
    classic: int = 0
    keyed: int = 0
    """Producers of a compacted topic."""
    hot: bool = False
    """Whether segments are short and compaction never rests."""
    snapshots: bool = False
    """Whether the metadata is summed up again and again."""
    tombstones_ms: int = 86_400_000
    """How long compaction keeps tombstones."""
    pace: float = 0.1
    seconds: float = SECONDS
    events: int = 20_000
    secured: bool = False
    """Whether all listeners require logins, nodes have an authorizer, and rights and passwords of some users change."""
    tls: bool = False
    """Whether these listeners are encrypted."""
    flush: bool = False
    """Whether records are synced before they are acknowledged: then every machine may lose power at once."""
    faults: tuple[Fault, ...] = ()
    situation: str = ""

    @property
    def nodes(self) -> Layout:
        """The machines."""
        return Layout.by_name(self.layout, dynamic=self.dynamic, racks=self.racks, secured=self.secured, tls=self.tls)


def draw_plan(seed: int) -> RunPlan:
    """The plan of a seed."""
    chance = Random(f"{seed}/plan")
    if chance.random() < FREE:
        plan = _draw_freely(seed, chance)
    else:
        plan = draw_situation(seed, chance.choice(sorted(SITUATIONS)))
    # Sources of their own, so that all else of a seed stays what it is.
    if Random(f"{seed}/secured").random() < SECURED:
        plan = replace(plan, secured=True)
    tls = plan.secured and Random(f"{seed}/tls").random() < ENCRYPTED
    return replace(plan, tls=True) if tls else plan


def draw_situation(seed: int, name: str) -> RunPlan:
    """The plan of a seed in a situation."""
    return SITUATIONS[name](seed, Random(f"{seed}/{name}"))


def _draw_freely(seed: int, chance: Random) -> RunPlan:
    flush = chance.random() < 0.3
    layout = chance.choice(("combined",) * 6 + ("extra", "apart"))
    dynamic, racks = chance.random() < 0.3, chance.random() < 0.3
    roles = Layout.by_name(layout, dynamic=dynamic)
    chosen = chance.sample(sorted(KINDS), chance.randint(0, 6))
    faults = draw(chance, chosen, roles, SECONDS, chance.randint(1, 10), flush=flush) if chosen else []
    keyed = chance.choice((0, 0, 0, 1))
    return RunPlan(
        seed,
        layout=layout,
        dynamic=dynamic,
        racks=racks,
        partitions=chance.randint(1, 3),
        producers=chance.randint(1, 2),
        consumers=chance.randint(1, 2),
        transactional=chance.choice((0, 0, 1, 2)),
        copiers=chance.choice((0, 0, 0, 1)),
        members=chance.choice((0, 0, 2)),
        classic=chance.choice((0, 0, 0, 2)),
        keyed=keyed,
        hot=bool(keyed) or chance.random() < 0.15,
        tombstones_ms=chance.choice((500, 86_400_000)),
        snapshots=chance.random() < 0.2,
        pace=chance.choice((0.02, 0.05, 0.1)),
        flush=flush,
        faults=tuple(faults),
        eager=chance.choice((0, 0, 0, 1)),
        pipelined=chance.choice((0, 0, 1)),
    )


# --- situations ------------------------------------------------------------------------------------------------------

Situation = Callable[[int, Random], RunPlan]
SITUATIONS: dict[str, Situation] = {}


def _situation(name: str) -> Callable[[Situation], Situation]:
    def register(make: Situation) -> Situation:
        SITUATIONS[name] = make
        return make

    return register


def _faults(
    chance: Random, plan: RunPlan, kinds: tuple[str, ...], count: tuple[int, int], lasts: tuple[float, float]
) -> tuple[Fault, ...]:
    drawn = draw(chance, kinds, plan.nodes, plan.seconds, chance.randint(*count), flush=plan.flush)
    return tuple(Fault(f.at, f.kind, f.nodes, round(chance.uniform(*lasts), 3), f.size) for f in drawn)


@_situation("the quorum is shaken")
def _quorum_leaders_change(seed: int, chance: Random) -> RunPlan:
    """Over slow paths one leader of the quorum after the other is deposed, often just when a voter comes back that was
    away; and metadata changes all the time.
    """
    plan = RunPlan(seed, partitions=1, producers=1, consumers=0, pace=0.5, seconds=60, situation="the quorum is shaken")
    faults = [Fault(0.0, "delay", (node,), plan.seconds, chance.choice((0.05, 0.4, 1.5))) for node in (1, 2, 3)]
    at = 1.0
    while at < plan.seconds - 5:
        way = chance.random()
        if way < 0.3:  # all begin again at once
            faults.append(Fault(round(at, 3), "kill", (1, 2, 3), round(chance.uniform(0.1, 0.5), 3)))
            at += chance.uniform(2.0, 4.0)
            continue
        if way < 0.7:
            away = chance.uniform(1.5, 4.0)
            kind = chance.choice(("isolate", "pause", "vanish", "kill"))
            faults.append(Fault(round(at, 3), kind, (chance.randint(1, 3),), round(away, 3)))
            at += away + chance.uniform(-0.3, 0.2)
        lasts = chance.choice((0.1, 0.3, 2.0, 3.0, 4.0)) * chance.uniform(0.8, 1.2)
        faults.append(Fault(round(at, 3), "depose", (1,), round(lasts, 3), round(chance.random(), 3)))
        at += lasts + chance.uniform(0.0, 2.0)
    kinds = ("recreate topic", "change config", "change config", "move leaders")
    return _with_faults(plan, tuple(faults), _faults(chance, plan, kinds, (40, 60), (0.1, 0.2)))


@_situation("the lights go out")
def _all_lose_power(seed: int, chance: Random) -> RunPlan:
    """All machines lose power at once, again and again; what was acknowledged had been synced."""
    plan = RunPlan(seed, flush=True, transactional=1, pace=0.05, situation="the lights go out")
    dark = tuple(
        Fault(round(at + chance.random(), 3), "power", (1, 2, 3), round(chance.uniform(0.2, 1.0), 3))
        for at in range(2, int(plan.seconds), 4)
    )
    return _with_faults(plan, dark, _faults(chance, plan, ("slow disk", "kill", "recreate topic"), (0, 4), (0.5, 3.0)))


@_situation("one machine at a time")
def _one_at_a_time(seed: int, chance: Random) -> RunPlan:
    """Machines lose power or their disks, and come back at once."""
    plan = RunPlan(seed, pace=0.03, consumers=2, situation="one machine at a time")
    kinds = chance.sample(("power", "kill", "wiped disk", "old disk", "bit flip"), 3)
    return _with_faults(plan, _faults(chance, plan, ("power", *kinds), (6, 12), (0.1, 1.5)))


@_situation("followers fall behind")
def _followers_fall_behind(seed: int, chance: Random) -> RunPlan:
    """A follower falls out of sync, and while it is behind, or comes back, others stop."""
    plan = RunPlan(seed, pace=0.02, producers=2, partitions=2, situation="followers fall behind")
    faults = []
    at = 0.5
    while at < plan.seconds - 6:
        behind, first, second = chance.sample((1, 2, 3), 3)
        lasts = chance.uniform(3.5, 5.0)
        kind = chance.choice(("vanish", "isolate", "pause"))
        faults.append(Fault(round(at, 3), kind, (behind,), round(lasts, 3)))
        soon = at + lasts + chance.choice((-0.6, -0.2, 0.0, 0.05, 0.2, 0.5))
        faults += [
            Fault(round(soon, 3), chance.choice(("kill", "stop", "vanish")), (node,), 1.5)
            for node in (first, second)[: chance.choice((1, 2, 2))]
        ]
        at += lasts + 2.5
    return _with_faults(plan, tuple(faults))


@_situation("leaders change")
def _leaders_change(seed: int, chance: Random) -> RunPlan:
    """Leadership moves all the time under producers whose requests come twice."""
    plan = RunPlan(seed, pace=0.02, partitions=2, consumers=2, situation="leaders change")
    twice = (Fault(0.0, "duplicate", (1,), plan.seconds),)
    slow = (Fault(0.0, "delay", (chance.randint(1, 3),), plan.seconds, chance.choice((0.02, 0.2))),)
    kinds = ("move leaders", "kill", "stop", "isolate", "pause", "resets", "reassign")
    return _with_faults(plan, twice, slow, _faults(chance, plan, kinds, (8, 14), (0.3, 4.0)))


@_situation("transactions")
def _transactions(seed: int, chance: Random) -> RunPlan:
    """Transactional producers and copiers are killed and paused, coordinators move."""
    plan = RunPlan(seed, producers=1, consumers=2, transactional=2, copiers=1, pace=0.1, situation="transactions")
    kinds = ("kill client", "kill client", "pause client", "kill", "isolate", "move leaders", "delay")
    return _with_faults(plan, _faults(chance, plan, kinds, (6, 12), (0.2, 4.0)))


@_situation("transactions without a pause")
def _tight_transactions(seed: int, chance: Random) -> RunPlan:
    """Producers begin the next transaction at once, on all partitions; some paths are slower than others, and now and
    then a leader moves.
    """
    plan = RunPlan(
        seed,
        producers=0,
        consumers=2,
        partitions=chance.randint(2, 6),
        eager=chance.randint(2, 4),
        pipelined=1,
        pace=0.1,
        situation="transactions without a pause",
    )
    slow = tuple(
        Fault(0.0, "delay", (node,), plan.seconds, chance.choice((0.005, 0.02, 0.05)))
        for node in chance.sample((1, 2, 3), chance.randint(0, 2))
    )
    return _with_faults(
        plan, slow, _faults(chance, plan, ("move leaders", "kill client", "resets"), (0, 4), (0.2, 2.0))
    )


@_situation("members come and go")
def _members(seed: int, chance: Random) -> RunPlan:
    """Members of groups stand still for longer than their session, are killed, and meet more partitions."""
    plan = RunPlan(seed, partitions=3, producers=1, members=2, classic=2, pace=0.3, situation="members come and go")
    drawn = _faults(chance, plan, ("pause client", "pause client", "kill client"), (6, 10), (3.5, 7.0))
    still = tuple(replace(fault, size=round(0.34 + 0.65 * fault.size, 3)) for fault in drawn)  # not others
    return _with_faults(
        plan, still, _faults(chance, plan, ("kill", "move leaders", "more partitions"), (1, 3), (0.5, 3))
    )


@_situation("voters change")
def _voters(seed: int, chance: Random) -> RunPlan:
    """Controllers join and leave a quorum that is not left in peace."""
    layout = chance.choice(("combined", "combined", "apart"))
    plan = RunPlan(seed, layout=layout, dynamic=True, partitions=1, producers=1, pace=0.1, situation="voters change")
    voters = _faults(chance, plan, ("change voters", "change voters", "wiped disk"), (3, 6), (0.5, 4.0))
    busy = _faults(chance, plan, ("isolate", "pause", "kill", "change config", "recreate topic"), (3, 8), (0.3, 3.0))
    return _with_faults(plan, voters, busy)


@_situation("two with one id")
def _twins(seed: int, chance: Random) -> RunPlan:
    """A second broker with a taken id appears, while the first is out of sight or is not."""
    plan = RunPlan(seed, layout="extra", pace=0.05, situation="two with one id")
    twin = (Fault(0.2, "two with one id", (4,), round(chance.uniform(3.0, 12.0), 3)),)
    unseen = _faults(chance, plan, ("pause", "vanish", "isolate", "kill", "stop"), (2, 5), (1.0, 6.0))
    fourth = tuple(Fault(max(f.at / 2, 0.3), f.kind, (4,), f.lasts, f.size) for f in unseen)
    return _with_faults(
        plan, twin, fourth, _faults(chance, plan, ("move leaders", "reassign", "kill"), (0, 3), (0.5, 4))
    )


@_situation("roles apart")
def _apart(seed: int, chance: Random) -> RunPlan:
    """Brokers and controllers are processes of their own."""
    layout = chance.choice(("apart", "extra"))
    plan = RunPlan(
        seed,
        layout=layout,
        dynamic=chance.random() < 0.3,
        transactional=1,
        members=2,
        pace=0.1,
        situation="roles apart",
    )
    kinds = chance.sample(sorted(KINDS), 5)
    return _with_faults(plan, _faults(chance, plan, tuple(kinds), (4, 10), (0.2, 6.0)))


@_situation("compaction")
def _compaction(seed: int, chance: Random) -> RunPlan:
    """Compaction never rests, neither in a topic of keys nor in those of the coordinators."""
    plan = RunPlan(
        seed,
        producers=1,
        keyed=2,
        transactional=1,
        copiers=1,
        members=2,
        hot=True,
        tombstones_ms=chance.choice((500, 86_400_000)),
        pace=0.05,
        situation="compaction",
    )
    kinds = ("kill", "power", "move leaders", "reassign", "isolate", "stop", "slow disk")
    return _with_faults(plan, _faults(chance, plan, kinds, (3, 8), (0.3, 3.0)))


@_situation("nearest replicas")
def _nearest(seed: int, chance: Random) -> RunPlan:
    """Consumers read from followers, which fall behind, change and leave."""
    plan = RunPlan(seed, racks=True, consumers=3, transactional=1, pace=0.03, situation="nearest replicas")
    kinds = ("isolate", "delay", "pause", "move leaders", "reassign", "kill", "cut one way")
    return _with_faults(plan, _faults(chance, plan, kinds, (5, 10), (0.3, 5.0)))


@_situation("damaged voters")
def _damaged_voters(seed: int, chance: Random) -> RunPlan:
    """Bits turn over in the files of one voter after the other, while the metadata changes and leaders of the quorum
    are deposed.
    """
    layout = chance.choice(("combined", "combined", "apart"))
    dynamic = chance.random() < 0.4
    plan = RunPlan(
        seed,
        layout=layout,
        dynamic=dynamic,
        snapshots=chance.random() < 0.7,
        partitions=1,
        producers=1,
        pace=0.2,
        situation="damaged voters",
    )
    flips = _faults(chance, plan, ("quorum bit flip",), (6, 10), (0.1, 1.0))
    busy = _faults(chance, plan, ("change config", "change config", "recreate topic"), (10, 20), (0.1, 0.2))
    deposed = _faults(chance, plan, ("depose", "isolate", "pause"), (1, 4), (0.3, 3.0))
    return _with_faults(plan, flips, busy, deposed)


@_situation("clocks disagree")
def _clocks(seed: int, chance: Random) -> RunPlan:
    """No two machines agree on how long a second is, and wall clocks jump, while sessions and elections run out."""
    plan = RunPlan(seed, partitions=2, transactional=1, members=2, pace=0.1, situation="clocks disagree")
    rates = chance.sample((0.9, 0.95, 1.0, 1.05, 1.1), 3)
    drift = tuple(Fault(0.0, "clock drift", (i,), plan.seconds, rate) for i, rate in enumerate(rates, 1))
    jumps = _faults(chance, plan, ("clock jump",), (2, 4), (1.0, 8.0))
    kinds = ("depose", "isolate", "pause", "kill", "vanish", "pause client", "clock drift")
    return _with_faults(plan, drift, jumps, _faults(chance, plan, kinds, (3, 7), (0.5, 5.0)))


@_situation("rights change")
def _rights(seed: int, chance: Random) -> RunPlan:
    """Rights and passwords change on a cluster whose nodes are killed, cut off, and begin from snapshots."""
    layout = chance.choice(("combined", "combined", "combined", "apart"))
    plan = RunPlan(
        seed,
        layout=layout,
        secured=True,
        snapshots=chance.random() < 0.7,
        partitions=1,
        producers=1,
        pace=0.3,
        situation="rights change",
    )
    kinds = ("kill", "kill", "isolate", "pause", "move leaders", "depose", "stop")
    return _with_faults(plan, _faults(chance, plan, kinds, (2, 6), (0.3, 3.0)))


def _with_faults(plan: RunPlan, *faults: tuple[Fault, ...]) -> RunPlan:
    ordered = sorted((fault for some in faults for fault in some), key=lambda fault: fault.at)
    return replace(plan, faults=tuple(ordered))
