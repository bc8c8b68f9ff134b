"""Forgetting the end of a log: a new leader says otherwise, or a write failed half way."""

from typing import TYPE_CHECKING

from klamm.storage.config import MAX_LONG
from klamm.storage.log_replay import rebuild_producers
from klamm.storage.log_segment import Segment

if TYPE_CHECKING:
    from klamm.storage.log_appender import LogWriter


def truncate_to(log: "LogWriter", offset: int, *, for_good: bool = False) -> bool:
    """Cut everything from `offset` on (from its batch on, when it lies inside one). False: nothing to cut.

    What was durable, and with `for_good` all of it, is gone from the device too when this returns.
    """
    if offset >= log.log_end_offset:
        return False
    if log.before_truncate is not None:
        log.before_truncate(log)
    if offset < log.segments[0].base_offset:
        truncate_fully(log, offset)
        return True
    try:
        # Newest first, and durable before the next is cut: a crash half way leaves a shorter log, not one with a hole.
        gone = [s for s in reversed(log.segments[1:]) if s.base_offset >= offset]
        log.segments.remove(gone)
        if gone and log.recovery_point > offset:
            log._disk.sync_dir(log.path)
        end = _cut_segment(log, log.segments.active, offset)
    except OSError as error:
        raise log._failure(f"cannot cut {log.name} to {offset}", error) from error
    _set_end(log, end, promised=MAX_LONG if for_good else max(log.recovery_point, log.log_start_offset))
    return True


def truncate_fully(log: "LogWriter", offset: int) -> None:
    """Throw everything away and begin anew at `offset`."""
    if log.before_truncate is not None:
        log.before_truncate(log)
    old = log.segments[::-1]
    try:
        if offset == log._active.base_offset and not log._active.size:
            log.segments.remove(old[1:])
        elif offset >= log.log_end_offset:
            # The new segment first: a crash half way never finds an empty folder, which would begin with offset 0.
            log._active = log.segments.add(offset, log.config, log._now_ms)
            log.segments.remove(old)
        else:
            log.segments.remove(old)
            log._active = log.segments.add(offset, log.config, log._now_ms)
    except OSError as error:
        raise log._failure(f"cannot empty {log.name}", error) from error
    log.leader_epochs.clear()
    log.log_start_offset = log.high_watermark = offset
    log.recovery_point = max(log.recovery_point, offset)
    for snapshot in log.snapshots.offsets():
        log.snapshots.remove(snapshot)
    _set_end(log, offset, promised=MAX_LONG)


def _cut_segment(log: "LogWriter", segment: Segment, offset: int) -> int:
    """Cut the last segment and make it the active one; returns the new end of the log."""
    place = segment.find(offset)
    end = offset
    if segment.file is None:
        segment.activate(log.config, log._now_ms)
    assert segment.file is not None
    assert segment.index is not None
    assert segment.time_index is not None
    if place is not None:
        end = min(offset, place.base_offset)
        segment.size = place.position
        log._disk.ftruncate(segment.file.fd, place.position)
    segment.index.truncate_to(end)
    segment.time_index.truncate_to(end)
    segment.txn_index.truncate_to(end)
    segment.max_timestamp = _largest_timestamp(segment)
    segment.bytes_since_index = 0
    segment.write_indexes()
    log._active = segment
    return end


def _largest_timestamp(segment: Segment) -> tuple[int, int]:
    """The largest timestamp and its offset: of the time index, or of the batches after the last indexed one."""
    assert segment.index is not None
    assert segment.time_index is not None
    largest = segment.time_index.last()
    start = segment.index.entry(len(segment.index) - 1)[1] if len(segment.index) else 0
    for batch in segment.headers(start):
        if batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, batch.last_offset)
    return largest


def _set_end(log: "LogWriter", offset: int, promised: int) -> None:
    """Let everything know that the log ends at `offset`. `promised` is the furthest offset a checkpoint may name."""
    log.segments.forget_hints()
    log.truncations += 1
    if log.cleaned_offset is not None:
        log.cleaned_offset = min(log.cleaned_offset, offset)
    log.log_end_offset = log.next_offset = offset
    # The active segment's index was written anew: syncing begins with it.
    log.recovery_point = min(log.recovery_point, offset, log._active.base_offset)
    log.high_watermark = min(log.high_watermark, offset)
    log.log_start_offset = min(log.log_start_offset, offset)
    log.leader_epochs.truncate_from_end(offset)
    log._latest_epoch = log.leader_epochs.latest
    log.snapshots.remove_outside(0, offset)
    rebuild_producers(log.producers, log.snapshots, log.segments, offset)
    if promised > offset:
        _sync(log)
        if log.on_truncate is not None:
            log.on_truncate(log)


def _sync(log: "LogWriter") -> None:
    """Make the cut durable: what was synced before it must not come back beside what follows."""
    try:
        assert log._active.file is not None
        log._disk.fsync(log._active.file.fd)
        log._disk.sync_dir(log.path)
    except OSError as error:
        raise log._failure(f"cannot sync {log.name}", error) from error
