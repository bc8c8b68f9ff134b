"""Offsets by time: what ListOffsets asks. Records are decoded only in the one batch that holds the answer."""

from typing import NamedTuple

from klamm.records.batch import BatchView
from klamm.storage.segment import Segment
from klamm.storage.segments import Segments


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(segments: Segments, timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    """The first record at or after `log_start_offset` whose timestamp is at least `timestamp`."""
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp[0] < timestamp:
            continue
        place = segment.find(max(segment.time_floor(timestamp), log_start_offset))
        if place is None:
            continue
        for _, data in segment.batches(place.position):
            batch = BatchView(data)
            if batch.max_timestamp < timestamp or batch.last_offset < log_start_offset:
                continue
            batch.check_crc()
            for row in batch.decode_rows():
                if row[1] >= timestamp and row[0] >= log_start_offset:
                    return TimestampOffset(row[1], row[0], batch.leader_epoch)
    return None


def find_max_timestamp(segments: Segments, log_start_offset: int) -> TimestampOffset | None:
    """The first record that has the largest timestamp of the log."""
    best: Segment | None = None
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp[0] > (best.max_timestamp[0] if best else -1):
            best = segment
    if best is None:
        return None
    place = best.find(best.max_timestamp[1])
    if place is None:
        return None
    for _, data in best.batches(place.position, place.position + place.size):
        batch = BatchView(data)
        batch.check_crc()
        rows = batch.decode_rows()
        if rows:
            row = max(rows, key=lambda row: (row[1], -row[0]))
            return TimestampOffset(row[1], row[0], batch.leader_epoch)
    return None
