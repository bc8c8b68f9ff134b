"""One query of a pipeline in its process: its state, its current run on Spark, its failures and its totals.

The supervisor decides what it does next; `query_status` is what is published of it.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from klamm.pipeline.sql.core.problems import SqlError
from klamm.pipeline.sql.core.query_failures import QueryFailure
from klamm.pipeline.sql.core.query_totals import QueryTotals
from klamm.pipeline.sql.engine import Query
from klamm.pipeline.sql.late_rows import LateRowsWatch

_log = logging.getLogger(__name__)
_STARTING_MESSAGE: Final = "Initializing"
"""The status message of a query whose sources have not started yet."""


class QueryState(StrEnum):
    """What a query does, as `show` and the live view print it."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"


ENDED: Final = (QueryState.FAILED, QueryState.PAUSED, QueryState.DONE)
"""States in which a query is not started: until a request, or until the process ends."""


@dataclass(slots=True)
class RunningQuery:
    """A query, its current run, and its failures."""

    query: Query
    waits_for: tuple[str, ...] = ()
    state: QueryState = QueryState.WAITING
    handle: Any = None
    failures: int = 0
    restarts: int = 0
    restart_at: float = 0.0
    error: str | None = None
    error_ms: int | None = None
    failure: QueryFailure | None = None
    wrong_statement: SqlError | None = None
    next_state: QueryState | None = None
    """PAUSED or STARTING while its run is to end after the batch, by a request."""
    end_by: float = 0.0
    tally: QueryTotals = field(default_factory=QueryTotals)

    def is_starting(self) -> bool:
        """Whether its run has begun and its sources have not."""
        if self.handle is None or not self.handle.isActive:
            return False
        return str(self.handle.status.get("message", "")).startswith(_STARTING_MESSAGE)

    def take_progress(self, late_rows: LateRowsWatch | None, *, log_batches: bool) -> None:
        """Add its progress to its totals; a completed batch resets the count of failures."""
        if self.handle is None:
            return
        done_before = self.tally.done_batch
        # recentProgress is passed as a callable: reading it copies all reports from the JVM, and is rarely needed.
        recent = functools.partial(getattr, self.handle, "recentProgress")
        batches = self.tally.take(self.handle.lastProgress, recent, now_ms())
        if self.tally.done_batch > done_before:
            self.failures = 0
        for facts in batches:
            if facts.get("late_dropped") and late_rows is not None:
                late_rows.add(self.query, facts["batch"], facts["late_dropped"], self.tally)
        if log_batches:
            for facts in batches:
                fields = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
                _log.info("batch done query=%s %s", self.query.name, fields)


def now_ms() -> int:
    """Return the time of the clock on the wall."""
    return time.time_ns() // 1_000_000
