"""What follows from the log itself: producer state (the newest snapshot, then every batch after it), leader epochs."""

from klamm.records.batch import BatchView
from klamm.storage.producers import BATCHES_REMEMBERED, Origin, ProducerStates
from klamm.storage.segments import Segments
from klamm.storage.snapshots import Snapshots

_REFILL_BYTES = 8 << 20


def rebuild_producers(producers: ProducerStates, snapshots: Snapshots, segments: Segments, end_offset: int) -> None:
    """Bring producer state to what it was when the log ended at `end_offset`.

    Batches below the log start count too, as long as they are there: their producers may still be at work.
    """
    start_offset = segments[0].base_offset
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


def refill_batches(producers: ProducerStates, segments: Segments, since_ms: int) -> None:
    """Remember again the earlier ones of the last five batches, which a snapshot does not keep.

    A producer that had several batches in flight when the broker stopped sends all of them again; without this, only
    the last would be known for a duplicate and the others refused as out of order. Looks at the last few megabytes of
    the log, and only when a producer was active lately.
    """
    wanted = {
        entry.producer_id: entry
        for entry in producers.entries.values()
        if 0 < len(entry.batches) < BATCHES_REMEMBERED and entry.last_timestamp >= since_ms
    }
    if not wanted:
        return
    earlier: dict[int, list[tuple[int, int, int, int, int]]] = {producer_id: [] for producer_id in wanted}
    for segment in segments[-2:]:
        start = segment.offset_index().floor_position(max(segment.size - _REFILL_BYTES, 0))
        for batch in segment.headers(start):
            entry = wanted.get(batch.producer_id)
            if (
                entry is not None
                and not batch.is_control
                and batch.producer_epoch == entry.epoch
                and batch.base_offset < entry.batches[0][2]
            ):
                earlier[batch.producer_id].append(
                    (
                        batch.base_sequence,
                        batch.last_sequence,
                        batch.base_offset,
                        batch.last_offset,
                        batch.max_timestamp,
                    )
                )
    for producer_id, batches in earlier.items():
        entry = wanted[producer_id]
        entry.batches = (*batches, *entry.batches)[-BATCHES_REMEMBERED:]


def leader_epochs(segments: Segments) -> list[tuple[int, int]]:
    """(epoch, first offset) of every leader whose batches are here; reads all headers."""
    found: list[tuple[int, int]] = []
    for segment in segments:
        for batch in segment.headers(0):
            if batch.leader_epoch > (found[-1][0] if found else -1):
                found.append((batch.leader_epoch, batch.base_offset))
    return found
