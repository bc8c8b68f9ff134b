"""The windows in which quotas are measured, as Kafka's Rate and TokenBucket; pure: time is an argument."""

from collections import deque
from dataclasses import dataclass
from typing import Final

THROTTLE_MS_MAX: Final = 2**31 - 1
"""The largest throttle_time_ms of the protocol."""


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """The samples of a window."""

    samples: int = 11
    """quota.window.num"""
    sample_ms: int = 1_000
    """quota.window.size.seconds"""


class RateWindow:
    """Bytes, or time, of the last samples as a rate per second.

    The rate is divided by at least all samples but one, however young the window is. So a client that was quiet may use
    the quota of a whole window at once, and is then held until that leaves the window; in the long run the rate is the
    quota. Only requests that are larger than the quota of a window exceed it, as in Kafka.
    """

    __slots__ = ("_config", "_samples", "throttled_ms")

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._samples: deque[list[float]] = deque()
        """[start, total, last event] of each sample, the oldest first."""
        self.throttled_ms = 0
        """For how long connections were muted because of it, for metrics."""

    def record(self, value: float, now_ms: int) -> None:
        """Add a value to the sample of now; a negative one takes back what was recorded."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._config.sample_ms:
            samples.append([now_ms, 0.0, now_ms])
        samples[-1][1] += value
        samples[-1][2] = now_ms
        self._drop_old(now_ms)

    def rate(self, now_ms: int) -> float:
        """Return the rate per second."""
        self._drop_old(now_ms)
        total = sum(sample[1] for sample in self._samples)
        return total * 1000 / self._window_ms(now_ms)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long a client must wait until its rate is `limit`; 0 when it is not above."""
        rate = self.rate(now_ms)
        if rate <= limit:
            return 0
        # The smaller one first: with a tiny limit the quotient is infinite, which has no integer.
        return round(min((rate - limit) / limit * self._window_ms(now_ms), THROTTLE_MS_MAX))

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing is counted: the window is like a new one."""
        self._drop_old(now_ms)
        return not self._samples

    def _window_ms(self, now_ms: int) -> int:
        config = self._config
        elapsed = now_ms - int(self._samples[0][0]) if self._samples else 0
        missing = config.samples - 1 - elapsed // config.sample_ms
        # At least 1: with one sample, no time has passed when it begins.
        return max(elapsed + max(missing, 0) * config.sample_ms, 1)

    def _drop_old(self, now_ms: int) -> None:
        samples = self._samples
        # By its last event, as Kafka does: a sample that reaches into the window counts whole, or a burst at its end
        # would leave the window a second early.
        oldest_ms = now_ms - self._config.samples * self._config.sample_ms
        while samples and samples[0][2] <= oldest_ms:
            samples.popleft()


class TokenBucket:
    """Tokens for changes of the cluster: a request may take more than there are, and the next one waits (KIP-599)."""

    __slots__ = ("_config", "_last_ms", "_limit", "_tokens", "throttled_ms")

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._tokens = 0.0
        self._last_ms: int | None = None
        self._limit = 0.0
        self.throttled_ms = 0
        """For how long connections were muted because of it, for metrics."""

    def tokens(self, limit: float, now_ms: int) -> float:
        """Return the tokens of now, where `limit` flow in per second; a new bucket is full."""
        capacity = limit * self._config.samples * self._config.sample_ms / 1000
        if self._last_ms is None:
            self._tokens = capacity
        else:
            self._tokens = min(capacity, self._tokens + limit * (now_ms - self._last_ms) / 1000)
        self._last_ms = now_ms
        self._limit = limit
        return self._tokens

    def is_idle(self, now_ms: int) -> bool:
        """Whether the bucket is full, like a new one."""
        capacity = self._limit * self._config.samples * self._config.sample_ms / 1000
        return self._last_ms is None or self.tokens(self._limit, now_ms) >= capacity

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take tokens, also if there are not enough."""
        self._tokens = self.tokens(limit, now_ms) - count

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long it takes until the bucket is no longer below zero."""
        tokens = self.tokens(limit, now_ms)
        return 0 if tokens >= 0 else round(min(-tokens / limit * 1000, THROTTLE_MS_MAX))
