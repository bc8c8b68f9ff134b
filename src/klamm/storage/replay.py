"""Producer state from the log itself: the newest snapshot, and then every batch after it."""

from klamm.records.batch import BatchView
from klamm.records.control import end_txn_marker
from klamm.storage.producers import Origin, ProducerStates
from klamm.storage.segments import Segments
from klamm.storage.snapshots import Snapshots
from klamm.storage.txn_index import AbortedTxn


def replay_batch(producers: ProducerStates, batch: BatchView) -> AbortedTxn | None:
    """Remember a batch that is in the log already; the transaction it aborted, if it did."""
    if batch.producer_id < 0:
        return None
    if batch.is_control:
        marker = end_txn_marker(batch)
        if marker is None:
            return None
        return producers.append_marker(
            batch.producer_id,
            batch.producer_epoch,
            marker.coordinator_epoch,
            marker.committed,
            batch.base_offset,
            batch.max_timestamp,
            Origin.REPLICATION,
        )
    producers.append_data(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp,
        batch.is_transactional,
        Origin.REPLICATION,
    )
    return None


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
                replay_batch(producers, batch)
