"""Making a log durable: which files a sync must cover so that a restart finds and trusts what was written."""

import os
import time
from collections.abc import Callable

from klamm.storage.log_segment import LOG_SUFFIX, SUFFIXES
from klamm.storage.log_state import LogState


class LogFlusher:
    """The syncs of one log. `recovery_point` follows only when a sync has succeeded."""

    __slots__ = ("_state", "clean_position")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.clean_position: tuple[int, int, int] | None = None
        """The `position` at which a log that was closed cleanly was opened; None for any other."""

    @property
    def position(self) -> tuple[int, int, int]:
        """End offset, active segment and its size: equal positions mean that nothing was written in between."""
        active = self._state.segments.active
        return self._state.log_end_offset, active.base_offset, active.size

    @property
    def is_unchanged(self) -> bool:
        """Whether a clean close would find every file as the last clean close left it."""
        return self.position == self.clean_position and not self._state.leader_epochs.unsynced

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (default: the end of the log) to the device, and wait for it."""
        state = self._state
        end = state.log_end_offset if up_to is None else up_to
        if end <= state.recovery_point:
            return
        try:
            self.sync_job(end)()
        except OSError as error:
            raise state.fail_on(f"cannot sync {state.name}", error) from error
        state.mark_durable(end)

    def sync_job(self, up_to: int) -> Callable[[], None]:
        """Return the work that makes everything below `up_to` durable. It may run in a thread: it reads no state.

        It covers the batches and what a restart needs to find and trust them: file names, indexes, producer snapshots,
        leader epochs. When it has returned, the caller moves `recovery_point` to `up_to`.
        """
        state = self._state
        disk, folder, epochs, active = state.disk, state.path, state.leader_epochs, state.segments.active
        point, written = state.recovery_point, epochs.written
        segments = [s for s in state.segments.from_offset(point) if s.base_offset < up_to]
        # Opened here, on the owner's thread: the segment may be renamed or evicted before the thread gets to it.
        files = [segment.open_file() for segment in segments]
        closed = [s for s in segments if s is not active]
        paths = [segment.path(suffix) for segment in closed for suffix in SUFFIXES if suffix != LOG_SUFFIX]
        paths += [
            state.snapshots.path(s.base_offset)
            for s in state.segments.from_offset(point)
            if point < s.base_offset <= up_to
        ]
        # A batch whose leader epoch is lost would make a follower truncate at the wrong offset.
        if epochs.unsynced:
            paths.append(epochs.path)
        # Names change when a segment begins, so before the first sync in one, the folder is synced too.
        folders = [folder] if closed or paths or point <= active.base_offset else []
        if point <= state.segments[0].base_offset:
            # The folder itself is new: its name in the log dir must be durable before its first batch counts as such.
            folders.append(os.path.dirname(folder))

        def sync() -> None:
            began = time.monotonic()
            for file in files:
                disk.fdatasync(file.fd)
            for path in paths:
                disk.sync_file(path)
            for name in folders:
                disk.sync_dir(name)
            epochs.synced = max(epochs.synced, written)
            disk.sync_seconds.append(time.monotonic() - began)

        return sync

    def write_final_files(self) -> None:
        """Bring all files into the form that a clean close leaves; nothing is synced."""
        state = self._state
        active = state.segments.active
        assert active.file is not None
        assert active.time_index is not None
        active.time_index.maybe_append(*active.max_timestamp)
        active.write_indexes()
        # A preallocated file is longer than its batches.
        state.disk.ftruncate(active.file.fd, active.size)
        if state.producers.entries or state.snapshots.offsets():
            state.snapshots.take(state.log_end_offset, state.producers.entries.values())

    def sync_all(self) -> None:
        """Make everything durable that opening trusts after a clean close."""
        state = self._state
        self.flush()
        paths = [state.segments.active.path(suffix) for suffix in SUFFIXES]
        for path in (*paths, state.snapshots.path(state.log_end_offset), state.leader_epochs.path):
            state.disk.sync_file(path)
        state.disk.sync_dir(state.path)
        state.leader_epochs.synced = state.leader_epochs.written

    def mark_all_durable(self) -> None:
        """Note that every file of the log was synced, by a sync of the whole file system for one."""
        self._state.recovery_point = self._state.log_end_offset
        self._state.leader_epochs.synced = self._state.leader_epochs.written
