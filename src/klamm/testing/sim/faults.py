"""What can go wrong: each fault knows how it begins, how it ends, and how to say so.

A plan is a list of faults with times; dropping one changes nothing in the others, which is what lets a failing run be
made shorter.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.testing.sim.run import Run


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens: at a time, to some nodes, for a while."""

    at: float
    kind: str
    nodes: tuple[int, ...]
    lasts: float
    size: float = 0.0

    def __str__(self) -> str:
        who = " and ".join(map(str, self.nodes))
        return f"at {self.at:.2f} s, for {self.lasts:.2f} s: {self.kind} {who}".rstrip()


Begin = Callable[["Run", Fault], Callable[[], None] | None]
"""Starts a fault and returns what ends it."""


def _host(run: "Run", node: int) -> str:
    return run.cluster.machines[node].host


def _cut_one_way(run: "Run", fault: Fault) -> Callable[[], None]:
    source, target = (_host(run, node) for node in fault.nodes[:2])
    run.cluster.net.cut(source, target)
    run.note(f"what node {fault.nodes[0]} sends to node {fault.nodes[1]} does not arrive any more")
    return lambda: run.cluster.net.heal(source, target)


def _isolate(run: "Run", fault: Fault) -> Callable[[], None]:
    """Cut nodes off from all others; clients still reach them."""
    net = run.cluster.net
    inside = [_host(run, node) for node in fault.nodes]
    outside = [m.host for m in run.cluster.machines.values() if m.host not in inside]
    pairs = [pair for a in inside for b in outside for pair in ((a, b), (b, a))]
    for pair in pairs:
        net.cut(*pair)
    run.note(f"node {' and '.join(map(str, fault.nodes))} is cut off from the other nodes")

    def heal() -> None:
        for pair in pairs:
            net.heal(*pair)

    return heal


def _vanish(run: "Run", fault: Fault) -> Callable[[], None]:
    """Cut a node off from everybody, clients too."""
    net = run.cluster.net
    here = _host(run, fault.nodes[0])
    others = [m.host for m in run.cluster.machines.values() if m.host != here] + [c.name for c in run.clients]
    for other in others:
        net.cut(here, other)
        net.cut(other, here)
    run.note(f"node {fault.nodes[0]} cannot be reached by anybody")

    def heal() -> None:
        for other in others:
            net.heal(here, other)
            net.heal(other, here)

    return heal


def _delay(run: "Run", fault: Fault) -> Callable[[], None]:
    net = run.cluster.net
    here = _host(run, fault.nodes[0])
    pairs = [pair for m in run.cluster.machines.values() for pair in ((here, m.host), (m.host, here))]
    for pair in pairs:
        net.slow[pair] = fault.size
    run.note(f"everything to and from node {fault.nodes[0]} takes up to {fault.size:.2f} s")

    def heal() -> None:
        for pair in pairs:
            net.slow.pop(pair, None)

    return heal


def _resets(run: "Run", fault: Fault) -> Callable[[], None]:
    run.cluster.net.reset_chance = fault.size
    run.note("connections break now and then")

    def heal() -> None:
        run.cluster.net.reset_chance = 0.0

    return heal


def _half_open(run: "Run", fault: Fault) -> None:
    net = run.cluster.net
    here = _host(run, fault.nodes[0])
    for end in [e for e in net.ends.values() if e.process.host == here and run.cluster.fault_chance.random() < 0.5]:
        if not end.closed:
            net.forget(end)
    run.note(f"node {fault.nodes[0]} has lost connections that their other ends believe in")


def _duplicate(run: "Run", _: Fault) -> Callable[[], None]:
    producers = [client for client in run.clients if hasattr(client, "duplicate_chance")]
    for client in producers:
        client.duplicate_chance = 0.3
    run.note("requests of producers arrive twice now and then")

    def heal() -> None:
        for client in producers:
            client.duplicate_chance = 0.0

    return heal


def _kill(run: "Run", fault: Fault) -> Callable[[], None]:
    for node in fault.nodes:
        run.cluster.machines[node].kill()
    run.note(f"node {' and '.join(map(str, fault.nodes))} is killed")
    return lambda: run.start(*fault.nodes)


def _stop(run: "Run", fault: Fault) -> Callable[[], None]:
    for node in fault.nodes:
        run.cluster.machines[node].stop()
    run.note(f"node {' and '.join(map(str, fault.nodes))} is asked to stop")
    return lambda: run.start(*fault.nodes)


def _pause(run: "Run", fault: Fault) -> Callable[[], None]:
    machine = run.cluster.machines[fault.nodes[0]]
    process = machine.process
    machine.pause()
    run.note(f"node {fault.nodes[0]} stands still")

    def resume() -> None:
        if process is not None and process.alive:
            run.cluster.loop.resume(process)
            run.note(f"node {fault.nodes[0]} goes on")

    return resume


def _power(run: "Run", fault: Fault) -> Callable[[], None]:
    for node in fault.nodes:
        lost = run.cluster.machines[node].lose_power()
        if run.plan.flush:
            run.note(f"node {node} loses power, and {lost} writes that were not synced")
        else:
            run.watch.excused.add(node)
            run.note(f"node {node} loses power, and {lost} writes that were not synced")
    return lambda: run.start(*fault.nodes)


def _slow_disk(run: "Run", fault: Fault) -> Callable[[], None]:
    machine = run.cluster.machines[fault.nodes[0]]
    machine.sync_delay_s = fault.size
    run.note(f"the disk of node {machine.id} takes up to {fault.size:.2f} s")

    def heal() -> None:
        machine.sync_delay_s = 0.0

    return heal


def _full_disk(run: "Run", fault: Fault) -> Callable[[], None]:
    machine = run.cluster.machines[fault.nodes[0]]
    machine.full = True
    if machine.disk is not None:
        machine.disk.full = True
    run.note(f"the disk of node {machine.id} is full")

    def heal() -> None:
        machine.full = False
        if machine.disk is not None:
            machine.disk.full = False
        run.start(machine.id)

    return heal


def _failing_sync(run: "Run", fault: Fault) -> Callable[[], None]:
    machine = run.cluster.machines[fault.nodes[0]]
    disk = machine.disk
    if disk is not None:
        disk.failing_syncs = True
    run.note(f"syncs of node {machine.id} fail")

    def heal() -> None:
        if disk is not None:
            disk.failing_syncs = False
        run.start(machine.id)

    return heal


def _clock_jump(run: "Run", fault: Fault) -> Callable[[], None]:
    clock = run.cluster.machines[fault.nodes[0]].clock
    clock.offset_ms += int(fault.size)
    run.note(f"the wall clock of node {fault.nodes[0]} jumps by {fault.size / 1000:.0f} s")

    def heal() -> None:
        clock.offset_ms -= int(fault.size)

    return heal


def _kill_client(run: "Run", fault: Fault) -> Callable[[], None] | None:
    killable = [client for client in run.clients if getattr(client, "killable", False)]
    if not killable:
        return None
    client = killable[int(fault.size * len(killable)) % len(killable)]
    client.kill()
    run.note(f"{client.name} is killed")

    def back() -> None:
        if not client.process.alive:
            client.restart()
            run.note(f"{client.name} is back")

    return back


def _pause_client(run: "Run", fault: Fault) -> Callable[[], None] | None:
    clients = [client for client in run.clients if client.process.alive]
    if not clients:
        return None
    client = clients[int(fault.size * len(clients)) % len(clients)]
    process = client.process
    run.cluster.loop.pause(process)
    run.note(f"{client.name} stands still")

    def resume() -> None:
        if process.alive:
            run.cluster.loop.resume(process)
            run.note(f"{client.name} goes on")

    return resume


def _ask_admin(run: "Run", work: Coroutine[Any, Any, None]) -> None:
    run.cluster.loop.spawn(run.admin.process, work, name="admin")


def _move_leaders(run: "Run", _: Fault) -> None:
    run.note("preferred leaders are elected")
    _ask_admin(run, run.admin.elect_preferred())


def _reassign(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Take every partition off one node, and bring it back in another order."""
    nodes = sorted(run.cluster.machines)
    if len(nodes) < 3 or run.plan.factor < 3:
        return None
    gone = fault.nodes[0]
    left = [node for node in nodes if node != gone]
    indexes = range(run.plan.partitions)
    run.note(f"all partitions leave node {gone}")
    _ask_admin(run, run.admin.reassign("t", {i: left[i % 2 :] + left[: i % 2] for i in indexes}))

    def back() -> None:
        run.note(f"all partitions come back to node {gone}")
        _ask_admin(run, run.admin.reassign("t", {i: nodes[i % 3 :] + nodes[: i % 3] for i in indexes}))

    return back


def _change_config(run: "Run", fault: Fault) -> None:
    size = 1 << (14 + int(fault.size * 4))
    run.note(f"segments of the topic are {size} bytes from now on")
    _ask_admin(run, run.admin.configure("t", "segment.bytes", str(size)))


def _recreate_topic(run: "Run", fault: Fault) -> None:
    run.note("another topic is made, deleted and made again")
    run.ledger.lossy.add("junk")
    _ask_admin(run, run.admin.recreate("junk", 1 + fault.nodes[0]))


KINDS: dict[str, Begin] = {
    "cut one way": _cut_one_way,
    "isolate": _isolate,
    "vanish": _vanish,
    "delay": _delay,
    "resets": _resets,
    "half open": _half_open,
    "duplicate": _duplicate,
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "power": _power,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "failing sync": _failing_sync,
    "clock jump": _clock_jump,
    "kill client": _kill_client,
    "pause client": _pause_client,
    "move leaders": _move_leaders,
    "reassign": _reassign,
    "change config": _change_config,
    "recreate topic": _recreate_topic,
}


def draw(chance: Random, kinds: list[str], nodes: int, seconds: float, count: int, *, flush: bool) -> list[Fault]:
    """Faults at random times, of the given kinds."""
    faults = []
    for _ in range(count):
        kind = chance.choice(kinds)
        order = chance.sample(range(1, nodes + 1), nodes)
        at, lasts = chance.uniform(0.0, seconds), chance.uniform(0.2, seconds / 3)
        size = 0.0
        chosen = tuple(order[:1])
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
        elif kind in ("kill client", "pause client", "change config"):
            size = chance.random()
        if chosen:
            faults.append(Fault(round(at, 3), kind, chosen, round(lasts, 3), round(size, 3)))
    faults.sort(key=lambda fault: fault.at)
    return faults
