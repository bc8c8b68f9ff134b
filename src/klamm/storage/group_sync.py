"""Group sync: appends that are acknowledged only when they are on the device share one sync.

A log has at most one sync under way. All requests that arrive meanwhile share the next one, which covers everything
written before it begins; syncs of several logs run side by side, where the file system's journal joins them.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial

from klamm.model.errors import StorageFailure
from klamm.storage.log import Log
from klamm.storage.thread_pools import Threads, real_threads

Done = Callable[[StorageFailure | None], None]
CallOnLoop = Callable[[Callable[[], None]], object]
"""Calls something soon on the loop's thread; safe to call from any thread."""
THREADS = 8
"""Syncs of different logs that may run at a time: devices and journals join those that wait together."""


class GroupSync:
    """Owned by the loop's thread; only syncs run elsewhere. Without `call_on_loop`, callers wait inline."""

    def __init__(self, threads: Threads = real_threads, *, call_on_loop: CallOnLoop | None = None) -> None:
        self.call_on_loop = call_on_loop
        self.syncs = 0
        """How many syncs were started; divided by the number of appends, this shows how well sharing works."""
        self._make_threads = threads
        self._threads: Executor | None = None
        self._waiting: dict[Log, list[tuple[int, Done]]] = {}
        self._busy: set[Log] = set()
        self._closed = False

    def close(self) -> None:
        """Wait for what is under way; nothing new begins."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def wait(self, log: Log, done: Done) -> None:
        """Call `done(None)` once everything in the log now is durable, or `done(failure)` when the sync fails."""
        self._waiting.setdefault(log, []).append((log.log_end_offset, done))
        if log not in self._busy:
            self._start(log)

    def move(self, log: Log, other: Log) -> None:
        """Move the waiting callbacks of a log to the log that has replaced it, which has the same content."""
        waiting = self._waiting.pop(log, [])
        # A sync of the old log may be under way: it finds no callbacks when it ends, and the new log begins its own.
        if waiting:
            self._waiting[other] = waiting
            if other not in self._busy:
                self._start(other)

    def _start(self, log: Log) -> None:
        self._busy.add(log)
        self.syncs += 1
        # Read when the sync begins: what is written while it runs is for the next one.
        up_to, truncations = log.log_end_offset, log.truncations
        call_on_loop = self.call_on_loop
        job = log.sync_job(up_to)
        if call_on_loop is None:
            self._finish(log, up_to, truncations, _run_inline(job))
            return
        if self._threads is None:
            self._threads = self._make_threads(THREADS, "klamm-sync")

        def collect(future: Future[None]) -> None:
            call_on_loop(partial(self._finish, log, up_to, truncations, future.exception()))

        self._threads.submit(job).add_done_callback(collect)

    def _finish(self, log: Log, up_to: int, truncations: int, error: BaseException | None) -> None:
        self._busy.discard(log)
        waiting = self._waiting.pop(log, [])
        if error is not None:
            failure = StorageFailure(f"cannot sync {log.name}: {error}")
            # The folder of a deleted log may be gone, which is no failure of the disk.
            if not log.retired:
                log.fail(failure)
            for _, done in waiting:
                done(failure)
            return
        log.mark_durable(up_to, truncations)
        # Callbacks run last: they may append and wait again, which must not see a half-updated state.
        later = [(end, done) for end, done in waiting if end > up_to]
        if later:
            self._waiting[log] = later
            if not self._closed:
                self._start(log)
        for end, done in waiting:
            if end <= up_to:
                done(None)


def _run_inline(job: Callable[[], None]) -> BaseException | None:
    try:
        job()
    except OSError as error:
        return error
    return None
