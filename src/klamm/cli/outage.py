"""Waiting for a cluster that does not answer, for commands that run until they are stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.cli.queries.offsets import PartitionPair

REPORT_AFTER_S: Final = 3.0
"""How long an outage lasts before it is reported."""
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0


class Outage:
    """A time in which partitions do not answer: how long it may last, and how it is reported.

    With a limit of None it may last for ever. `report` is called with a sentence when it lasts, and again at its end.
    """

    def __init__(self, patience_s: float | None, report: Callable[[str], None] | None = None) -> None:
        self._patience_s = patience_s
        self._report = report
        self._since: float | None = None
        self._places: set[PartitionPair] = set()
        self._reported = False
        self._pause_s = _PAUSE_MIN_S

    def go_on(self, places: Iterable[PartitionPair], error: Exception) -> None:
        """Pause before the next attempt, or raise the error when the outage has lasted too long."""
        now = time.monotonic()
        self._since = self._since or now
        self._places.update(places)
        # The limit counts from the first failure in a row, not per attempt.
        if self._patience_s is not None and now - self._since > self._patience_s:
            raise error
        if self._report is not None and not self._reported and now - self._since > REPORT_AFTER_S:
            self._reported = True
            self._report(f"waiting, Ctrl-C ends it: {error}")
        time.sleep(self._pause_s)
        # Exponential backoff: most outages are leader elections and short, a few are restarts and long.
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)

    def end(self, *places: PartitionPair) -> None:
        """These partitions answer again."""
        self._places.difference_update(places)
        # The outage ends with the last of its partitions, or its reports would alternate while others fail.
        if self._since is None or self._places:
            return
        if self._reported and self._report is not None:
            self._report("the cluster answers again")
        self._since, self._reported, self._pause_s = None, False, _PAUSE_MIN_S


def passes(error: Exception) -> bool:
    """Whether a retry may succeed: a broken connection, a retriable code, or a broker that is not alive yet."""
    return not isinstance(error, KlammError) or error.code.retriable or error.code == ErrorCode.BROKER_NOT_AVAILABLE
