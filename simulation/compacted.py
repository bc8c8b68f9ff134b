"""What compaction must leave: the latest record of every key, on every replica, and the markers its records need."""

from typing import TYPE_CHECKING, Any

from klamm.records.batch import BatchView
from simulation.history import WrittenRecord
from simulation.ledger import Place
from simulation.load import KEYS_TOPIC
from simulation.log_content import batches_of, read_batches

if TYPE_CHECKING:
    from simulation.run import Run

LONG_MS = 3_600_000
"""Longer than a run lasts, wrong clocks included."""
WRONG_CLOCKS = frozenset({"clock jump", "clock drift"})
"""After these faults the retention of a tombstone cannot be computed from outside."""


def check_compacted(run: "Run", place: Place, copies: list[tuple[int, Any]]) -> None:
    """Compare every replica of a compacted partition with what it was given, and all of them with each other.

    Only a key that was deleted may live on one replica and not on another, and only where tombstones go within the
    run: seed 241, as seeds were drawn then, was such a case. Node 1 was away for four seconds when a member's tombstone
    was written; its peers had taken the tombstone away after half a second, as delete.retention.ms told them. Node 1
    cannot learn of it any more, nor could a Kafka broker. `_check_given` looks at how each of these came about.
    """
    keeps = not run.plan.hot or run.plan.tombstones_ms > LONG_MS
    known: dict[bytes, tuple[int, bytes]] | None = None
    for node, log in copies:
        records = _records(run, place, node, batches_of(log))
        last = {record.key: record for record in records}
        living = {key: (record.offset, record.value) for key, record in last.items() if record.value is not None}
        if known is None:
            known = living
        compared = living.keys() | known.keys() if keeps else living.keys() & known.keys()
        differ = sorted(key for key in compared if living.get(key) != known.get(key))
        if differ:
            run.violate(
                f"14: {place[0]}-{place[1]} says something else on node {node} than on node {copies[0][0]} of"
                f" {differ[0]!r}: {living.get(differ[0])} and {known.get(differ[0])}"
            )
        if run.plan.hot:
            _check_given(run, place, node, log, last, keeps=keeps)
        if place[0] == KEYS_TOPIC:
            run.keyed.check(run.ledger, place, node, records, keeps_tombstones=keeps)


def _check_given(run: "Run", place: Place, node: int, log: Any, last: dict[Any, Any], *, keeps: bool) -> None:
    """Compaction keeps the last record of every key that a replica has ever held, unless it is an old tombstone; and
    a replica has held the last record that was written, unless that was a tombstone which was old before it came.
    """
    machine = run.cluster.machines[node]
    part = (machine.node.services.replicas.find(*place).topic_id, place[1])  # type: ignore[union-attr]
    history = run.watch.history
    holder, counting = history.held_by(machine, part), history.counting(part, log.log_end_offset)
    newest = {given.key: offset for offset, given in sorted(counting.items())}
    own = {given.key: offset for offset, given in sorted(counting.items()) if offset in holder.offsets}
    where, now = f"{place[0]}-{place[1]} on node {node}", run.cluster.loop.time()
    for key, offset in newest.items():
        mine, record = own.get(key, -1), last.get(key)
        if mine != offset and not _may_be_gone(run, counting[offset], holder.time_of(offset), keeps=keeps):
            run.violate(
                f"14: {where} was never given the last record of {key!r}, {_describe(offset, counting[offset])}"
            )
        if record is not None and record.value is not None:
            if record.offset != mine:
                was = f"was given {_describe(mine, counting[mine])} later" if mine >= 0 else "was never given it"
                run.violate(f"14: {where} says {key!r} is what it was at {record.offset}, though it {was}")
        elif mine >= 0 and not counting[mine].tombstone:
            run.violate(f"14: {where} has lost the last it was given of {key!r}, {_describe(mine, counting[mine])}")
        elif mine >= 0 and record is None and not _may_be_gone(run, counting[mine], now, keeps=keeps):
            run.violate(f"14: {where} forgot too soon that {key!r} was deleted, {_describe(mine, counting[mine])}")


def _may_be_gone(run: "Run", given: WrittenRecord, by: float, *, keeps: bool) -> bool:
    """Whether no replica may hold it any more after some time."""
    if keeps or not given.tombstone:
        return False
    has_wrong_clock = any(fault.kind in WRONG_CLOCKS for fault in run.plan.faults)
    return has_wrong_clock or by - given.at >= run.plan.tombstones_ms / 1000


def _describe(offset: int, given: WrittenRecord) -> str:
    return f"{'a tombstone' if given.tombstone else 'a value'} at {offset}"


def _records(run: "Run", place: Place, node: int, batches: list[BatchView]) -> list[Any]:
    """What counts in a log, in order."""
    where = f"{place[0]}-{place[1]} on node {node}"
    written = read_batches(batches, lambda offset: run.violate(f"8: offsets of {where} go back at {offset}"))
    if any(written.open_ones.values()):
        run.violate(f"14: {where} has records of transactions whose markers are gone")
    return sorted(
        (record for record in written.records if record.offset in written.visible), key=lambda record: record.offset
    )
