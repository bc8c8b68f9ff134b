"""Rebuilding the indexes of a segment that turn out to be wrong while they are in use.

A start after a crash rebuilds the indexes of all segments it checks. Segments below the recovery point, and all after a
clean stop, are used as they are, and an index carries no checksum. So every lookup compares the entry it follows with
the batch it leads to: a flipped bit in an index costs a walk over the segment's headers, never a record.
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
"""The default of index.interval.bytes."""


def build_indexes(segment: "LogSegment") -> tuple[OffsetIndex, TimeIndex]:
    """Build the indexes of a segment from its batches; CorruptBatch when these do not follow one another."""
    index, times = OffsetIndex(segment.base_offset, bytearray()), TimeIndex(segment.base_offset, bytearray())
    unindexed, position, largest = 0, 0, (-1, segment.base_offset)
    for batch in segment.headers(0):
        if position + batch.size > segment.size or batch.last_offset < segment.base_offset:
            raise CorruptBatch(f"{segment!r} holds no batch at {position}")
        if batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, batch.last_offset)
        # As an append would have: the batch that begins after the interval gets the entry.
        if unindexed > INTERVAL_BYTES:
            index.append(batch.last_offset, position)
            times.maybe_append(*largest)
            unindexed = 0
        unindexed += batch.size
        position += batch.size
    # The last entry of a closed segment is its largest timestamp, by which retention decides.
    times.maybe_append(*largest)
    return index, times


def log_rebuild(path: str, reason: str) -> None:
    """Log that the indexes of a segment were rebuilt."""
    logger.warning("corrupt index rebuilt", path=path, reason=reason)
