"""Keeping a pipeline's queries running: start, watch, restart with back-off, stop after a batch.

One process runs one pipeline. What it is and how far it is lies in its folder; a pipeline that died goes on there.
"""

from __future__ import annotations

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
from klamm.pipeline.sql.core.identity import INCOMPATIBLE, REBUILD, Identity, compare
from klamm.pipeline.sql.core.problems import SqlError
from klamm.pipeline.sql.core.query_totals import QueryTotals
from klamm.pipeline.sql.core.statement_options import duration_ms
from klamm.pipeline.sql.engine import Engine, Query
from klamm.pipeline.sql.jdbc import driver_jars
from klamm.pipeline.sql.object_store_identity import RemoteIdentity, is_remote
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.sql.status import DEFAULT_HOME, Home, committed_offsets, error_line, error_summary
from klamm.pipeline.sql.topic_lag import Lag, LagWatch, ReadOffsets
from klamm.pipeline.sql.topics import ClusterTopics
from klamm.telemetry.log import get_logger

_log = get_logger("pipeline")
_LOOK_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 60.0
_PATIENCE_S: Final = 120.0
"""How long a batch may take to finish once the pipeline shall stop; after that the next run does it again."""
_BAD_RECORD: Final = ("USER_RAISED_EXCEPTION", "a record of ")
_NO_PYTHON: Final = "the Python of this executor"
_HOPELESS: Final = (*_BAD_RECORD, _NO_PYTHON)
_BEGINNING: Final = "Initializing"
"""What Spark says of a query until its sources are there."""
DEFAULT_RESTARTS: Final = 10

SPARK_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
"""Where Spark's own defaults do not fit: big state, and few cores; SET spark.* wins."""


def name_of(pipeline: Pipeline) -> str:
    """What a pipeline is called: SET name, or its file's name."""
    said = pipeline.settings.get("name")
    return said or os.path.splitext(os.path.basename(pipeline.source.name))[0]


def home_of(pipeline: Pipeline) -> Home:
    """Where its state lies, or what this machine knows of it: SET checkpoint, or a folder of its name."""
    said = pipeline.settings.get("checkpoint")
    return Home(said if said and not is_remote(said) else os.path.join(DEFAULT_HOME, name_of(pipeline)))


def renew_identity(pipeline: Pipeline, home: Home, rebuild: Iterable[str] = ()) -> Identity:
    """The identity to run with; ConfigError when the file and the folder do not go together."""
    stored = home.identity()
    wanted = frozenset(rebuild)
    unknown = wanted - {query.name for query in pipeline.queries}
    if unknown:
        raise ConfigError(f"there is no query {min(unknown)} to rebuild")
    changes = compare(stored, pipeline)
    for change in changes:
        if change.verdict == INCOMPATIBLE:
            raise ConfigError(f"{change.name} cannot go on: {change.reason}; give it another name or topic")
        if change.verdict == REBUILD and change.name not in wanted:
            raise ConfigError(
                f"{change.name} must be rebuilt: {change.reason}; "
                f"--rebuild {change.name} reads its topics from the beginning"
            )
    base = stored or Identity(uuid.uuid4().hex, name_of(pipeline), {}, {})
    return base.renewed(pipeline, wanted if stored else frozenset())


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
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Run it until it is stopped, or with `once` over what is there now, in a session of its own or in `spark`.

    `log_batches` writes a line of the log for every batch, `metrics` (a port, or host:port) answers scrapes.
    """
    from klamm.pipeline.sessions import check_requirements, session  # noqa: PLC0415 - pyspark is an extra

    if spark is None:
        check_requirements()
    pipeline = resolve(pipeline, declared=True)
    home = home_of(pipeline)
    with home.locked():
        home.clear_stop_request()
        identity = renew_identity(pipeline, home, rebuild)
        topics = ClusterTopics(pipeline, client)
        own = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        if spark is None:
            say("starting Spark")
            config = {**SPARK_SETTINGS, **own, **driver_jars(pipeline, own)}
            running = session(f"klamm {name_of(pipeline)}", master=master, config=config, progress=progress)
        else:
            running = spark
        try:
            far = _far_folder(running, pipeline, home, say)
            if far is not None:
                identity = renew_identity(pipeline, home, rebuild)
            engine = Engine(running, pipeline, topics, home.path if far is None else far.path, identity)
            for each in topics.ensure():
                say(f"created topic {each}")
            queries = _built(engine)
            home.keep(identity)
            if far is not None:
                far.keep(identity)
            limit = int(pipeline.settings.get("restarts") or DEFAULT_RESTARTS)
            trigger = pipeline.settings.get("trigger")
            runner = Runner(queries, home, limit=limit, trigger=trigger, say=say, log_batches=log_batches)
            with ExitStack() as beside:
                address = metrics if metrics is not None else pipeline.settings.get("metrics")
                place = beside.enter_context(serve_metrics(name_of(pipeline), runner.status, address))
                if place is not None:
                    say(f"metrics on http://{place[0]}:{place[1]}/metrics")
                if not once:
                    runner.lags = beside.enter_context(LagWatch(topics.watcher, runner.positions))
                beside.enter_context(_signals(runner.stop))
                runner.run(once=once)
        finally:
            if spark is None:
                running.stop()


def _built(engine: Engine) -> list[Query]:
    """The queries; ConfigError when Spark's Python lacks what the package needs."""
    try:
        return engine.build()
    except SqlError:
        raise
    except Exception as error:
        if _NO_PYTHON not in str(error):
            raise
        raise ConfigError(error_line(error).partition("ConfigError: ")[2]) from None


def _far_folder(spark: Any, pipeline: Pipeline, home: Home, say: Callable[[str], None]) -> RemoteIdentity | None:
    """Where checkpoints lie if not in the home, whose identity is then the one found there."""
    said = pipeline.settings.get("checkpoint") or ""
    if is_remote(said):
        far = RemoteIdentity(spark, said)
        stored = far.identity()
        if stored is not None:
            home.keep(stored)
        return far
    if not is_local(spark.sparkContext.master) and any(query.stateful for query in pipeline.queries):
        words = "executors keep state there: on other machines they must see it too, or SET checkpoint = 'hdfs://...'"
        say(f"checkpoints are in {os.path.abspath(home.path)}; {words}")
    return None


@dataclass(slots=True)
class _Running:
    """A query and its troubles."""

    query: Query
    handle: Any = None
    failures: int = 0
    restarts: int = 0
    restart_at: float = 0.0
    error: str | None = None
    error_ms: int | None = None
    tally: QueryTotals = field(default_factory=QueryTotals)


class Runner:
    """All queries of a pipeline in this process."""

    def __init__(
        self,
        queries: list[Query],
        home: Home,
        *,
        limit: int = DEFAULT_RESTARTS,
        trigger: str | None = None,
        first_pause_s: float = 1.0,
        say: Callable[[str], None] = lambda _: None,
        log_batches: bool = False,
    ) -> None:
        self.lags: LagWatch | None = None
        self._log_batches = log_batches
        self._status: dict[str, Any] = {}
        self._first_pause_s = first_pause_s
        self._all = [
            _Running(query, tally=QueryTotals(position=committed_offsets(query.checkpoint))) for query in queries
        ]
        self._home = home
        self._limit = limit
        self._trigger = trigger
        self._say = say
        self._stopping = threading.Event()
        self._began_ms = _now_ms()

    def stop(self) -> None:
        """Finish the batches and leave; may be called from anywhere."""
        self._stopping.set()

    def status(self) -> Mapping[str, Any]:
        """How it is doing, as it was last told; may be called from anywhere."""
        return self._status

    def positions(self) -> dict[str, ReadOffsets]:
        """How far queries have read; may be called from anywhere."""
        return {each.query.name: each.tally.position for each in self._all}

    def run(self, *, once: bool) -> None:
        """Until stopped, or until everything there is now is read; raises what a query ended with."""
        try:
            if once:
                self._once()
            else:
                self._on_and_on()
        except BaseException as error:
            self._halt(patiently=False)
            self._tell("stopped" if isinstance(error, KeyboardInterrupt) else "failed", error_summary(error))
            raise
        self._halt(patiently=True)
        self._tell("stopped")

    def _once(self) -> None:
        """One after the other, so that each finds what those before it wrote."""
        for each in self._all:
            while not self._leaving():
                self._start(each, once=True)
                while each.handle is not None and each.handle.isActive and not self._leaving():
                    with suppress(Exception):  # what it ended with is asked for below
                        each.handle.awaitTermination(_LOOK_S)
                    self._tell("running")
                if not self._failed(each):
                    self._tell("running")
                    self._say(f"{each.query.name}: done")
                    break
                self._stopping.wait(max(each.restart_at - time.monotonic(), 0.0))

    def _on_and_on(self) -> None:
        while not self._leaving():
            for each in self._all:
                if each.handle is None and time.monotonic() >= each.restart_at:
                    self._start(each, once=_in_passes(each.query))
                    self._wait_for_sources(each)
                elif each.handle is not None and not each.handle.isActive and not self._failed(each):
                    each.handle = None
                    each.restart_at = time.monotonic() + self._pause_s(each.query)
            self._tell("running")
            self._stopping.wait(_LOOK_S)

    def _wait_for_sources(self, each: _Running) -> None:
        """Let a query's sources begin before the next query starts.

        Spark gives the Python process of a source ten seconds, and those that start all at once slow each other down.
        """
        while each.handle is not None and each.handle.isActive and not self._leaving():
            if not str(each.handle.status.get("message", "")).startswith(_BEGINNING):
                return
            self._tell("running")
            self._stopping.wait(_LOOK_S)

    def _pause_s(self, query: Query) -> float:
        """How long a query that runs in passes rests between two of them."""
        said = duration_ms(query.node.option("trigger") or self._trigger or "")
        return self._first_pause_s if said is None else said / 1000

    def _leaving(self) -> bool:
        if self._home.stop_requested():
            self._stopping.set()
        return self._stopping.is_set()

    def _start(self, each: _Running, *, once: bool) -> None:
        trigger = each.query.node.option("trigger") or self._trigger
        try:
            each.handle = each.query.start(once=once, trigger=trigger)
        except SqlError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Spark says, another try may go well
            self._note(each, error)

    def _failed(self, each: _Running) -> bool:
        """Whether a query that ended has failed; it is then due again after a pause. Raises when there were enough."""
        if each.handle is None:
            return True
        self._look(each)
        error = each.handle.exception()
        if error is None:
            return False
        self._note(each, error)
        return True

    def _note(self, each: _Running, error: Exception) -> None:
        each.handle = None
        each.error = error_summary(error)
        each.error_ms = _now_ms()
        each.failures += 1
        if all(word in each.error for word in _BAD_RECORD):
            each.tally.bad["fail"] = each.tally.bad.get("fail", 0) + 1
        name = each.query.name
        if each.failures > self._limit or any(word in each.error for word in _HOPELESS):
            words = error_line(each.error).partition("ConfigError: ")[2] if _NO_PYTHON in each.error else each.error
            raise ConfigError(f"{name} failed: {words}")
        each.restarts += 1
        pause_s = min(self._first_pause_s * 2.0 ** (each.failures - 1), _LONGEST_PAUSE_S)
        each.restart_at = time.monotonic() + pause_s
        _log.warning("a query failed and is started again", query=name, pause_s=pause_s, reason=each.error)
        self._say(f"{name}: failed, starts again in {pause_s:.0f} s: {error_line(each.error)}")

    def _look(self, each: _Running) -> None:
        """Take over what a query says of its last batch; a batch that went well ends a row of failures."""
        if each.handle is None:
            return
        handle, tally = each.handle, each.tally
        before = tally.done_batch
        batches = tally.take(handle.lastProgress, lambda: handle.recentProgress, _now_ms())
        if tally.done_batch > before:
            each.failures = 0
        if self._log_batches:
            for told in batches:
                known = {name: value for name, value in told.items() if value is not None}
                _log.info("batch done", query=each.query.name, **known)

    def _tell(self, state: str, error: str | None = None) -> None:
        queries: dict[str, Any] = {}
        lags: Mapping[str, Lag] = self.lags.found if self.lags is not None else {}
        for each in self._all:
            self._look(each)
            told = each.tally.status()
            if each.query.name in lags:
                lag = lags[each.query.name]
                told |= {"lag_records": lag.records, "lag_ms": lag.age_ms}
            told |= {"failures": each.failures, "restarts": each.restarts}
            told |= {"error": each.error, "error_ms": each.error_ms, "error_gist": error_line(each.error or "") or None}
            queries[each.query.name] = told
        self._status = {
            "state": state,
            "pid": os.getpid(),
            "started_ms": self._began_ms,
            "updated_ms": _now_ms(),
            "error": error,
            "queries": queries,
        }
        self._home.tell(self._status)

    def _halt(self, *, patiently: bool) -> None:
        """Stop every query, between batches where there is time for that."""
        deadline = time.monotonic() + (_PATIENCE_S if patiently else 0.0)
        for each in self._all:
            handle = each.handle
            while handle is not None and handle.isActive:
                if time.monotonic() >= deadline or not handle.status.get("isTriggerActive"):
                    handle.stop()
                    break
                time.sleep(0.05)


def _in_passes(query: Query) -> bool:
    """Whether a query keeps what it remembers and reads tables too: Spark reads those once for each start."""
    return query.in_passes


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and TERM stop after the batch; a second one at once. Only the main thread is told of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def caught(number: int, _: Any) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop()
        del number

    for each in before:
        signal.signal(each, caught)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
