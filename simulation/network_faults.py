"""What happens to the network: paths that are cut or slow, connections that break, requests that come twice."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.fault import Fault, FaultStarter
from simulation.producers import SimProducer

if TYPE_CHECKING:
    from simulation.run import Run


def _host(run: "Run", node: int) -> str:
    return run.cluster.machines[node].host


def _cut_one_way(run: "Run", fault: Fault) -> Callable[[], None]:
    source, target = (_host(run, node) for node in fault.nodes[:2])
    run.cluster.net.cut(source, target)
    run.note(f"what node {fault.nodes[0]} sends to node {fault.nodes[1]} does not arrive any more")
    return lambda: run.cluster.net.heal(source, target)


def isolate(run: "Run", fault: Fault) -> Callable[[], None]:
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


def vanish(run: "Run", fault: Fault) -> Callable[[], None]:
    """Cut a node off from all nodes and clients."""
    net = run.cluster.net
    here = _host(run, fault.nodes[0])
    others = [m.host for m in run.cluster.machines.values() if m.host != here] + [c.name for c in run.clients]
    for other in others:
        net.cut(here, other)
        net.cut(other, here)
    run.note(f"node {fault.nodes[0]} cannot be reached")

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
    producers = [client for client in run.clients if isinstance(client, SimProducer)]
    for client in producers:
        client.duplicate_chance = 0.3
    run.note("requests of producers arrive twice now and then")

    def heal() -> None:
        for client in producers:
            client.duplicate_chance = 0.0

    return heal


NETWORK: dict[str, FaultStarter] = {
    "cut one way": _cut_one_way,
    "isolate": isolate,
    "vanish": vanish,
    "delay": _delay,
    "resets": _resets,
    "half open": _half_open,
    "duplicate": _duplicate,
}
