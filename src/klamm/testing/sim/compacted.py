"""What compaction must leave: the latest record of every key, on every replica, and the markers its records need."""

from typing import TYPE_CHECKING, Any

from klamm.records.batch import BatchView, iter_batches
from klamm.records.control import end_txn_marker
from klamm.testing.sim.ledger import Place
from klamm.testing.sim.load import KEYS_TOPIC

if TYPE_CHECKING:
    from klamm.testing.sim.run import Run

LONG_MS = 3_600_000
"""Longer than a run lasts, wrong clocks included."""


def batches_of(log: Any) -> list[BatchView]:
    """All batches of a log, oldest first."""
    found: list[BatchView] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        piece = log.read(offset, 1 << 22, end)
        if piece is None:
            break
        views = list(iter_batches(piece.read(), allow_incomplete_tail=True))
        if not views:
            break
        found += [view for view in views if view.next_offset > offset]
        offset = views[-1].next_offset
    return found


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
    """What counts in a log: records without a transaction, and those of committed ones, in order."""
    found: list[Any] = []
    open_ones: dict[int, list[Any]] = {}
    expected = 0
    for view in batches:
        view.check_crc()
        if view.base_offset < expected:
            run.violate(f"8: offsets of {place[0]}-{place[1]} on node {node} go back at {view.base_offset}")
        expected = view.next_offset
        if view.is_control:
            marker = end_txn_marker(view)
            ended = open_ones.pop(view.producer_id, [])
            if marker is not None and marker.committed:
                found += ended
        elif view.is_transactional:
            open_ones.setdefault(view.producer_id, []).extend(view.decode())
        else:
            found += view.decode()
    if any(open_ones.values()):
        run.violate(f"14: {place[0]}-{place[1]} on node {node} has records of transactions whose markers are gone")
    return sorted(found, key=lambda record: record.offset)
