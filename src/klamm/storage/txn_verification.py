"""Verifying an entry of a transaction index against the batches it refers to.

The index carries no checksum. An entry that is wrong would hide committed records from read_committed readers, so each
is compared with the log when it is read from the file for the first time.
"""

from itertools import islice

from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.records.control import end_txn_marker
from klamm.storage.log_segment import BatchLocation, LogSegment
from klamm.storage.txn_index import AbortedTxn

_TXN_BATCHES_MAX = 100
"""How many batches of the log are compared with an entry: it is checked on the loop."""
_LOOK_BACK_BYTES = 16 * 1024
"""How much of the log before a transaction is searched for an earlier batch of it."""


def was_aborted(txn: AbortedTxn, marker_segment: LogSegment, first_segment: LogSegment) -> bool:
    """Return whether the log has this aborted transaction.

    `marker_segment` holds its abort marker, `first_segment` is where its first record is, the same or an earlier one.
    """
    first, last = txn.first_offset, txn.last_offset
    if not (0 <= first <= last and 0 <= txn.last_stable_offset <= last + 1):
        return False
    if not _is_written_by(marker_segment, txn.producer_id, last, marker=True):
        return False
    location = first_segment.find(first) if first >= first_segment.base_offset else None
    if location is None or location.base_offset > first:
        return True  # retention or compaction has removed the records
    if location.base_offset != first or _is_open_before(first_segment, txn.producer_id, location):
        return False
    return _is_written_by(first_segment, txn.producer_id, first, marker=False) and not any(
        batch.is_control and batch.producer_id == txn.producer_id and batch.last_offset < last
        for batch in islice(first_segment.headers(location.position), _TXN_BATCHES_MAX)
    )


def _is_open_before(segment: LogSegment, producer_id: int, location: BatchLocation) -> bool:
    """Return whether a producer was in a transaction already just before a batch."""
    start = segment.boundary_before(location.position - _LOOK_BACK_BYTES) if location.position else 0
    is_open = False
    for batch in segment.headers(start):
        if batch.base_offset >= location.base_offset:
            break
        if batch.producer_id == producer_id:
            is_open = batch.is_transactional and not batch.is_control
    return is_open


def _is_written_by(segment: LogSegment, producer_id: int, offset: int, *, marker: bool) -> bool:
    """Return whether the batch at an offset is of a producer: its abort marker, or its data, which may be gone."""
    location = segment.find(offset) if offset >= segment.base_offset else None
    if location is None or location.base_offset > offset:
        return not marker
    batch = BatchView(segment.open_file().pread(location.size if marker else HEADER_SIZE, location.position))
    end_marker = end_txn_marker(batch) if marker else None
    return (
        batch.producer_id == producer_id
        and batch.is_control == marker
        and not (end_marker is not None and end_marker.committed)
    )
