"""What a run publishes of one query: numbers, state, error and what it waits for, as JSON has it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from klamm.pipeline.sql.core.rebuild_steps import RebuildTarget
from klamm.pipeline.sql.running_query import ENDED, QueryState, RunningQuery
from klamm.pipeline.sql.status import error_line
from klamm.pipeline.sql.topic_lag import Lag


def query_status(
    running: RunningQuery, queries: Sequence[RunningQuery], lag: Lag | None, rebuild: RebuildTarget | None
) -> dict[str, Any]:
    """Return the status of a query; `queries` are all of its pipeline."""
    status = running.tally.status()
    if lag is not None:
        status |= lag.status
    failure = running.failure
    pause_s = max(running.restart_at - time.monotonic(), 0.0) if running.state == QueryState.RESTARTING else None
    return status | {
        "state": str(running.state),
        "waits_for": awaited_queries(running, queries),
        "failures": running.failures,
        "restarts": running.restarts,
        # How many offsets a rebuilt query reads until it replaces the old rows; None for other queries.
        "rebuild_offsets": None if rebuild is None else rebuild.unread(running.tally.position) or None,
        "restart_in_ms": None if pause_s is None else round(pause_s * 1000),
        "advice": failure.advice if failure is not None else None,
        "error": running.error,
        "error_ms": running.error_ms,
        "error_gist": error_line(failure.reason if failure is not None else running.error or "") or None,
    }


def awaited_queries(running: RunningQuery, queries: Sequence[RunningQuery]) -> list[str]:
    """Return the queries whose end, or start, a waiting query waits for."""
    if running.state != QueryState.WAITING:
        return []
    inputs = [
        other.query.name
        for other in queries
        if other.query.name in running.waits_for and other.state not in (*ENDED, QueryState.RUNNING)
    ]
    return inputs or [
        other.query.name for other in queries if other.state == QueryState.STARTING and other is not running
    ]
