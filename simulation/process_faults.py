"""What happens to processes and their machines: killed, stopped, paused, without power, with a wrong clock, doubled."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.fault import Fault, FaultStarter
from simulation.layout import BROKER
from simulation.network_faults import isolate, vanish

if TYPE_CHECKING:
    from simulation.run import Run


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


def _depose(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Pause, cut off, hide or kill the current quorum leader."""
    services = {m.id: getattr(m.node, "services", None) for m in run.cluster.machines.values() if m.running}
    leading = [
        node
        for node, node_services in services.items()
        if node_services is not None and node_services.raft.core.is_leader
    ]
    if not leading:
        return None
    begin = (_pause, isolate, vanish, _pause if run.watch.excused else _kill)[int(fault.size * 4) % 4]
    run.note(f"node {leading[0]} leads the quorum")
    return begin(run, replace(fault, nodes=(leading[0],)))


def _power(run: "Run", fault: Fault) -> Callable[[], None]:
    for node in fault.nodes:
        lost = run.cluster.machines[node].lose_power()
        if not run.plan.flush:
            run.watch.excused.add(node)
        run.note(f"node {node} loses power, and {lost} writes that were not synced")
    return lambda: run.start(*fault.nodes)


def _clock_jump(run: "Run", fault: Fault) -> Callable[[], None]:
    clock = run.cluster.machines[fault.nodes[0]].clock
    clock.offset_ms += int(fault.size)
    run.note(f"the wall clock of node {fault.nodes[0]} jumps by {fault.size / 1000:.0f} s")

    def heal() -> None:
        clock.offset_ms -= int(fault.size)

    return heal


def _clock_drift(run: "Run", fault: Fault) -> Callable[[], None]:
    machine = run.cluster.machines[fault.nodes[0]]
    machine.run_clock_at(fault.size)
    run.note(f"a second of node {machine.id} takes {1 / fault.size:.2f} s")

    def heal() -> None:
        machine.run_clock_at(1.0)

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


def _twin(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Start a second broker with the id of one that exists, on another machine with an empty disk."""
    node = fault.nodes[0]
    if run.cluster.layout.roles[node] != BROKER or any(twin.id == node for twin in run.cluster.twins):
        return None
    twin = run.cluster.make_twin(node)
    run.note(f"an operator starts a second node {node} on another machine")
    twin.start()
    run.watch.attach(twin)

    def end() -> None:
        if not run.took_over(twin):
            run.end_twin(twin)

    return end


PROCESSES: dict[str, FaultStarter] = {
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "power": _power,
    "depose": _depose,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "kill client": _kill_client,
    "pause client": _pause_client,
    "two with one id": _twin,
}
