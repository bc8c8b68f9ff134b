"""Clocks: impure code has a Clock, pure cores get `now_ms` as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for timeouts; never mixed."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, for timestamps that are stored or sent."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back, for timeouts."""


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        """Wall time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Time since an arbitrary start."""
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that tests advance."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now = now_ms

    def now_ms(self) -> int:
        """The time set."""
        return self._now

    def monotonic_ms(self) -> int:
        """The same time."""
        return self._now

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self._now += ms
