"""Waiting longer after every failure, with a little chance so that clients do not return in step."""

import random

_JITTER = 0.2


class Backoff:
    """Doubles from `first_s` to `most_s`; `next()` counts a failure, `reset()` forgets them."""

    __slots__ = ("_failures", "_first_s", "_most_s", "_random")

    def __init__(self, first_s: float, most_s: float, chance: random.Random | None = None) -> None:
        self._first_s, self._most_s = first_s, max(first_s, most_s)
        self._failures = 0
        self._random = chance or random.Random()  # noqa: S311 - no secret

    @property
    def failures(self) -> int:
        """How often it failed in a row."""
        return self._failures

    def next(self) -> float:
        """How long to wait now, in seconds."""
        base = min(self._first_s * (1 << min(self._failures, 30)), self._most_s)
        self._failures += 1
        return base * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        """It went well."""
        self._failures = 0
