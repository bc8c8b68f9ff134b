"""Derives state from the log itself: producers (the newest snapshot, then every batch after it) and leader epochs."""

from contextlib import suppress

from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView
from klamm.storage.producer_snapshots import ProducerSnapshots
from klamm.storage.producer_state import BATCHES_REMEMBERED, Origin, ProducerStates
from klamm.storage.segment_list import SegmentList
from klamm.storage.segment_scan import SegmentScan

_REFILL_BYTES = 8 << 20
"""Five requests of a producer, at 1 MB each by default, with others between them."""


def rebuild_producers(
    producers: ProducerStates, snapshots: ProducerSnapshots, segments: SegmentList, end_offset: int
) -> None:
    """Rebuild producer state as of when the log ended at `end_offset`.

    Batches below the log start count too, as long as they are there: their producers may still be active.
    """
    start_offset = segments[0].base_offset
    snapshot = snapshots.latest(start_offset, end_offset)
    offset, entries = snapshot if snapshot is not None else (start_offset, [])
    producers.load(entries)
    if offset >= end_offset:
        return
    for segment in segments.from_offset(offset):
        if segment.base_offset >= end_offset:
            break
        location = segment.find(offset)
        if location is None:
            continue
        scan = SegmentScan(segment, producers, position=location.position, end_offset=end_offset, checked=False)
        for data in scan:
            batch = BatchView(data)
            if batch.base_offset >= end_offset:
                break
            producers.append(batch, Origin.REPLICATION)
            scan.accept(batch)


def refill_batches(producers: ProducerStates, segments: SegmentList, since_ms: int) -> None:
    """Restore the earlier ones of the last five batches of every producer, which a snapshot does not keep.

    A producer that had several batches in flight when the broker stopped sends all of them again; without this, only
    the last would be recognised as a duplicate and the others refused as out of order. Reads the last few megabytes of
    the log, and only when a producer was active lately.
    """
    incomplete = {
        entry.producer_id: entry
        for entry in producers.entries.values()
        if 0 < len(entry.batches) < BATCHES_REMEMBERED and entry.last_timestamp >= since_ms
    }
    if not incomplete:
        return
    recent = ProducerStates()
    for segment in segments[-2:]:
        start = segment.boundary_before(max(segment.size - _REFILL_BYTES, 0))
        scan = SegmentScan(segment, recent, position=start, checked=False)
        with suppress(CorruptBatch):  # not searched for by this start: a read of the damage raises it again
            for data in scan:
                batch = BatchView(data)
                if not batch.is_control:
                    recent.append(batch, Origin.REPLICATION)
                scan.accept(batch)
    for producer_id, entry in incomplete.items():
        recent_entry = recent.entries.get(producer_id)
        if recent_entry is not None and recent_entry.epoch == entry.epoch:
            earlier = [batch for batch in recent_entry.batches if batch[2] < entry.batches[0][2]]
            entry.batches = (*earlier, *entry.batches)[-BATCHES_REMEMBERED:]


def read_leader_epochs(segments: SegmentList) -> list[tuple[int, int]]:
    """Return (epoch, first offset) of every leader epoch in the log; reads all headers."""
    epochs: list[tuple[int, int]] = []
    for segment in segments:
        with suppress(CorruptBatch):  # as above
            for batch in segment.headers(0):
                if batch.leader_epoch > (epochs[-1][0] if epochs else -1):
                    epochs.append((batch.leader_epoch, batch.base_offset))
    return epochs
