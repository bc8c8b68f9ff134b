"""How much may be lost at once: where the promises of replication end, no fault goes further.

A machine that loses data is restored from the others. Until it is in sync again no other machine may lose anything. The
quorum has a rule of its own: where voters are fixed, a voter may forget its log and its vote
only if the others have all that was committed and no election is under way.
"""

from typing import TYPE_CHECKING, Any

from klamm.raft.core.roles import Follower, Leader
from simulation.cluster import Machine

if TYPE_CHECKING:
    from simulation.run import Run

Key = tuple[bytes, int]


def replicas_of(machine: Machine) -> list[Any]:
    """The replicas of the process that runs on a machine."""
    services = getattr(machine.node, "services", None)
    return list(services.replicas) if services is not None and machine.running else []


def out_of_sync(run: "Run", without: int = -1) -> bool:
    """Whether any replica is missing anywhere; `without` may be."""
    machines = [machine for machine in run.cluster.machines.values() if machine.id != without]
    if not all(machine.serving and machine.node is not None for machine in machines):
        return True
    led: set[Key] = set()
    for machine in (*run.cluster.machines.values(), *run.cluster.twins):
        for replica in replicas_of(machine):
            if replica.leads:
                led.add((replica.topic_id, replica.index))
                if set(replica.state.replicas) - set(replica.state.isr) - {without}:
                    return True
    known = {
        (topic.id, index)
        for machine in machines
        for topic, index, _ in machine.node.services.metadata.image.topics.partitions()  # type: ignore[union-attr]
    }
    return led != known


def may_lose(run: "Run", node: int) -> bool:
    """Whether the cluster can do without everything this node has on its disk."""
    if out_of_sync(run, node) or run.watch.excused - {node}:
        return False
    if node not in run.cluster.layout.controllers:
        return True
    return not run.admin.changing_voters and _quorum_can_do_without(run, node)


def voters_are_whole(run: "Run") -> bool:
    """Whether every voter still has its disk: then one of them can be let go."""
    alive = {run.cluster.voter(controller).key for controller in run.cluster.layout.controllers}
    cores = [core for core in map(_core_of, run.cluster.machines.values()) if core is not None]
    newest = max(cores, key=lambda core: core.epoch, default=None)
    return newest is not None and {voter.key for voter in newest.voters} <= alive


def _core_of(machine: Machine) -> Any:
    """The quorum's member of the process that runs on a machine; None while it has not opened its files."""
    services = getattr(machine.node, "services", None) if machine.running else None
    return getattr(services.raft, "core", None) if services is not None else None


def _quorum_can_do_without(run: "Run", node: int) -> bool:
    """Whether a voter can forget everything; its own process may be gone already."""
    cluster = run.cluster
    others = [cluster.machines[controller] for controller in cluster.layout.controllers if controller != node]
    cores = [machine.node.services.raft.core for machine in others]  # type: ignore[union-attr]
    own = _core_of(cluster.machines[node])
    if own is not None:
        cores.append(own)
    if not all(isinstance(core.state, (Leader, Follower)) for core in cores) or len({c.epoch for c in cores}) != 1:
        return False
    committed = max(core.high_watermark for core in cores)
    if any(core.log.persisted_offset < committed for core in cores[: len(others)]):
        return False
    if not cluster.layout.dynamic:
        return bool(others)
    alive = {cluster.voter(controller).key for controller in cluster.layout.controllers}
    return all({voter.key for voter in core.voters} == alive for core in cores)
