"""Supervises the queries of one pipeline: starts and restarts them, and obeys pause, resume, restart and stop.

A query that fails does not end the others. It restarts after a growing pause, or is parked as `failed` when its error
stays: until `klamm pipeline restart`, or until the process ends with an error. Over the current records (`once`)
queries that do not read from each other run side by side.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.pipeline_rights import PipelineRights
from klamm.pipeline.sql.core.problems import SqlError, suggest
from klamm.pipeline.sql.core.query_failures import (
    QueryFailure,
    exhausted_failure,
    is_bad_record,
    lasting_failure,
    restart_pause_s,
    statements_read,
)
from klamm.pipeline.sql.core.query_totals import QueryTotals
from klamm.pipeline.sql.core.rebuild_steps import RebuildTarget
from klamm.pipeline.sql.core.statement_options import duration_ms
from klamm.pipeline.sql.engine import Query, inputs_of
from klamm.pipeline.sql.late_rows import LateRowsWatch
from klamm.pipeline.sql.query_status import query_status
from klamm.pipeline.sql.running_query import ENDED, QueryState, RunningQuery, now_ms
from klamm.pipeline.sql.status import (
    ControlAction,
    ControlRequest,
    Home,
    committed_offsets,
    error_line,
    error_summary,
)
from klamm.pipeline.sql.topic_lag import Lag, LagWatch, ReadOffsets

_log = logging.getLogger(__name__)
_WATCH_INTERVAL_S: Final = 0.25
_ONCE_INTERVAL_S: Final = 0.1
"""Shorter over the current records: a query that waits for another starts at the next poll."""
_PUBLISH_INTERVAL_S: Final = 0.5
"""How often the status is published while no query changes its state: each time Spark encodes all progress."""
_STOP_TIMEOUT_S: Final = 120.0
"""How long a stop or a pause waits for a running batch; an interrupted batch is repeated by the next start."""
_ANSWERS_KEPT: Final = 20
ONCE_RESTARTS: Final = 10
"""Failures in a row after which a query over the current records is parked, when `restarts` is not set."""
_PARALLEL_MAX: Final = 8
_STARTING_ONCE_MAX: Final = 2


def report_nothing(_: str) -> None:
    """Report no progress: the default of `report`."""


def parallel_queries(cores: int | None = None) -> int:
    """Return how many queries run side by side over the current records."""
    # More than the cores: a small query mostly waits, for its Python processes and for the brokers.
    return max(2, min(2 * (cores or os.cpu_count() or 1), _PARALLEL_MAX))


class Supervisor:
    """Runs all queries of a pipeline in this process."""

    def __init__(
        self,
        queries: Sequence[Query],
        home: Home,
        *,
        name: str = "",
        limit: int | None = None,
        trigger: str | None = None,
        first_pause_s: float = 1.0,
        fail_fast: bool = False,
        parallel: int | None = None,
        graph: Sequence[Mapping[str, Any]] = (),
        report: Callable[[str], None] = report_nothing,
        log_batches: bool = False,
        rebuilds: Mapping[str, RebuildTarget] | None = None,
        rights: PipelineRights | None = None,
    ) -> None:
        self._rights = rights
        self._rebuilds = rebuilds or {}
        self.lags: LagWatch | None = None
        self.late_rows: LateRowsWatch | None = None
        self._name = name or os.path.basename(home.path)
        self._log_batches = log_batches
        self._status: dict[str, Any] = {}
        self._first_pause_s = first_pause_s
        names = {query.name for query in queries}
        self._running = [
            RunningQuery(
                query,
                inputs_of(query, names),
                tally=QueryTotals(position=committed_offsets(query.checkpoint)),
            )
            for query in queries
        ]
        self._home = home
        self._limit = limit
        self._trigger = trigger
        self._fail_fast = fail_fast
        self._parallel = parallel or parallel_queries()
        self._graph = list(graph)
        self._report = report
        self._stopping = threading.Event()
        self._sources_started = False
        self._fenced: str | None = None
        self._began_ms = now_ms()
        self._answers: deque[tuple[str, str]] = deque(maxlen=_ANSWERS_KEPT)

    def stop(self) -> None:
        """Request a stop after the running batches; callable from any thread."""
        self._stopping.set()

    def fence(self, reason: str) -> None:
        """Stop with an error, because a newer run has taken over; callable from any thread."""
        self._fenced = reason
        self._stopping.set()

    def status(self) -> Mapping[str, Any]:
        """Return the last published status; callable from any thread."""
        return self._status

    def positions(self) -> dict[str, ReadOffsets]:
        """Return the offsets that queries have read up to; callable from any thread."""
        return {running.query.name: running.tally.position for running in self._running}

    def run(self, *, once: bool) -> None:
        """Run until stopped, or with `once` until the current records are read.

        ConfigError when a query failed, or with `once` when it was stopped before it had read them.
        """
        if once and self._limit is None:
            self._limit = ONCE_RESTARTS
        paused = self._home.read_paused()
        for running in self._running:
            if running.query.name in paused:
                running.state = QueryState.PAUSED
                self._report(f"{running.query.name}: paused; klamm pipeline resume {self._name} {running.query.name}")
        try:
            self._supervise(once=once)
        except BaseException as error:
            # At once: the error is reported without waiting for batches of other queries, which the next run repeats.
            self._halt(after_batch=False)
            self._publish_status("stopped" if isinstance(error, KeyboardInterrupt) else "failed", error_summary(error))
            raise
        self._halt(after_batch=True, once=once)
        if self.late_rows is not None:
            # The last batches may have left rows out; the last status counts them.
            for running in self._running:
                self._take_progress(running)
            self.late_rows.finish()
        message = self._failure_message(self._stopped_early() if once else ())
        self._publish_status("failed" if message else "stopped", message)
        wrong = [running.wrong_statement for running in self._running if running.wrong_statement is not None]
        if wrong:
            # As it is: it shows where in the file.
            raise wrong[0]
        if message:
            raise ConfigError(message)

    def _supervise(self, *, once: bool) -> None:
        published_s, published = float("-inf"), None
        while not self._leaving():
            obeyed = self._obey_requests()
            for running in self._running:
                self._advance(running, once=once)
            shown = [(running.state, running.error_ms) for running in self._running]
            if obeyed or shown != published or time.monotonic() - published_s >= _PUBLISH_INTERVAL_S:
                self._publish_status("running")
                published_s, published = time.monotonic(), shown
            states = {running.state for running in self._running}
            # Paused queries keep the process: they can be resumed. Over the current records nothing is left to do.
            if states <= {QueryState.FAILED} or (once and states <= set(ENDED)):
                return
            self._stopping.wait(_ONCE_INTERVAL_S if once else _WATCH_INTERVAL_S)

    def _advance(self, running: RunningQuery, *, once: bool) -> None:
        """Do what is due for one query; does not wait."""
        if running.handle is None:
            if running.state not in ENDED and time.monotonic() >= running.restart_at and self._may_start(running, once):
                self._start(running, once=once or running.query.in_passes)
            return
        if running.handle.isActive:
            if running.next_state is not None:
                self._end_between_batches(running)
            elif running.state == QueryState.STARTING and not running.is_starting():
                running.state = QueryState.RUNNING
                self._sources_started = True
            return
        if self._failed(running):
            return
        self._sources_started = True
        running.handle = None
        if running.next_state is not None:
            self._apply_next_state(running)
        elif once:
            running.state = QueryState.DONE
            self._report(f"{running.query.name}: done")
        else:
            running.restart_at = time.monotonic() + self._pause_s(running.query)

    def _may_start(self, running: RunningQuery, once: bool) -> bool:
        """Whether a query may start now.

        Spark gives the Python process of a source ten seconds to start; many at once on few cores would not make it.
        """
        starting = sum(other.is_starting() for other in self._running)
        # The first start of a process is alone. The start of a source adds variables to a plain java.util.HashMap that
        # all sources of the session share. Two threads that add to it at once leave a size that is not the number of
        # its entries: every task that is sent afterwards fails with OptionalDataException, until a new process. Once
        # the variables are there, a start only sets them again, which changes no size.
        # After it two at a time where the end is waited for: one that is too slow is restarted.
        if starting >= (_STARTING_ONCE_MAX if once and self._sources_started else 1):
            return False
        if not once:
            return True
        if sum(other.handle is not None for other in self._running) >= self._parallel:
            return False
        # Of what has failed or is paused the records that are there are read; the next run reads the others.
        return all(other.state in ENDED for other in self._running if other.query.name in running.waits_for)

    def _pause_s(self, query: Query) -> float:
        """Return the pause between two passes of a query that runs in passes."""
        pause_ms = duration_ms(query.node.option("trigger") or self._trigger or "")
        return self._first_pause_s if pause_ms is None else pause_ms / 1000

    def _leaving(self) -> bool:
        if self._home.stop_requested():
            self._stopping.set()
        return self._stopping.is_set()

    def _start(self, running: RunningQuery, *, once: bool) -> None:
        trigger = running.query.node.option("trigger") or self._trigger
        running.state = QueryState.STARTING
        try:
            running.handle = running.query.start(once=once, trigger=trigger)
        except Exception as error:  # noqa: BLE001 - Spark raises any exception; a restart may succeed
            self._handle_failure(running, error)

    def _failed(self, running: RunningQuery) -> bool:
        """Whether a query that ended has failed; it then restarts after a pause, or is parked."""
        self._take_progress(running)
        error = running.handle.exception()
        if error is None:
            return False
        self._handle_failure(running, error)
        return True

    def _handle_failure(self, running: RunningQuery, error: Exception) -> None:
        name = running.query.name
        running.handle = None
        running.error = error_summary(error)
        running.error_ms = now_ms()
        running.failures += 1
        if is_bad_record(running.error):
            running.tally.bad["fail"] = running.tally.bad.get("fail", 0) + 1
        node = running.query.node
        statements = statements_read(self._graph, (*node.streams, *node.tables, node.name))
        failure = lasting_failure(error, running.error, self._name, name, statements, self._rights)
        if failure is None and self._limit is not None and running.failures > self._limit:
            failure = exhausted_failure(running.error, running.failures, self._name, name)
        if failure is not None:
            running.wrong_statement = error if isinstance(error, SqlError) else None
            self._park(running, failure)
            if self._fail_fast:
                if isinstance(error, SqlError):
                    raise error
                raise ConfigError(f"{name} failed: {failure.reason}")
        elif running.next_state is not None:
            self._apply_next_state(running)
        else:
            running.restarts += 1
            running.state = QueryState.RESTARTING
            pause_s = restart_pause_s(running.failures, self._first_pause_s)
            running.restart_at = time.monotonic() + pause_s
            _log.warning("query failed query=%s restart_in_s=%g: %s", name, pause_s, error_line(running.error))
            self._report(f"{name}: failed, starts again in {pause_s:.0f} s: {error_line(running.error)}")

    def _park(self, running: RunningQuery, failure: QueryFailure) -> None:
        running.state, running.failure, running.next_state = QueryState.FAILED, failure, None
        _log.error("query failed for good query=%s: %s", running.query.name, error_line(failure.reason))
        self._report(f"{running.query.name}: failed, does not start again: {error_line(failure.reason)}")
        self._report(f"{running.query.name}: to go on: {failure.advice}")

    def _stopped_early(self) -> list[str]:
        """Return a line for each query that was stopped before it had read the current records."""
        return [
            f"{running.query.name} failed: {running.error}; it was stopped before it succeeded"
            if running.failures
            else f"{running.query.name} was stopped before it had read the current records"
            for running in self._running
            if running.state == QueryState.STOPPED
        ]

    def _failure_message(self, stopped: Iterable[str] = ()) -> str | None:
        messages = [
            f"{running.query.name} failed: {running.failure.reason}" for running in self._running if running.failure
        ]
        return "\n".join([*messages, *stopped, *([self._fenced] if self._fenced else [])]) or None

    def _obey_requests(self) -> int:
        requests = list(self._home.requests())
        for request in requests:
            answer = self._obey(request)
            self._answers.append((request.id, answer))
            # After the answer was kept: a process killed in between obeys the request again, which changes nothing.
            self._home.remove_request(request)
            _log.info("request obeyed action=%s query=%s: %s", request.action, request.query, answer)
        return len(requests)

    def _obey(self, request: ControlRequest) -> str:
        """Do what a request asks for; return "" or the reason of a refusal."""
        names = [running.query.name for running in self._running]
        if request.query is not None and request.query not in names:
            return f"{self._name} has no query {request.query}{suggest(request.query, names)}"
        chosen = [running for running in self._running if request.query in (None, running.query.name)]
        match request.action:
            case ControlAction.PAUSE:
                if request.query is not None and chosen[0].state == QueryState.FAILED:
                    return f"{request.query} has failed and does not run"
                for running in chosen:
                    if running.state not in ENDED:
                        self._end_run(running, QueryState.PAUSED)
            case ControlAction.RESUME:
                self._resume(running for running in chosen if QueryState.PAUSED in (running.state, running.next_state))
            case ControlAction.RESTART:
                for running in chosen:
                    # Paused queries stay off unless they are named. Failed ones start with a new count of failures.
                    if request.query is not None or running.state != QueryState.PAUSED:
                        running.failures, running.failure, running.wrong_statement = 0, None, None
                        self._end_run(running, QueryState.STARTING)
        # A run that is to end after its batch counts: a killed process must not start a paused query again.
        paused = [
            running.query.name for running in self._running if QueryState.PAUSED in (running.state, running.next_state)
        ]
        self._home.keep_paused(paused)
        return ""

    def _end_run(self, running: RunningQuery, state: QueryState) -> None:
        """End a query's run after its batch, and let it be in `state` then."""
        running.next_state = state
        running.end_by = time.monotonic() + _STOP_TIMEOUT_S
        if running.handle is None:
            self._apply_next_state(running)

    def _resume(self, paused: Iterable[RunningQuery]) -> None:
        for running in paused:
            # One that still runs its last batch goes on from there.
            running.next_state = None
            if running.state == QueryState.PAUSED:
                running.state, running.restart_at = QueryState.WAITING, 0.0

    def _end_between_batches(self, running: RunningQuery) -> None:
        # Between two batches a stop loses nothing; inside of one, Spark would repeat it.
        if time.monotonic() >= running.end_by or not running.handle.status.get("isTriggerActive"):
            self._take_progress(running)
            running.handle.stop()
            self._take_progress(running)
            running.handle = None
            self._apply_next_state(running)

    def _apply_next_state(self, running: RunningQuery) -> None:
        if running.next_state == QueryState.PAUSED:
            running.state = QueryState.PAUSED
            self._report(f"{running.query.name}: paused")
        else:
            running.state, running.restart_at = QueryState.WAITING, 0.0
        running.next_state = None

    def _take_progress(self, running: RunningQuery) -> None:
        running.take_progress(self.late_rows, log_batches=self._log_batches)

    def _publish_status(self, state: str, error: str | None = None) -> None:
        # A new object each time, then assigned: the metrics thread may be reading the previous status.
        lags: Mapping[str, Lag] = self.lags.lags if self.lags is not None else {}
        for running in self._running:
            self._take_progress(running)
        self._status = {
            "state": state,
            "pid": os.getpid(),
            "started_ms": self._began_ms,
            "updated_ms": now_ms(),
            "error": error or self._failure_message(),
            "graph": self._graph,
            "queries": {
                running.query.name: query_status(
                    running, self._running, lags.get(running.query.name), self._rebuilds.get(running.query.name)
                )
                for running in self._running
            },
            "requests": dict(self._answers),
        }
        # Published even without changes: updated_ms shows that the process is alive.
        self._home.write_status(self._status)

    def _halt(self, *, after_batch: bool, once: bool = False) -> None:
        """Stop every query, with `after_batch` when its running batch has ended.

        With `once` a query that ends by itself meanwhile has read all, or has failed.
        """
        deadline = time.monotonic() + (_STOP_TIMEOUT_S if after_batch else 0.0)
        for running in self._running:
            handle, stopped = running.handle, False
            while handle is not None and handle.isActive:
                # Between two batches a stop loses nothing; inside of one, Spark would repeat it.
                if time.monotonic() >= deadline or not handle.status.get("isTriggerActive"):
                    handle.stop()
                    stopped = True
                    break
                time.sleep(0.05)
            if running.state in ENDED:
                continue
            running.state = QueryState.STOPPED
            if once and handle is not None and not stopped:
                error = handle.exception()
                if error is None:
                    running.state = QueryState.DONE
                else:
                    running.error, running.error_ms = error_summary(error), now_ms()
                    running.failures += 1
