"""What can go wrong: each fault knows how it begins, how it ends, and how to say so.

A plan is a list of faults with times; dropping one changes nothing in the others, which is what lets a failing run be
made shorter.
"""

from collections.abc import Sequence
from random import Random

from simulation.disk_faults import DISKS
from simulation.fault import Fault, FaultStarter
from simulation.layout import BOTH, BROKER, CONTROLLER, Layout
from simulation.network_faults import NETWORK
from simulation.operator_faults import OPERATORS
from simulation.process_faults import PROCESSES

KINDS: dict[str, FaultStarter] = {**NETWORK, **PROCESSES, **DISKS, **OPERATORS}

UNCLEAN = frozenset({"kill", "power", "full disk", "failing sync"})
"""After these a process has not said goodbye to its disk."""
LOSING = frozenset({"bit flip", "quorum bit flip", "wiped disk"})
"""After these a disk has lost what it had synced. (An old disk is judged when it comes back.)"""
HARMLESS = frozenset({*OPERATORS, "duplicate", "clock jump", "clock drift", "kill client", "pause client"})
"""These take no node out of sight."""
AIMED = {
    "reassign": (BOTH, BROKER),
    "bit flip": (BOTH, BROKER),
    "quorum bit flip": (BOTH, CONTROLLER),
    "two with one id": (BROKER,),
    "change voters": (BOTH, CONTROLLER),
}
"""Faults that make sense for nodes of some roles only."""
__all__ = ["HARMLESS", "KINDS", "LOSING", "UNCLEAN", "Fault", "FaultStarter", "draw"]


def draw(
    chance: Random, kinds: Sequence[str], layout: Layout, seconds: float, count: int, *, flush: bool
) -> list[Fault]:
    """Faults at random times, of the given kinds."""
    faults = []
    nodes = len(layout.roles)
    for _ in range(count):
        kind = chance.choice(kinds)
        order = chance.sample(range(1, nodes + 1), nodes)
        at, lasts = chance.uniform(0.0, seconds), chance.uniform(0.2, seconds / 3)
        size = 0.0
        chosen = tuple(order[:1])
        if kind in AIMED:
            chosen = tuple(node for node in order if layout.roles[node] in AIMED[kind])[:1]
        if kind == "cut one way":
            chosen = tuple(order[:2]) if nodes > 1 else ()
        elif kind == "kill":
            chosen = tuple(order) if chance.random() < 0.15 else tuple(order[:1])
        elif kind == "power":
            lasts = chance.uniform(0.2, 3.0)
            if flush and chance.random() < 0.5:
                chosen = tuple(order)
        elif kind == "delay":
            size = chance.choice((0.02, 0.2, 1.0))
        elif kind == "resets":
            size = chance.choice((0.002, 0.01, 0.05))
        elif kind == "slow disk":
            size = chance.uniform(0.05, 2.0)
        elif kind == "clock jump":
            size = chance.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        elif kind == "clock drift":
            size = chance.uniform(0.9, 1.1)
        elif kind in ("kill client", "pause client", "change config", "depose", "quorum bit flip"):
            size = chance.random()
        if kind in LOSING:
            lasts = chance.uniform(0.2, 3.0)
        if chosen:
            faults.append(Fault(round(at, 3), kind, chosen, round(lasts, 3), round(size, 3)))
    faults.sort(key=lambda fault: fault.at)
    return faults
