"""Exponential backoff with jitter, so that clients do not retry in step (KIP-580)."""

import random

_JITTER = 0.2  # KIP-580


class Backoff:
    """Doubles from `first_s` to `most_s`; `next()` counts a failure, `reset()` sets the count to zero."""

    __slots__ = ("_failures", "_first_s", "_most_s", "_random")

    def __init__(self, first_s: float, most_s: float, chance: random.Random | None = None) -> None:
        self._first_s, self._most_s = first_s, max(first_s, most_s)
        self._failures = 0
        self._random = chance or random.Random()  # noqa: S311 - no secret

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def next(self) -> float:
        """The next wait, in seconds."""
        # The shift is bounded: after days of failures the power would be a number of thousands of digits.
        base = min(self._first_s * (1 << min(self._failures, 30)), self._most_s)
        self._failures += 1
        return base * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0
