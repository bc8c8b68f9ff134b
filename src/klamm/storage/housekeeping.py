"""What is done to logs by the clock: retention, flush.ms, checkpoints, forgetting producers, rounds of the cleaner.

The loop calls `tick` now and then. Looking at the logs is done here and at once, in slices where there are many; the
slow part of everything goes to threads.
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
"""Time retention may take of one tick; what is left waits for the next."""


class Housekeeping:
    """When things are due, and who waits for what. `LogManager` owns it and gives it the logs of the moment."""

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
        """Begins to write the checkpoints of all log dirs."""
        self._discard = discard
        """Takes files that are out of a log."""
        self._next_checkpoint_ms = 0
        self._next_expiry_ms = 0
        self._next_retention_ms = 0
        self.to_retain: deque[Log] = deque()
        """Logs that retention has yet to look at in this round."""
        self._undurable: list[Log] = []
        """Logs that have something to forget and must become durable first."""
        self._unsynced_since: dict[Log, int] = {}
        """Since when logs with flush.ms have had something to sync."""

    def begin(self) -> None:
        """The logs are open: what is due from time to time is due one interval from now."""
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
            wall = self._clock.now_ms()
            for log in self._logs():
                log.producers.remove_expired(wall, self._config.producer_id_expiration_ms)

    @property
    def behind(self) -> bool:
        """Whether a tick has left something for the next, which had better come soon."""
        return bool(self.to_retain)

    def _retain(self) -> None:
        """Let logs forget what retention says; those that must become durable first are looked at again."""
        started, wall = self._clock.monotonic_ms(), self._clock.now_ms()
        while self.to_retain and self._clock.monotonic_ms() - started < _RETENTION_SLICE_MS:
            log = self.to_retain.popleft()
            if log.retired or log.failed:
                continue
            try:
                before = len(log.segments)
                condemned = log.apply_retention(wall)
                self._discard(log, condemned)
                if before > len(log.segments):
                    logger.info(
                        "deleted segments",
                        partition=log.name,
                        count=before - len(log.segments),
                        log_start_offset=log.log_start_offset,
                    )
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
