"""What happens to disks: slow, full, failing, with a bit turned over, replaced by an empty one or by an old copy."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.fault import Fault, FaultStarter

if TYPE_CHECKING:
    from simulation.run import Run


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


def _bit_flip(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Turn over a bit in a partition's files while the node is down; every reader must detect it."""
    node = fault.nodes[0]
    machine = run.cluster.machines[node]
    if not machine.is_broker:
        return None
    machine.kill()
    path = machine.image.flip(run.cluster.fault_chance, lambda name: QUORUM not in name)
    run.watch.record_loss(node)
    run.ledger.damaged.add(node)
    machine.damaged = path
    run.note(f"node {node} is killed, and a bit of {path} turns over")
    return lambda: run.start(node)


def _quorum_bit_flip(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Turn over a bit in what a voter has: its log, its vote, a snapshot. It refuses to start, or it does not matter.

    A log that was not closed may end anywhere: there a voter cannot tell a torn write from a damaged one, and forgets
    it. So this happens only while the others could do without all of its disk.
    """
    node = fault.nodes[0]
    machine = run.cluster.machines[node]
    if node not in run.cluster.layout.controllers:
        return None
    machine.kill()
    wanted = QUORUM_FILES[int(fault.size * len(QUORUM_FILES)) % len(QUORUM_FILES)]
    chance = run.cluster.fault_chance
    path = machine.image.flip(chance, lambda name: QUORUM in name and name.endswith(wanted))
    path = path or machine.image.flip(chance, lambda name: QUORUM in name)
    run.watch.record_loss(node)
    machine.damaged = path
    run.note(f"node {node} is killed, and a bit of {path} turns over")
    return lambda: run.start(node)


def _wiped_disk(run: "Run", fault: Fault) -> Callable[[], None]:
    """The node comes back with an empty disk."""
    node = fault.nodes[0]
    run.wipe(node)
    return lambda: run.start(node)


def _old_disk(run: "Run", fault: Fault) -> Callable[[], None]:
    """Keep a copy of a disk; some time later the node comes back with it."""
    node = fault.nodes[0]
    machine = run.cluster.machines[node]
    machine.remember()

    def back() -> None:
        if run.healing or not run.may_lose(node) or machine.old_image is None:
            return
        machine.kill()
        machine.go_back()
        run.watch.record_loss(node)
        run.note(f"node {node} is killed, and its disk is what it was {fault.lasts:.2f} s ago")
        run.cluster.loop.call_in(run.cluster.loop.outside, 0.5, run.start, node)

    return back


QUORUM = "__cluster_metadata"
QUORUM_FILES = (".log", "quorum-state", ".checkpoint", "leader-epoch-checkpoint", "")
"""How the files of a voter end: what it says, whom it voted for, its snapshots, who wrote what; and any."""
DISKS: dict[str, FaultStarter] = {
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "failing sync": _failing_sync,
    "bit flip": _bit_flip,
    "quorum bit flip": _quorum_bit_flip,
    "wiped disk": _wiped_disk,
    "old disk": _old_disk,
}
