"""Producer state from the log itself: the newest snapshot, and then every batch after it."""

from klamm.records.batch import BatchView
from klamm.storage.producers import Origin, ProducerStates
from klamm.storage.segments import Segments
from klamm.storage.snapshots import Snapshots


def rebuild_producers(
    producers: ProducerStates, snapshots: Snapshots, segments: Segments, start_offset: int, end_offset: int
) -> None:
    """Bring producer state to what it was when the log ended at `end_offset`."""
    found = snapshots.latest(start_offset, end_offset)
    offset, entries = found if found is not None else (start_offset, [])
    producers.load(entries)
    if offset >= end_offset:
        return
    for segment in segments.from_offset(offset):
        if segment.base_offset >= end_offset:
            break
        start = segment.offset_index().lookup(offset) if offset > segment.base_offset else 0
        for _, data in segment.batches(start):
            batch = BatchView(data)
            if batch.base_offset >= end_offset:
                break
            if batch.last_offset >= offset:
                producers.append(batch, Origin.REPLICATION)
