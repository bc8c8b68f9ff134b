"""Offsets by timestamp, for ListOffsets. Only the batch that holds the answer is decompressed, in pieces."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from klamm.model.errors import CorruptBatch, KlammError, RecordRefused
from klamm.records.batch import BatchView
from klamm.records.checking import RecordCheck
from klamm.records.compression import DECOMPRESSED_BYTES_MAX, unpack
from klamm.storage.batch_validation import INLINE_COMPRESSED_BYTES_MAX, INLINE_DECOMPRESSED_BYTES_MAX
from klamm.storage.log_segment import LogSegment
from klamm.storage.segment_list import SegmentList


class TimestampOffset(NamedTuple):
    """The result of a lookup by timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class SearchElsewhere(Exception):
    """Raised when the answer may be in a compressed batch that is too large to be decompressed on the loop.

    `search` looks there, in any thread; when it returns None, the lookup continues at `next_offset`.
    """

    def __init__(self, search: Callable[[], TimestampOffset | None], next_offset: int) -> None:
        super().__init__(next_offset)
        self.search = search
        self.next_offset = next_offset


def find_timestamp(segments: SegmentList, timestamp: int, first_offset: int) -> TimestampOffset | None:
    """The first record at or after `first_offset` whose timestamp is at least `timestamp`; may be SearchElsewhere."""
    for segment in segments.from_offset(first_offset):
        if segment.max_timestamp[0] < timestamp:
            continue
        location = segment.find(max(segment.time_floor(timestamp), first_offset))
        if location is None:
            continue
        for _, data in segment.batches(location.position):
            batch = BatchView(data)
            if batch.max_timestamp < timestamp or batch.last_offset < first_offset:
                continue
            record = _search(batch, timestamp, first_offset)
            if record is not None:
                return record
    return None


def _search(batch: BatchView, timestamp: int, first_offset: int) -> TimestampOffset | None:
    """`_first_at` here, if that is little work."""
    batch.check_crc()
    if not batch.codec or batch.size <= INLINE_COMPRESSED_BYTES_MAX:
        try:
            return _first_at(batch, timestamp, first_offset, INLINE_DECOMPRESSED_BYTES_MAX)
        except CorruptBatch:
            raise
        except KlammError:
            pass  # it decompresses to more than that
    # A copy, because the view is over a chunk that is dropped when this lookup returns.
    own = BatchView(bytes(batch.raw))
    search = partial(_first_at, own, timestamp, first_offset, DECOMPRESSED_BYTES_MAX)
    raise SearchElsewhere(search, batch.next_offset)


def _first_at(batch: BatchView, timestamp: int, first_offset: int, limit: int) -> TimestampOffset | None:
    """The first record of a batch from an offset on whose timestamp is at least `timestamp`."""
    first_delta = max(first_offset - batch.base_offset, 0)
    check = RecordCheck(
        batch, f"offset {batch.base_offset}", newest=timestamp - 1, stored=True, first_delta=first_delta
    )
    pieces = unpack(batch.codec, batch.records, limit) if batch.codec else (batch.records,)
    try:
        for piece in pieces:
            check.feed(piece)
            if check.noted_count:
                record = check.noted[0]
                return TimestampOffset(record.timestamp, batch.base_offset + record.offset_delta, batch.leader_epoch)
    except RecordRefused as error:
        raise CorruptBatch(str(error.message)) from None
    return None


def find_max_timestamp(segments: SegmentList, log_start_offset: int) -> TimestampOffset | None:
    """The first record that has the largest timestamp of the log; may be SearchElsewhere."""
    best: LogSegment | None = None
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp[0] > (best.max_timestamp[0] if best else -1):
            best = segment
    if best is None:
        return None
    location = best.find(best.max_timestamp[1])
    if location is None:
        return None
    for _, data in best.batches(location.position, location.position + location.size):
        batch = BatchView(data)
        return _search(batch, batch.max_timestamp, 0)
    return None
