"""Keeps a pipeline's queries running: start, watch, restart with back-off, stop after a batch.

One process runs one pipeline. Identity and checkpoints are in its folder, from where a restarted pipeline continues.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.executor_package import is_local
from klamm.pipeline.metrics import serve_metrics
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.identity import INCOMPATIBLE, REBUILD, QueryIdentity, compare
from klamm.pipeline.sql.core.problems import SqlError
from klamm.pipeline.sql.core.query_totals import QueryTotals
from klamm.pipeline.sql.core.statement_options import duration_ms
from klamm.pipeline.sql.engine import Engine, Query
from klamm.pipeline.sql.jdbc import driver_jars
from klamm.pipeline.sql.late_rows import LateRowsWatch
from klamm.pipeline.sql.object_store_identity import RemoteIdentity, is_remote
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.sql.status import DEFAULT_HOME, Home, committed_offsets, error_line, error_summary
from klamm.pipeline.sql.topic_lag import Lag, LagWatch, ReadOffsets
from klamm.pipeline.sql.topics import ClusterTopics

_log = logging.getLogger(__name__)
_WATCH_INTERVAL_S: Final = 0.25
_RESTART_PAUSE_MAX_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 120.0
"""How long a stop waits for a running batch; an interrupted batch is repeated by the next run."""
# Parts of error messages: of an exception in a task Spark passes on only the text.
_BAD_RECORD: Final = ("USER_RAISED_EXCEPTION", "a record of ")
_NO_PYTHON: Final = "the Python of this executor"
_NOT_RETRIED: Final = (*_BAD_RECORD, _NO_PYTHON)
_STARTING: Final = "Initializing"
"""The status message of a query whose sources have not started yet."""
DEFAULT_RESTARTS: Final = 10

SPARK_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Spark keeps the number of the first start in the checkpoint, as state is partitioned by it.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
"""Defaults for large state on few cores; SET spark.* wins."""


def report_nothing(_: str) -> None:
    """Report no progress: the default of `say`."""


def name_of(pipeline: Pipeline) -> str:
    """Return a pipeline's name: SET name, or its file's name."""
    name = pipeline.settings.get("name")
    return name or os.path.splitext(os.path.basename(pipeline.source.name))[0]


def home_of(pipeline: Pipeline) -> Home:
    """Return the folder of a pipeline's state and status: SET checkpoint if that is local, or a folder of its name."""
    checkpoint = pipeline.settings.get("checkpoint")
    return Home(
        checkpoint if checkpoint and not is_remote(checkpoint) else os.path.join(DEFAULT_HOME, name_of(pipeline))
    )


def renew_identity(pipeline: Pipeline, home: Home, rebuild: Iterable[str] = ()) -> QueryIdentity:
    """Return the identity to run with; ConfigError when the file has changed in a way that the checkpoints forbid."""
    stored = home.identity()
    rebuilt = frozenset(rebuild)
    unknown = rebuilt - {query.name for query in pipeline.queries}
    if unknown:
        raise ConfigError(f"there is no query {min(unknown)} to rebuild")
    changes = compare(stored, pipeline)
    for change in changes:
        if change.verdict == INCOMPATIBLE:
            raise ConfigError(f"{change.name} cannot continue: {change.reason}; give it another name or topic")
        if change.verdict == REBUILD and change.name not in rebuilt:
            raise ConfigError(
                f"{change.name} must be rebuilt: {change.reason}; "
                f"--rebuild {change.name} reads its topics from the beginning"
            )
    base = stored or QueryIdentity(uuid.uuid4().hex, name_of(pipeline), {}, {})
    return base.renew(pipeline, rebuilt if stored else frozenset())


def run_pipeline(
    pipeline: Pipeline,
    *,
    client: Mapping[str, str] | None = None,
    master: str | None = None,
    once: bool = False,
    rebuild: Iterable[str] = (),
    progress: bool | None = None,
    log_batches: bool = False,
    metrics: str | int | None = None,
    spark: Any = None,
    report: Callable[[str], None] = report_nothing,
) -> None:
    """Run a pipeline until it is stopped, or with `once` over the current records, in a new session or in `spark`.

    `log_batches` logs a line per batch, `metrics` (a port, or host:port) serves Prometheus.
    """
    from klamm.pipeline.sessions import check_requirements, session  # noqa: PLC0415 - pyspark is an extra

    if spark is None:
        check_requirements()
    pipeline = resolve(pipeline, declared=True)
    home = home_of(pipeline)
    # The lock is held for the whole run: two processes on one checkpoint would corrupt it.
    with home.locked():
        home.clear_stop_request()
        identity = renew_identity(pipeline, home, rebuild)
        topics = ClusterTopics(pipeline, client)
        spark_settings = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        if spark is None:
            report("starting Spark")
            config = {**SPARK_SETTINGS, **spark_settings, **driver_jars(pipeline, spark_settings)}
            spark_session = session(f"klamm {name_of(pipeline)}", master=master, config=config, progress=progress)
        else:
            spark_session = spark
        try:
            remote = _open_remote(spark_session, pipeline, home, report)
            if remote is not None:
                # Again: the remote folder may have had an identity that this machine did not know.
                identity = renew_identity(pipeline, home, rebuild)
            engine = Engine(spark_session, pipeline, topics, home.path if remote is None else remote.path, identity)
            for topic in topics.ensure():
                report(f"created topic {topic}")
            queries = _build_queries(engine)
            # Only now, when all queries could be built: a file with an error must not change the stored identity.
            home.keep(identity)
            home.keep_columns(engine.output_columns)
            if remote is not None:
                remote.keep(identity)
            # Failures in a row, not in total: a completed batch resets the count.
            limit = int(pipeline.settings.get("restarts") or DEFAULT_RESTARTS)
            trigger = pipeline.settings.get("trigger")
            runner = Runner(queries, home, limit=limit, trigger=trigger, report=report, log_batches=log_batches)
            with ExitStack() as stack:
                address = metrics if metrics is not None else pipeline.settings.get("metrics")
                listening = stack.enter_context(serve_metrics(name_of(pipeline), runner.status, address))
                if listening is not None:
                    report(f"metrics on http://{listening[0]}:{listening[1]}/metrics")
                if not once:
                    runner.lags = stack.enter_context(LagWatch(topics.watcher, runner.positions))
                runner.late_rows = LateRowsWatch(engine)
                stack.enter_context(runner.late_rows.running())
                stack.enter_context(_signals(runner.stop))
                runner.run(once=once)
        finally:
            # A session that was passed in belongs to the caller.
            if spark is None:
                spark_session.stop()


def _build_queries(engine: Engine) -> list[Query]:
    """Build the queries; ConfigError when an executor's Python lacks a package."""
    try:
        return engine.build()
    except SqlError:
        raise
    except Exception as error:
        if _NO_PYTHON not in str(error):
            raise
        raise ConfigError(error_line(error).partition("ConfigError: ")[2]) from None


def _open_remote(spark: Any, pipeline: Pipeline, home: Home, report: Callable[[str], None]) -> RemoteIdentity | None:
    """Return the remote folder of the checkpoints, if any, and copy its identity to the home."""
    checkpoint = pipeline.settings.get("checkpoint") or ""
    if is_remote(checkpoint):
        remote = RemoteIdentity(spark, checkpoint)
        stored = remote.identity()
        if stored is not None:
            # Newer than the local copy if another machine has run the pipeline.
            home.keep(stored)
        return remote
    if not is_local(spark.sparkContext.master) and any(query.stateful for query in pipeline.queries):
        warning = "executors keep state there: other machines must see that folder, or SET checkpoint = 'hdfs://...'"
        report(f"checkpoints are in {os.path.abspath(home.path)}; {warning}")
    return None


@dataclass(slots=True)
class _RunningQuery:
    """A query, its current run, and its failures."""

    query: Query
    handle: Any = None
    failures: int = 0
    restarts: int = 0
    restart_at: float = 0.0
    error: str | None = None
    error_ms: int | None = None
    tally: QueryTotals = field(default_factory=QueryTotals)


class Runner:
    """Runs all queries of a pipeline in this process."""

    def __init__(
        self,
        queries: list[Query],
        home: Home,
        *,
        limit: int = DEFAULT_RESTARTS,
        trigger: str | None = None,
        first_pause_s: float = 1.0,
        report: Callable[[str], None] = report_nothing,
        log_batches: bool = False,
    ) -> None:
        self.lags: LagWatch | None = None
        self.late_rows: LateRowsWatch | None = None
        self._log_batches = log_batches
        self._status: dict[str, Any] = {}
        self._first_pause_s = first_pause_s
        self._running = [
            _RunningQuery(query, tally=QueryTotals(position=committed_offsets(query.checkpoint))) for query in queries
        ]
        self._home = home
        self._limit = limit
        self._trigger = trigger
        self._report = report
        self._stopping = threading.Event()
        self._began_ms = _now_ms()

    def stop(self) -> None:
        """Request a stop after the running batches; callable from any thread."""
        self._stopping.set()

    def status(self) -> Mapping[str, Any]:
        """Return the last published status; callable from any thread."""
        return self._status

    def positions(self) -> dict[str, ReadOffsets]:
        """Return the offsets that queries have read up to; callable from any thread."""
        return {running.query.name: running.tally.position for running in self._running}

    def run(self, *, once: bool) -> None:
        """Run until stopped, or with `once` until the current records are read; raise the error of a failed query."""
        try:
            if once:
                self._run_once()
            else:
                self._run_forever()
        except BaseException as error:
            # At once: the error is reported without waiting for batches of other queries, which the next run repeats.
            self._halt(after_batch=False)
            self._publish_status("stopped" if isinstance(error, KeyboardInterrupt) else "failed", error_summary(error))
            raise
        self._halt(after_batch=True)
        if self.late_rows is not None:
            # The last batches may have left rows out; the last status counts them.
            for running in self._running:
                self._take_progress(running)
            self.late_rows.finish()
        self._publish_status("stopped")

    def _run_once(self) -> None:
        """Run queries one after the other, so that each reads what those before it wrote."""
        for running in self._running:
            while not self._leaving():
                self._start(running, once=True)
                while running.handle is not None and running.handle.isActive and not self._leaving():
                    with suppress(Exception):  # `_failed` reads the query's error below
                        running.handle.awaitTermination(_WATCH_INTERVAL_S)
                    self._publish_status("running")
                if not self._failed(running):
                    self._publish_status("running")
                    self._report(f"{running.query.name}: done")
                    break
                self._stopping.wait(max(running.restart_at - time.monotonic(), 0.0))

    def _run_forever(self) -> None:
        while not self._leaving():
            for running in self._running:
                if running.handle is None and time.monotonic() >= running.restart_at:
                    self._start(running, once=running.query.in_passes)
                    self._wait_for_sources(running)
                elif running.handle is not None and not running.handle.isActive and not self._failed(running):
                    running.handle = None
                    running.restart_at = time.monotonic() + self._pause_s(running.query)
            self._publish_status("running")
            self._stopping.wait(_WATCH_INTERVAL_S)

    def _wait_for_sources(self, running: _RunningQuery) -> None:
        """Wait until a query's sources have started, before the next query starts.

        Spark gives the Python process of a source ten seconds to start; many at once on few cores would not make it.
        """
        while running.handle is not None and running.handle.isActive and not self._leaving():
            if not str(running.handle.status.get("message", "")).startswith(_STARTING):
                return
            self._publish_status("running")
            self._stopping.wait(_WATCH_INTERVAL_S)

    def _pause_s(self, query: Query) -> float:
        """Return the pause between two passes of a query that runs in passes."""
        pause_ms = duration_ms(query.node.option("trigger") or self._trigger or "")
        return self._first_pause_s if pause_ms is None else pause_ms / 1000

    def _leaving(self) -> bool:
        if self._home.stop_requested():
            self._stopping.set()
        return self._stopping.is_set()

    def _start(self, running: _RunningQuery, *, once: bool) -> None:
        trigger = running.query.node.option("trigger") or self._trigger
        try:
            running.handle = running.query.start(once=once, trigger=trigger)
        # A wrong statement stays wrong.
        except SqlError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark raises any exception; a restart may succeed
            self._handle_failure(running, error)

    def _failed(self, running: _RunningQuery) -> bool:
        """Whether a query that ended has failed; it then restarts after a pause. Raises after too many failures."""
        if running.handle is None:
            return True  # the start itself failed, and `_start` has handled that
        self._take_progress(running)
        error = running.handle.exception()
        if error is None:
            return False
        self._handle_failure(running, error)
        return True

    def _handle_failure(self, running: _RunningQuery, error: Exception) -> None:
        running.handle = None
        running.error = error_summary(error)
        running.error_ms = _now_ms()
        running.failures += 1
        if all(word in running.error for word in _BAD_RECORD):
            running.tally.bad["fail"] = running.tally.bad.get("fail", 0) + 1
        name = running.query.name
        # A bad record or a missing package fails again and again: restarting would only hide it.
        if running.failures > self._limit or any(word in running.error for word in _NOT_RETRIED):
            reason = (
                error_line(running.error).partition("ConfigError: ")[2]
                if _NO_PYTHON in running.error
                else running.error
            )
            raise ConfigError(f"{name} failed: {reason}")
        running.restarts += 1
        # Exponential back-off, from one second to a minute.
        pause_s = min(self._first_pause_s * 2.0 ** (running.failures - 1), _RESTART_PAUSE_MAX_S)
        running.restart_at = time.monotonic() + pause_s
        _log.warning("query failed query=%s restart_in_s=%g: %s", name, pause_s, running.error)
        self._report(f"{name}: failed, starts again in {pause_s:.0f} s: {error_line(running.error)}")

    def _take_progress(self, running: _RunningQuery) -> None:
        """Add a query's progress to its totals; a completed batch resets the count of failures."""
        if running.handle is None:
            return
        handle, tally = running.handle, running.tally
        done_before = tally.done_batch
        # recentProgress is passed as a callable: reading it copies all reports from the JVM, and is rarely needed.
        batches = tally.take(handle.lastProgress, functools.partial(getattr, handle, "recentProgress"), _now_ms())
        if tally.done_batch > done_before:
            running.failures = 0
        for facts in batches:
            if facts.get("late_dropped") and self.late_rows is not None:
                self.late_rows.add(running.query, facts["batch"], tally.add_late)
        if self._log_batches:
            for facts in batches:
                fields = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
                _log.info("batch done query=%s %s", running.query.name, fields)

    def _publish_status(self, state: str, error: str | None = None) -> None:
        # A new object each time, then assigned: the metrics thread may be reading the previous status.
        queries: dict[str, Any] = {}
        lags: Mapping[str, Lag] = self.lags.lags if self.lags is not None else {}
        for running in self._running:
            self._take_progress(running)
            status = running.tally.status()
            if running.query.name in lags:
                lag = lags[running.query.name]
                status |= {"lag_records": lag.records, "lag_ms": lag.age_ms}
            status |= {"failures": running.failures, "restarts": running.restarts}
            status |= {
                "error": running.error,
                "error_ms": running.error_ms,
                "error_gist": error_line(running.error or "") or None,
            }
            queries[running.query.name] = status
        self._status = {
            "state": state,
            "pid": os.getpid(),
            "started_ms": self._began_ms,
            "updated_ms": _now_ms(),
            "error": error,
            "queries": queries,
        }
        # Published even without changes: updated_ms shows that the process is alive.
        self._home.write_status(self._status)

    def _halt(self, *, after_batch: bool) -> None:
        """Stop every query, with `after_batch` once its running batch has ended."""
        deadline = time.monotonic() + (_STOP_TIMEOUT_S if after_batch else 0.0)
        for running in self._running:
            handle = running.handle
            while handle is not None and handle.isActive:
                # Between two batches a stop loses nothing; inside of one, Spark would repeat it.
                if time.monotonic() >= deadline or not handle.status.get("isTriggerActive"):
                    handle.stop()
                    break
                time.sleep(0.05)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT and SIGTERM stop after the batch, a second one at once; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request_stop(_number: int, _frame: Any) -> None:
        # The second signal goes to the handlers of before, which end the process.
        for number, handler in before.items():
            signal.signal(number, handler)
        stop()

    for number in before:
        signal.signal(number, request_stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
