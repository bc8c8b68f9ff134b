"""Progress of recovery at start: one log line every few seconds."""

import threading

from klamm.model.clock import Clock
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

INTERVAL_MS = 2000


class RecoveryProgress:
    """Counts bytes over all recovery threads. `total_bytes` is what is beyond the recovery points."""

    def __init__(self, clock: Clock, total_bytes: int) -> None:
        self._clock = clock
        self._total = total_bytes
        self._done = 0
        self._started = self._reported_ms = clock.monotonic_ms()
        self._lock = threading.Lock()

    def advance(self, name: str, count: int) -> None:
        """Count bytes of a log that were checked."""
        with self._lock:
            self._done += count
            now = self._clock.monotonic_ms()
            if now - self._reported_ms < INTERVAL_MS:
                return
            self._reported_ms = now
            # Under the lock; the line itself is written without it, so that the other threads go on.
            done, elapsed = self._done, now - self._started
        rate = done / 1000 / elapsed
        left = max(self._total - done, 0)
        logger.info(
            "recovering logs",
            percent=min(100 * done // max(self._total, 1), 100),
            mb=done // 1_000_000,
            total_mb=self._total // 1_000_000,
            mb_per_second=round(rate, 1),
            seconds_left=round(left / 1000 / max(rate, 0.001) / 1000),
            partition=name,
        )
