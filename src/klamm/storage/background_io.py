"""Slow I/O of all logs, in threads: syncs, checkpoint files, removals.

Jobs are started and collected on the loop's thread; a job in a thread reads no state that may change. `tick` collects
what is done and starts what is due.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from klamm.model.errors import StorageFailure
from klamm.storage.disk import Disk
from klamm.storage.log import Log
from klamm.storage.thread_pools import Threads, real_threads
from klamm.telemetry.log import get_logger

logger = get_logger("storage")


@dataclass(slots=True)
class _Removal:
    """A file or a deleted partition's folder, and when it is removed."""

    path: str
    due_ms: int


class BackgroundIo:
    """Two threads and their jobs."""

    def __init__(self, disk: Disk, threads: Threads = real_threads) -> None:
        self._disk = disk
        self.threads: Executor = threads(2, "klamm-storage")
        self._syncs: list[tuple[Future[None], Log, int, int]] = []
        """(job, log, up to which offset, count of truncations when it began)"""
        self._removals: list[_Removal] = []
        self._removing: list[Future[None]] = []
        self._checkpoint: Future[None] | None = None

    def close(self, *, wait: bool) -> None:
        """Take no more work; `wait` for what is under way."""
        self.threads.shutdown(wait=wait)
        if wait:
            self._collect_syncs()

    def tick(self, now_ms: int) -> None:
        """Collect what is done, remove what is due."""
        self._collect_syncs()
        # Errors of removals are logged by the job itself.
        self._removing = [job for job in self._removing if not job.done()]
        due = [removal.path for removal in self._removals if removal.due_ms <= now_ms]
        if due:
            self._removals = [removal for removal in self._removals if removal.due_ms > now_ms]
            self._removing.append(self.threads.submit(self._remove, due))

    # --- syncs -------------------------------------------------------------------------------------------------------

    def sync(self, log: Log, up_to: int) -> None:
        """Make a log durable up to an offset; its recovery point follows with a later tick."""
        # Every roll and every tick of retention would start the same sync again while it is running.
        if up_to > log.recovery_point and not any(
            log is other and up_to <= end and truncations == log.truncations
            for _, other, end, truncations in self._syncs
        ):
            self._syncs.append((self.threads.submit(log.sync_job(up_to)), log, up_to, log.truncations))

    def _collect_syncs(self) -> None:
        waiting = []
        blocked: set[int] = set()
        for job, log, up_to, truncations in self._syncs:
            if not job.done() or id(log) in blocked:
                # Recovery points move in order: the sync of an earlier segment may still be running.
                blocked.add(id(log))
                waiting.append((job, log, up_to, truncations))
                continue
            error = job.exception()
            if error is None:
                log.mark_durable(up_to, truncations)
            elif not log.retired:
                failure = StorageFailure(f"cannot sync {log.name}: {error}")
                logger.error("log sync failed", partition=log.name, reason=error)
                log.fail(failure)
        self._syncs = waiting

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def write_checkpoints(self, writers: list[Callable[[], None]], *, wait: bool) -> None:
        """Write checkpoint files, one set at a time; a set that would come too soon is left for the next call."""
        if self._checkpoint is not None:
            if not wait and not self._checkpoint.done():
                return
            error = self._checkpoint.exception()
            self._checkpoint = None
            if error is not None:
                logger.error("checkpoint write failed", reason=error)
        if wait:
            for write in writers:
                write()
        else:
            self._checkpoint = self.threads.submit(_write_all, writers)

    def run(self, writers: list[Callable[[], None]]) -> None:
        """Write other files, as soon as a thread is free; a failure is logged."""

        def report(job: Future[None]) -> None:
            error = job.exception()
            if error is not None:
                logger.error("checkpoint write failed", reason=error)

        self.threads.submit(_write_all, writers).add_done_callback(report)

    # --- removals ----------------------------------------------------------------------------------------------------

    def remove(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove files or folders at `due_ms`."""
        self._removals += [_Removal(path, due_ms) for path in paths]

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            if self._disk.isdir(path):
                self._disk.rmtree(path)
                continue
            try:
                self._disk.remove_if_exists(path)
            except OSError as error:
                logger.warning("file could not be removed", path=path, reason=error)


def _write_all(writers: list[Callable[[], None]]) -> None:
    for write in writers:
        write()
