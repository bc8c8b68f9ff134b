"""Truncating the end of a log: a new leader has another history, or a write failed half way.

The caller resets the log's appender afterwards; what is staged is not touched here.
"""

from klamm.storage.config import MAX_LONG
from klamm.storage.log_replay import rebuild_producers
from klamm.storage.log_segment import LogSegment
from klamm.storage.log_state import LogState


def truncate_to(state: LogState, offset: int, now_ms: int, *, durable: bool = False) -> bool:
    """Cut everything from `offset` on (from its batch on, when it is inside one). False: nothing to cut.

    What was synced before, and with `durable` all of it, is gone from the device too when this returns.
    """
    if offset >= state.log_end_offset:
        return False
    state.listener.before_truncate(state)
    if offset < state.segments[0].base_offset:
        truncate_fully(state, offset, now_ms)
        return True
    try:
        # Newest first, and durable before the next is cut: a crash half way leaves a shorter log, not one with a hole.
        removed = [s for s in reversed(state.segments[1:]) if s.base_offset >= offset]
        state.segments.remove(removed)
        if removed and state.recovery_point > offset:
            state.disk.sync_dir(state.path)
        end = _cut_segment(state, state.segments.active, offset, now_ms)
    except OSError as error:
        raise state.fail_on(f"cannot truncate {state.name} to {offset}", error) from error
    _set_end(state, end, checkpointed=MAX_LONG if durable else max(state.recovery_point, state.log_start_offset))
    return True


def truncate_fully(state: LogState, offset: int, now_ms: int) -> None:
    """Delete everything and begin again at `offset`."""
    state.listener.before_truncate(state)
    segments = state.segments
    old = segments[::-1]
    try:
        if offset == segments.active.base_offset and not segments.active.size:
            segments.remove(old[1:])
        elif offset >= state.log_end_offset:
            # The new segment first: a crash half way never finds an empty folder, which would begin with offset 0.
            segments.add(offset, state.config, now_ms)
            segments.remove(old)
        else:
            # A segment below the old ones cannot come first: a crash half way would leave a log with a hole.
            segments.remove(old)
            segments.add(offset, state.config, now_ms)
    except OSError as error:
        raise state.fail_on(f"cannot empty {state.name}", error) from error
    state.leader_epochs.clear()
    state.log_start_offset = state.high_watermark = offset
    state.recovery_point = max(state.recovery_point, offset)
    for snapshot in state.snapshots.offsets():
        state.snapshots.remove(snapshot)
    _set_end(state, offset, checkpointed=MAX_LONG)


def _cut_segment(state: LogState, segment: LogSegment, offset: int, now_ms: int) -> int:
    """Cut the last segment, which becomes the active one if it was not; return the new end of the log."""
    location = segment.find(offset)
    end = offset
    if segment.file is None:
        segment.activate(state.config, now_ms)
    assert segment.file is not None
    assert segment.index is not None
    assert segment.time_index is not None
    if location is not None:
        end = min(offset, location.base_offset)
        segment.size = location.position
        state.disk.ftruncate(segment.file.fd, location.position)
    # The indexes may name batches that are gone; entries of a later append would come after them.
    segment.index.truncate_to(end)
    segment.time_index.truncate_to(end)
    segment.txn_index.truncate_to(end)
    segment.max_timestamp = _largest_timestamp(segment)
    segment.bytes_since_index = 0
    segment.write_indexes()
    return end


def _largest_timestamp(segment: LogSegment) -> tuple[int, int]:
    """Return the largest timestamp and its offset, of the time index and the batches after the last indexed one."""
    assert segment.index is not None
    assert segment.time_index is not None
    largest = segment.time_index.last()
    start = segment.index.entry(len(segment.index) - 1)[1] if len(segment.index) else 0
    for batch in segment.headers(start):
        if batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, batch.last_offset)
    return largest


def _set_end(state: LogState, offset: int, checkpointed: int) -> None:
    """Let the log end at `offset`. `checkpointed` is the largest offset that a checkpoint on disk may name."""
    state.segments.forget_hints()
    # A sync that is running covers bytes that are gone now: its result must not move the recovery point.
    state.truncations += 1
    if state.cleaned_offset is not None:
        state.cleaned_offset = min(state.cleaned_offset, offset)
    state.log_end_offset = offset
    # The active segment's index was written again: syncing begins with it.
    state.recovery_point = min(state.recovery_point, offset, state.segments.active.base_offset)
    state.high_watermark = min(state.high_watermark, offset)
    state.log_start_offset = min(state.log_start_offset, offset)
    state.leader_epochs.truncate_from_end(offset)
    state.snapshots.remove_outside(0, offset)
    rebuild_producers(state.producers, state.snapshots, state.segments, offset)
    if checkpointed > offset:
        _sync(state)
        state.listener.on_truncate(state)


def _sync(state: LogState) -> None:
    """Make the cut durable: what was synced before it must not come back beside what follows."""
    try:
        assert state.segments.active.file is not None
        state.disk.fsync(state.segments.active.file.fd)
        state.disk.sync_dir(state.path)
    except OSError as error:
        raise state.fail_on(f"cannot sync {state.name}", error) from error
