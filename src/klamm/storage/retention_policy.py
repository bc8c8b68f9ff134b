"""Which segments retention deletes: pure decisions over facts about segments, oldest first.

    by time      all its records are older than retention.ms
    by size      without it the log still holds retention.bytes
    by start     it is completely below the log start offset, where DeleteRecords moved it

Time and size count only under cleanup.policy=delete; the start always counts. Only a run of the oldest segments can go,
and nothing that is not replicated yet. The active segment may be among them: then the log rolls first, so that the name
of an empty one keeps the end offset.
"""

from collections.abc import Iterable
from typing import NamedTuple

from klamm.storage.config import LogConfig


class SegmentFacts(NamedTuple):
    """What retention needs to know of one segment."""

    end_offset: int
    """The offset after the last one the segment may hold."""
    size: int
    largest_timestamp: int
    """Of its records, or of its file where records carry no time."""
    active: bool = False


def segments_to_delete(
    segments: Iterable[SegmentFacts],
    config: LogConfig,
    *,
    size_bytes: int,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments go. `segments` is read only as far as needed: facts may cost I/O."""
    deletes = "delete" in config.cleanup_policy
    by_time = deletes and config.retention_ms >= 0
    excess = size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    count = 0
    for segment in segments:
        excess -= segment.size
        # An empty segment holds no record that could still be young.
        expired = by_time and (segment.size == 0 or now_ms - segment.largest_timestamp > config.retention_ms)
        below_start = segment.end_offset <= log_start_offset and not segment.active
        if segment.end_offset > high_watermark or not (expired or below_start or excess >= 0):
            break
        # Rolling an empty segment changes nothing: its name would be the same.
        if segment.active and segment.size == 0:
            break
        count += 1
    return count
