"""What operators do to a cluster at work: leaders, replicas, voters, topics, partitions and settings change."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from simulation.fault import Fault, FaultStarter
from simulation.limits import voters_are_whole

if TYPE_CHECKING:
    from simulation.run import Run


def _ask_admin(run: "Run", work: Coroutine[Any, Any, Any]) -> None:
    run.cluster.loop.spawn(run.admin.process, work, name="admin")


def _move_leaders(run: "Run", _: Fault) -> None:
    run.note("preferred leaders are elected")
    _ask_admin(run, run.admin.elect_preferred())


def _reassign(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Take every partition off one node, and bring it back in another order."""
    nodes = run.cluster.layout.brokers
    gone = fault.nodes[0]
    if run.factor < 3 or gone not in nodes:
        return None
    left = [node for node in nodes if node != gone]
    run.note(f"all partitions leave node {gone}")
    _ask_admin(run, run.admin.reassign("t", {i: _turn(left, i)[:3] for i in range(run.partitions)}))

    def back() -> None:
        run.note(f"all partitions come back to node {gone}")
        _ask_admin(run, run.admin.reassign("t", {i: _turn(nodes, i)[:3] for i in range(run.partitions)}))

    return back


def _turn(nodes: list[int], by: int) -> list[int]:
    by %= len(nodes)
    return nodes[by:] + nodes[:by]


def _change_config(run: "Run", fault: Fault) -> None:
    size = 1 << (14 + int(fault.size * 4))
    run.note(f"segments of the topic are {size} bytes from now on")
    _ask_admin(run, run.admin.configure("t", "segment.bytes", str(size)))


def _recreate_topic(run: "Run", fault: Fault) -> None:
    run.note("another topic is made, deleted and made again")
    run.ledger.lossy.add("junk")
    _ask_admin(run, run.admin.recreate("junk", 1 + fault.nodes[0]))


def _grow(run: "Run", _: Fault) -> None:
    run.wanted += 1
    run.note(f"the topic gets a partition more: {run.wanted}")
    _ask_admin(run, run.admin.add_partitions("t", run.wanted))


def _change_voters(run: "Run", fault: Fault) -> Callable[[], None] | None:
    """Let a controller vote no more for a while."""
    node = fault.nodes[0]
    cluster = run.cluster
    if not cluster.layout.dynamic or node not in cluster.layout.controllers:
        return None
    if run.admin.changing_voters or not voters_are_whole(run):
        return None
    run.admin.changing_voters = True
    run.note(f"node {node} is to vote no more")
    _ask_admin(run, run.admin.remove_voter(cluster.voter(node)))

    def back() -> None:
        run.note(f"node {node} is to vote again")
        _ask_admin(run, run.admin.bring_voter(cluster.voter(node)))

    return back


OPERATORS: dict[str, FaultStarter] = {
    "move leaders": _move_leaders,
    "reassign": _reassign,
    "change config": _change_config,
    "recreate topic": _recreate_topic,
    "more partitions": _grow,
    "change voters": _change_voters,
}
