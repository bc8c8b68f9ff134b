"""What compaction must leave: the latest record of every key, on every replica, and the markers its records need."""

from typing import TYPE_CHECKING, Any

from klamm.records.batch import BatchView
from klamm.testing.sim.ledger import Place
from klamm.testing.sim.load import KEYS_TOPIC
from klamm.testing.sim.written import batches_of, read_batches

if TYPE_CHECKING:
    from klamm.testing.sim.run import Run

LONG_MS = 3_600_000
"""Longer than a run lasts, wrong clocks included."""


def check_compacted(run: "Run", place: Place, copies: list[tuple[int, Any]]) -> None:
    """Compare the replicas of a compacted partition by what they say last of every key."""
    known: dict[bytes, tuple[int, bytes]] | None = None
    for node, log in copies:
        records = _records(run, place, node, batches_of(log))
        last = {record.key: (record.offset, record.value) for record in records}
        living = {key: found for key, found in last.items() if found[1] is not None}
        keeps = run.plan.tombstones_ms > LONG_MS
        if known is None:
            known = living
        # Whoever was away for longer than tombstones are kept has not heard of some, and keeps what they deleted.
        compared = living.keys() | known.keys() if keeps else living.keys() & known.keys()
        differ = sorted(key for key in compared if living.get(key) != known.get(key))
        if differ:
            run.violate(
                f"14: {place[0]}-{place[1]} says something else on node {node} than on node {copies[0][0]} of"
                f" {differ[0]!r}: {living.get(differ[0])} and {known.get(differ[0])}"
            )
        if place[0] == KEYS_TOPIC:
            run.keyed.check(run.ledger, place, node, records, keeps_tombstones=keeps)


def _records(run: "Run", place: Place, node: int, batches: list[BatchView]) -> list[Any]:
    """What counts in a log, in order."""
    where = f"{place[0]}-{place[1]} on node {node}"
    written = read_batches(batches, lambda offset: run.violate(f"8: offsets of {where} go back at {offset}"))
    if any(written.open_ones.values()):
        run.violate(f"14: {where} has records of transactions whose markers are gone")
    return sorted(
        (record for record in written.records if record.offset in written.visible), key=lambda record: record.offset
    )
