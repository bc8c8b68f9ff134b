"""Replication quota (KIP-73): how fast replicas that are not in sync may be copied, in bytes over a window. Pure."""

from collections import deque

from klamm.storage.config import MAX_LONG

WINDOW_MS = 11_000
"""Kafka's replication.quota.window.num, 11 samples of replication.quota.window.size.seconds, 1 s each."""
SAMPLE_MS = 1_000


class Throttle:
    """A rate limit that is checked before copying and charged afterwards; a large batch may exceed it once."""

    def __init__(self, rate: int = MAX_LONG) -> None:
        self.rate = rate
        """Bytes per second."""
        self._samples: deque[list[int]] = deque()
        self._total = 0

    def record(self, size: int, now_ms: int) -> None:
        """Count `size` bytes that were copied."""
        self._forget(now_ms)
        if self._samples and now_ms - self._samples[-1][0] < SAMPLE_MS:
            self._samples[-1][1] += size
        else:
            self._samples.append([now_ms, size])
        self._total += size

    def exceeded(self, now_ms: int) -> bool:
        """Whether more was copied lately than the rate allows."""
        if self.rate >= MAX_LONG:
            return False
        self._forget(now_ms)
        if not self._samples:
            return self.rate <= 0
        # At least one sample's length, or the first bytes after a pause would look like an endless rate.
        elapsed_ms = max(now_ms - self._samples[0][0], SAMPLE_MS)
        return self._total * 1000 > self.rate * elapsed_ms

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] > WINDOW_MS:
            self._total -= self._samples.popleft()[1]
