"""Indexes that turn out to be wrong while they are in use: found by the batch they lead to, built anew from the log.

A start after a crash rebuilds what it checks. What lies below the recovery point, and everything after a clean stop, is
taken as it is, and an index carries no checksum. So whoever follows an entry looks whether it holds: a bit that has
flipped in an index costs a walk over the segment's headers, never a record.
"""

from typing import TYPE_CHECKING

from klamm.model.errors import CorruptBatch
from klamm.storage.offset_index import OffsetIndex
from klamm.storage.time_index import TimeIndex
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.storage.log_segment import LogSegment

logger = get_logger("storage")

INTERVAL_BYTES = 4096
"""An entry for so many bytes, the default of index.interval.bytes."""


def build_indexes(segment: "LogSegment") -> tuple[OffsetIndex, TimeIndex]:
    """The indexes a segment should have; CorruptBatch when its batches do not follow one another."""
    index, times = OffsetIndex(segment.base_offset, bytearray()), TimeIndex(segment.base_offset, bytearray())
    unindexed, position, largest = 0, 0, (-1, segment.base_offset)
    for batch in segment.headers(0):
        if position + batch.size > segment.size or batch.last_offset < segment.base_offset:
            raise CorruptBatch(f"{segment!r} holds no batch at {position}")
        if batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, batch.last_offset)
        if unindexed > INTERVAL_BYTES:
            index.append(batch.last_offset, position)
            times.maybe_append(*largest)
            unindexed = 0
        unindexed += batch.size
        position += batch.size
    times.maybe_append(*largest)
    return index, times


def log_rebuild(path: str, what: str) -> None:
    """Say that an index was wrong and is right now."""
    logger.warning("an index does not fit its log and was built anew", path=path, reason=what)
