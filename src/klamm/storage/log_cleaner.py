"""Scheduling compaction: picks the dirtiest logs, starts passes in threads, and swaps the results in.

A thread reads and writes; the log itself changes only on the loop's thread, in two short steps per group of segments:

    loop     rename `.cleaned` to `.swap`          (the thread then makes the names durable)
    loop     new segment for the old ones in memory, old files to `.deleted`, `.swap` to their final names

After a crash between the two, the next start completes the swap (see `segment_swap`). Deletion, truncation and
retention of the log in the meantime are noticed before every step, and the pass is stopped.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from klamm.model.clock import Clock
from klamm.model.errors import CorruptBatch, KlammError, StorageFailure
from klamm.storage.cleaner_pass import CleanedGroup, CleanerJob, CleanerPass, CleanerStopped
from klamm.storage.compaction_policy import ClosedSegment, CompactionPlan, plan_compaction
from klamm.storage.config import MAX_LONG, CleanerConfig
from klamm.storage.disk import Disk
from klamm.storage.log import Log
from klamm.storage.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX, remove_files, rename_files
from klamm.storage.thread_pools import Threads, real_threads
from klamm.telemetry.log import get_logger

logger = get_logger("storage")


@dataclass(slots=True, eq=False)
class _Step:
    """Work that a cleaner thread hands to the loop and waits for."""

    work: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass(slots=True)
class _Running:
    log: Log
    job: CleanerJob
    future: Future[None] | None = None


class LogCleaner:
    """Owned by the loop's thread. `tick` drives it, and `step` whenever a thread calls `wake`."""

    def __init__(
        self,
        config: CleanerConfig,
        disk: Disk,
        clock: Clock,
        *,
        discard: Callable[[Log, list[str]], None],
        checkpoint_writer: Callable[[Log], Callable[[], None]],
        recovery_point_writer: Callable[[Log], Callable[[], None] | None],
        threads: Threads = real_threads,
        call_on_loop: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self.config = config
        self._disk = disk
        self._clock = clock
        self._discard = discard
        self._checkpoint_writer = checkpoint_writer
        """Returns what writes the cleaner offset checkpoint of a log's folder, as of now."""
        self._recovery_point_writer = recovery_point_writer
        """Returns what writes the recovery point of a log, None while its closed segments are not durable. Holes that
        compaction makes must be below it: recovery takes a hole beyond it for records that a crash has lost."""
        self.wake: Callable[[], object] = _ignore_wake if call_on_loop is None else partial(call_on_loop, self.step)
        """Calls `step` soon on the loop's thread, from any thread; without a loop the next `tick` does the work."""
        self._threads = threads(max(config.threads, 1), "klamm-cleaner")
        self._steps: deque[_Step] = deque()
        self._running: list[_Running] = []
        self._damaged: set[Log] = set()
        """Logs that are not compacted before they are repaired."""
        self._paused: set[Log] = set()
        """Logs that are being copied to another log dir."""
        self._next_look_ms = 0
        self._closed = False
        self.passes = 0
        """Passes that have ended without an error."""
        self.max_dirty_ratio = 0.0
        """The largest share of uncleaned bytes of a compacted log, when the cleaner last looked for work."""
        self._owner = threading.get_ident()

    @property
    def busy(self) -> bool:
        """Whether a pass is under way."""
        return bool(self._running)

    @property
    def running_count(self) -> int:
        """How many passes are under way."""
        return len(self._running)

    @property
    def damaged_count(self) -> int:
        """How many logs are not compacted because they are damaged."""
        return len(self._damaged)

    def close(self) -> None:
        """Stop all passes and wait for the threads to end."""
        self._closed = True
        for running in self._running:
            running.job.stop.set()
        self._threads.shutdown(wait=True)
        self._running.clear()

    def release(self, log: Log) -> None:
        """Stop a pass on this log: its segments are about to change."""
        for running in self._running:
            if running.log is log:
                running.job.stop.set()
        # Its files have the ending `.swap` already; a restart would put them in the place of segments that have
        # changed.
        if log.state.swapping is not None:
            remove_files(self._disk, log.path, log.state.swapping, SWAP_SUFFIX)
            log.state.swapping = None
        self._damaged.discard(log)
        self._paused.discard(log)

    def pause(self, log: Log) -> None:
        """Do not compact a log from now on; a pass on it is stopped."""
        self.release(log)
        self._paused.add(log)

    def resume(self, log: Log) -> None:
        """Compact a log again that was paused."""
        self._paused.discard(log)

    def tick(self, now_ms: int, logs: Iterable[Log]) -> None:
        """Do the work that threads have handed over; start passes when they are due. `now_ms` is monotonic."""
        finished = self.step()
        if finished or now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + self.config.backoff_ms
            if self.config.enabled and not self._closed:
                self._start_passes(logs)

    def step(self) -> bool:
        """Do the work that threads have handed over; return whether a pass has ended."""
        while self._steps:
            step = self._steps.popleft()
            try:
                step.work()
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                step.error = error
            step.done.set()
        ended = [running for running in self._running if running.future is not None and running.future.done()]
        for running in ended:
            self._running.remove(running)
            self._report(running)
        return bool(ended)

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _start_passes(self, logs: Iterable[Log]) -> None:
        free_threads = self.config.threads - len(self._running)
        if free_threads <= 0:
            return
        # A log is in one pass at a time: two would rewrite the same segments.
        excluded = {running.log for running in self._running} | self._damaged | self._paused
        now = self._clock.now_ms()
        candidates: list[tuple[CompactionPlan, Log]] = []
        self.max_dirty_ratio = 0.0
        for log in logs:
            if log.config.compacted and len(log.segments) > 1 and log not in excluded and not log.failed:
                plan = self.plan(log, now)
                self.max_dirty_ratio = max(self.max_dirty_ratio, plan.dirty_ratio)
                if plan.worthwhile(log.config):
                    candidates.append((plan, log))
        for plan, log in sorted(candidates, key=_dirty_ratio, reverse=True):
            try:
                free_threads -= free_threads > 0 and self.start(log, plan, now)
            except CorruptBatch as error:
                self._exclude_damaged(log, error)

    def plan(self, log: Log, now_ms: int) -> CompactionPlan:
        """Plan the pass a log would get."""
        return plan_compaction(
            _facts(log),
            log.config,
            cleaned_offset=log.cleaned_offset,
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.last_stable_offset,
            log_end_offset=log.log_end_offset,
            now_ms=now_ms,
        )

    def start(self, log: Log, plan: CompactionPlan, now_ms: int) -> bool:
        """Start a pass in a thread; False when the log must become durable first."""
        write_recovery_point = self._recovery_point_writer(log)
        if write_recovery_point is None:
            return False
        facts = [fact for fact in _facts(log) if fact.base_offset < plan.end_offset]
        # Memory and bandwidth are settings for all threads together.
        threads = max(self.config.threads, 1)
        job = CleanerJob(
            name=log.name,
            segments=log.segments[: len(facts)],
            facts=facts,
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=plan.end_offset,
            config=log.config,
            aborted=log.aborted_transactions(log.segments[0].base_offset, plan.end_offset),
            producers={e.producer_id: (e.last_offset, e.epoch) for e in log.producers.entries.values()},
            now_ms=now_ms,
            memory_bytes=self.config.dedupe_buffer_bytes // threads,
            load_factor=self.config.load_factor,
            buffer_bytes=self.config.io_buffer_bytes // threads,
            bytes_per_second=self.config.bytes_per_second / threads,
        )
        running = _Running(log, job)
        self._running.append(running)
        running.future = self._threads.submit(self._clean, log, job, write_recovery_point)
        running.future.add_done_callback(self._wake_loop)
        return True

    def _wake_loop(self, _future: Future[None]) -> None:
        self.wake()

    def _report(self, running: _Running) -> None:
        assert running.future is not None
        error = running.future.exception()
        name = running.log.name
        self.passes += error is None
        if error is None or isinstance(error, CleanerStopped) or running.log.retired:
            return
        if isinstance(error, CorruptBatch):
            self._exclude_damaged(running.log, error)
        elif isinstance(error, (OSError, KlammError)):
            logger.warning("compaction failed, retrying later", partition=name, reason=error)
        else:
            self._damaged.add(running.log)
            logger.failure("compaction failed", error, partition=name)

    def _exclude_damaged(self, log: Log, error: CorruptBatch) -> None:
        self._damaged.add(log)
        logger.error("log damaged, compaction stopped for it", partition=log.name, reason=error.message)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _clean(self, log: Log, job: CleanerJob, write_recovery_point: Callable[[], None]) -> None:
        write_recovery_point()
        cleaner_pass = CleanerPass(self._disk, job)
        cleaner_pass.map_keys()
        # Without this, the same pass would be planned again and again and never make progress.
        if cleaner_pass.map_end <= job.first_dirty_offset < job.end_offset:
            raise CorruptBatch("log.cleaner.dedupe.buffer.size is too small for the keys of one batch")
        for segments in cleaner_pass.groups():
            group = cleaner_pass.rewrite(segments)
            try:
                self._run_on_loop(job, partial(self._name_swap, log, job, group))
            except BaseException:
                remove_files(self._disk, group.replaced[0].folder, group.base_offset, CLEANED_SUFFIX)
                raise
            self._sync_names(log, job)
            self._run_on_loop(job, partial(self._swap, log, job, group))
        self._sync_names(log, job)
        writers: list[Callable[[], None]] = []

        def finish() -> None:
            if job.stop.is_set() or log.retired:
                raise CleanerStopped
            log.state.cleaned_offset = cleaner_pass.map_end
            writers.append(self._checkpoint_writer(log))

        self._run_on_loop(job, finish)
        writers[0]()
        stats = cleaner_pass.stats
        logger.info(
            "log compacted",
            partition=job.name,
            cleaned_offset=cleaner_pass.map_end,
            bytes_before=sum(s.size for s in job.segments),
            bytes_after=stats.bytes_written,
            records_kept=stats.records_kept,
            records=stats.records_read,
            seconds=round(stats.seconds, 3),
            mb_per_second=round(stats.bytes_read / stats.seconds / 1e6, 1),
        )

    def _sync_names(self, log: Log, job: CleanerJob) -> None:
        try:
            self._disk.sync_dir(log.path)
        except FileNotFoundError:
            raise CleanerStopped from None  # the log was deleted, its folder was renamed
        except OSError as error:
            failure = StorageFailure(f"cannot sync {log.path}: {error}")
            self._run_on_loop(job, partial(log.fail, failure))
            raise failure from error

    def _run_on_loop(self, job: CleanerJob, work: Callable[[], None]) -> None:
        """Run `work` on the loop's thread and wait for it."""
        if threading.get_ident() == self._owner:
            work()
            return
        step = _Step(work)
        self._steps.append(step)
        self.wake()
        # Polled, because `stop` and `done` are two events and a thread can only wait for one.
        while not step.done.wait(0.05):
            if job.stop.is_set():
                raise CleanerStopped
        if step.error is not None:
            raise step.error

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _check(self, log: Log, job: CleanerJob, group: CleanedGroup) -> None:
        """Raise CleanerStopped when the log is no longer what the pass began with."""
        # By identity: a truncation followed by appends can bring back a segment with the same base offset.
        current = set(map(id, log.segments))
        if job.stop.is_set() or log.retired or log.failed or any(id(s) not in current for s in group.replaced):
            raise CleanerStopped

    def _name_swap(self, log: Log, job: CleanerJob, group: CleanedGroup) -> None:
        self._check(log, job, group)
        try:
            rename_files(self._disk, log.path, group.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
        except OSError as error:
            raise StorageFailure(f"cannot rename cleaned files of {log.name}: {error}") from error
        log.state.swapping = group.base_offset

    def _swap(self, log: Log, job: CleanerJob, group: CleanedGroup) -> None:
        if log.state.swapping is None:
            raise CleanerStopped
        try:
            self._check(log, job, group)
        except CleanerStopped:
            remove_files(self._disk, log.path, group.base_offset, SWAP_SUFFIX)
            log.state.swapping = None
            raise
        self._discard(log, log.replace_segments(group.replaced, group.size, group.max_timestamp))


def _ignore_wake() -> None:
    """Leave the work to the next tick."""


def _dirty_ratio(candidate: tuple[CompactionPlan, Log]) -> float:
    return candidate[0].dirty_ratio


def _facts(log: Log) -> list[ClosedSegment]:
    """Return what planning needs to know of the closed segments of a log."""
    lagging = log.config.max_compaction_lag_ms < MAX_LONG
    return [
        ClosedSegment(
            segment.base_offset,
            following.base_offset,
            segment.size,
            segment.size // max(log.config.index_interval_bytes, 61) * 12,
            segment.max_timestamp[0],
            segment.first_timestamp() if lagging else -1,
        )
        for segment, following in zip(log.segments[:-1], log.segments[1:], strict=True)
    ]
