"""Periodic work on logs: retention, flush.ms, checkpoints, expiry of producers, passes of the cleaner.

The loop calls `tick` regularly. Deciding what is due happens here and at once, in slices where there are many logs; all
slow I/O happens in threads.
"""

from collections import deque
from collections.abc import Callable, Collection

from klamm.model.clock import Clock
from klamm.model.errors import StorageFailure
from klamm.storage.background_io import BackgroundIo
from klamm.storage.config import MAX_LONG, StorageConfig
from klamm.storage.log import Log
from klamm.storage.log_cleaner import LogCleaner
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

INITIAL_DELAY_MS = 30_000
"""Retention waits so long after a start."""
_RETENTION_SLICE_MS = 5
"""Milliseconds of one tick that retention may take; the rest waits for the next."""


class Housekeeping:
    """The schedule of periodic work. `LogManager` owns it and provides the current logs."""

    def __init__(
        self,
        config: StorageConfig,
        clock: Clock,
        background: BackgroundIo,
        cleaner: LogCleaner,
        *,
        logs: Callable[[], Collection[Log]],
        checkpoint: Callable[[], None],
        discard: Callable[[Log, list[str]], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._background = background
        self._cleaner = cleaner
        self._logs = logs
        self._checkpoint = checkpoint
        """Starts to write the checkpoints of all log dirs."""
        self._discard = discard
        """Removes files that were renamed to `.deleted`, after file.delete.delay.ms."""
        self._next_checkpoint_ms = 0
        self._next_expiry_ms = 0
        self._next_retention_ms = 0
        self.to_retain: deque[Log] = deque()
        """Logs that retention has not visited yet in this round."""
        self._undurable: list[Log] = []
        """Logs with segments to delete that must become durable first."""
        self._unsynced_since: dict[Log, int] = {}
        """Since when logs with flush.ms have had something to sync."""

    def begin(self) -> None:
        """Start the schedule: all periodic work is due one interval from now."""
        now = self._clock.monotonic_ms()
        self._next_checkpoint_ms = now + self._config.checkpoint_interval_ms
        self._next_expiry_ms = now + self._config.producer_id_expiration_check_interval_ms
        self._next_retention_ms = now + min(INITIAL_DELAY_MS, self._config.retention_check_interval_ms)

    def tick(self, now_ms: int) -> None:
        """Collect what threads have finished and do what is due. `now_ms` is monotonic."""
        self._background.tick(now_ms)
        if now_ms >= self._next_retention_ms and not self.to_retain:
            self._next_retention_ms = now_ms + self._config.retention_check_interval_ms
            self.to_retain = deque(self._logs())
        # They had segments to delete that were not durable; the sync may be done by now.
        elif self._undurable:
            self.to_retain.extend(self._undurable)
        self._undurable = []
        if self.to_retain:
            self._retain()
        self._cleaner.tick(now_ms, self._logs())
        self._flush_by_time(now_ms)
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + self._config.checkpoint_interval_ms
            self._checkpoint()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self._config.producer_id_expiration_check_interval_ms
            # Producers expire by record timestamps, which are wall-clock time; `now_ms` is monotonic.
            wall = self._clock.now_ms()
            for log in self._logs():
                log.producers.remove_expired(wall, self._config.producer_id_expiration_ms)

    @property
    def behind(self) -> bool:
        """Whether a tick has left work for the next one, which should come soon."""
        return bool(self.to_retain)

    def _retain(self) -> None:
        """Apply retention to logs; those that must become durable first are visited again with the next tick."""
        started, wall = self._clock.monotonic_ms(), self._clock.now_ms()
        while self.to_retain and self._clock.monotonic_ms() - started < _RETENTION_SLICE_MS:
            log = self.to_retain.popleft()
            if log.retired or log.failed:
                continue
            try:
                before = len(log.segments)
                renamed = log.apply_retention(wall)
                self._discard(log, renamed)
                if before > len(log.segments):
                    logger.info(
                        "segments deleted by retention",
                        partition=log.name,
                        count=before - len(log.segments),
                        log_start_offset=log.log_start_offset,
                    )
                # Deletable but beyond the recovery point: synced now, deleted by a later tick.
                if log.count_deletable_segments(wall):
                    self._background.sync(log, log.segments.active.base_offset)
                    self._undurable.append(log)
            except (OSError, StorageFailure) as error:
                logger.warning("retention failed", partition=log.name, reason=error)

    def _flush_by_time(self, now_ms: int) -> None:
        """Sync logs whose oldest unsynced record has waited for flush.ms."""
        since = {}
        for log in self._logs():
            if log.config.flush_ms < MAX_LONG and log.log_end_offset > log.recovery_point and not log.failed:
                first = self._unsynced_since.get(log, now_ms)
                if now_ms - first >= log.config.flush_ms:
                    self._background.sync(log, log.log_end_offset)
                else:
                    since[log] = first
        self._unsynced_since = since
