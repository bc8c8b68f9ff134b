"""Waiting for a cluster that does not answer just now, for commands that go on and on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from klamm.model.errors import ErrorCode, KlammError

Place = tuple[str, int]
TELL_S: Final = 3.0
"""How long it may be so before a person is told."""
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0


class Outage:
    """A time in which partitions do not answer: how long it may last, and what is said of it.

    With a limit of None it may last for ever. `tell` is given a sentence when it lasts and another at its end.
    """

    def __init__(self, patience_s: float | None, tell: Callable[[str], None] | None = None) -> None:
        self._patience_s = patience_s
        self._tell = tell
        self._since: float | None = None
        self._places: set[Place] = set()
        self._told = False
        self._pause_s = _PAUSE_MIN_S

    def go_on(self, places: Iterable[Place], error: Exception) -> None:
        """Rest a moment, or raise the error when it has lasted too long."""
        now = time.monotonic()
        self._since = self._since or now
        self._places.update(places)
        if self._patience_s is not None and now - self._since > self._patience_s:
            raise error
        if self._tell is not None and not self._told and now - self._since > TELL_S:
            self._told = True
            self._tell(f"waiting, Ctrl-C ends it: {error}")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    def end(self, *places: Place) -> None:
        """These answer."""
        self._places.difference_update(places)
        if self._since is None or self._places:
            return
        if self._told and self._tell is not None:
            self._tell("the cluster answers again")
        self._since, self._told, self._pause_s = None, False, _PAUSE_MIN_S


def passes(error: Exception) -> bool:
    """Whether a retry may succeed: no broker answers, or another one than the coordinator."""
    return not isinstance(error, KlammError) or error.code.retriable or error.code == ErrorCode.BROKER_NOT_AVAILABLE
