"""Runs a pipeline: identity, topics, session, queries, and what watches them while they run.

One process runs one pipeline. Identity and checkpoints are in its folder, from where a restarted pipeline continues.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.executor_package import is_local
from klamm.pipeline.jvm_output import jvm_output_to
from klamm.pipeline.metrics import serve_metrics
from klamm.pipeline.sql.adoption import adopt_queries, restore_queries
from klamm.pipeline.sql.cluster_control import ClusterControl, RunPlace
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.graph_rendering import graph_rows
from klamm.pipeline.sql.core.identity import FROM_NOW, INCOMPATIBLE, REBUILD, QueryIdentity, compare
from klamm.pipeline.sql.core.pipeline_record import PipelineRecord, choose_identity, output_places
from klamm.pipeline.sql.core.pipeline_rights import PipelineRights
from klamm.pipeline.sql.core.problems import SqlError
from klamm.pipeline.sql.core.query_failures import NO_PYTHON
from klamm.pipeline.sql.core.state_schemas import describe_schemas, schema_changes
from klamm.pipeline.sql.engine import Engine, Query
from klamm.pipeline.sql.jdbc import driver_jars
from klamm.pipeline.sql.known_homes import data_root
from klamm.pipeline.sql.late_rows import LateRowsWatch
from klamm.pipeline.sql.object_store_identity import RemoteIdentity, is_remote
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.preflight import check_start
from klamm.pipeline.sql.query_ledger import check_ledgers, forget_old_places, node_of, query_names
from klamm.pipeline.sql.query_starts import store_starts
from klamm.pipeline.sql.rebuilds import clear_rebuilds, load_targets, prepare_rebuilds
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.sql.renamed_pipelines import take_renamed
from klamm.pipeline.sql.snapshots import find_snapshot
from klamm.pipeline.sql.state_folders import describe_place, home_of, name_of, placed_home
from klamm.pipeline.sql.status import NEVER_RAN, Home, error_line
from klamm.pipeline.sql.supervisor import Supervisor, report_nothing
from klamm.pipeline.sql.topic_lag import LagWatch
from klamm.pipeline.sql.topics import ClusterTopics
from klamm.pipeline.ui.dead_letters import newest_letters
from klamm.pipeline.ui.server import serve_ui

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


def renew_identity(
    pipeline: Pipeline,
    home: Home,
    rebuild: Iterable[str] = (),
    continued: Iterable[str] = (),
    stored: QueryIdentity | None = None,
) -> QueryIdentity:
    """Return the identity to run with; ConfigError when the file has changed in a way that the checkpoints forbid.

    `continued` names sinks that may write to a new place without the rows of the old one. `stored` replaces the
    identity of the home, which may have been removed.
    """
    stored = stored or home.identity()
    rebuilt, accepted = frozenset(rebuild), frozenset(continued)
    for names, action in ((rebuilt, "rebuild"), (accepted, "continue")):
        unknown = names - set(query_names(pipeline))
        if unknown:
            raise ConfigError(f"there is no query {min(unknown)} to {action}")
    changes = compare(stored, pipeline)
    for change in changes:
        if change.verdict == INCOMPATIBLE:
            raise ConfigError(f"{change.name} cannot continue: {change.reason}; give it another name or topic")
        if change.verdict == REBUILD and change.name not in rebuilt:
            raise ConfigError(
                f"{change.name} must be rebuilt: {change.reason}; "
                f"--rebuild {change.name} reads its topics from the beginning"
            )
        if change.verdict == FROM_NOW and change.name not in rebuilt | accepted:
            raise ConfigError(
                f"{change.name} has another place: {change.reason}\n"
                f"--continue {change.name} writes only the rows from now on\n"
                f"--rebuild {change.name} reads its topics from the beginning and writes all rows"
            )
    base = stored or QueryIdentity(uuid.uuid4().hex, name_of(pipeline), {}, {})
    return base.renew(pipeline, rebuilt if stored else frozenset())


def _ignore_home(_: Home) -> None:
    pass


def run_pipeline(
    pipeline: Pipeline,
    *,
    client: Mapping[str, str] | None = None,
    master: str | None = None,
    once: bool = False,
    rebuild: Iterable[str] = (),
    accept_lost: Iterable[str] = (),
    continued: Iterable[str] = (),
    adopt: Iterable[str] = (),
    restore: str | None = None,
    progress: bool | None = None,
    log_batches: bool = False,
    metrics: str | int | None = None,
    ui: str | int | None = None,
    fail_fast: bool = False,
    spark: Any = None,
    report: Callable[[str], None] = report_nothing,
    use_home: Callable[[Home], None] = _ignore_home,
) -> None:
    """Run a pipeline until it is stopped, or with `once` over the current records, in a new session or in `spark`.

    Queries in `rebuild` read from the beginning, those of them in `accept_lost` also where records are gone that their
    tables were computed from; those in `adopt` continue where their topic or table ends, when their
    checkpoint was set back or removed; `restore` is the label of a snapshot to start from. `log_batches` logs a line
    per batch; `metrics` (a port, or host:port) serves Prometheus, `ui` a page. A query that has failed for good does
    not end the others, unless `fail_fast` is set; ConfigError at the end. `use_home` is called with the pipeline's
    folder as soon as that is known.
    """
    from klamm.pipeline.sessions import check_requirements, session  # noqa: PLC0415 - pyspark is an extra

    if spark is None:
        check_requirements()
    placed = placed_home(pipeline)
    check_start(pipeline, client, data_root() if placed is None else placed.path)
    pipeline = resolve(pipeline, declared=True)
    # After the check: without a broker the cluster's id would be awaited for a minute.
    home = home_of(pipeline, client)
    topics = ClusterTopics(pipeline, client)
    registry = topics.registry()
    rights = topics.rights()
    with _explained_denials(rights):
        registry.ensure()
        take_renamed(pipeline, home, registry, report)
    placement = describe_place(pipeline, home)
    if placement is not None:
        report(placement)
    use_home(home)
    # The lock is held for the whole run: two processes on one checkpoint would corrupt it.
    with home.hold_lock(), _explained_denials(rights):
        home.clear_requests()
        # First: a label that does not exist is reported before anything is prepared.
        snapshot = None if restore is None else find_snapshot(home, restore)
        rebuild, continued, adopt = frozenset(rebuild), frozenset(continued), tuple(adopt)
        accepted = frozenset(accept_lost)
        if not accepted <= rebuild:
            name = min(accepted - rebuild)
            raise ConfigError(f"--accept-lost {name} is for a query that is rebuilt: add --rebuild {name}")
        for query in adopt:
            node_of(pipeline, query)
        identity = renew_identity(pipeline, home, rebuild, continued)
        outputs = output_places(pipeline, registry.host, os.getcwd())
        records = registry.read_all(name_of(pipeline))
        checkpoint = pipeline.settings.get("checkpoint") or ""
        folder = checkpoint if is_remote(checkpoint) else os.path.abspath(home.path)
        if not is_remote(checkpoint):
            identity = _identify(pipeline, home, registry, records, folder, rebuild, continued, adopt)
        write_starting(home, pipeline, "Spark")
        spark_settings = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        if spark is None:
            report("starting Spark")
            config = {**SPARK_SETTINGS, **spark_settings, **driver_jars(pipeline, spark_settings)}
            with jvm_output_to(os.path.join(home.path, "spark.log")):
                spark_session = session(f"klamm {name_of(pipeline)}", master=master, config=config, progress=progress)
        else:
            spark_session = spark
        try:
            remote = _open_remote(spark_session, pipeline, home, report)
            if remote is not None:
                # Again: the remote folder may have had an identity that this machine did not know.
                identity = _identify(pipeline, home, registry, records, folder, rebuild, continued, adopt)
            identity = adopt_queries(spark_session, pipeline, topics, identity, folder, adopt)
            if snapshot is not None:
                identity = restore_queries(spark_session, pipeline, topics, identity, folder, snapshot, report)
            engine = Engine(spark_session, pipeline, topics, folder, identity)
            for topic in topics.ensure():
                report(f"created topic {topic}")
            queries = _build_queries(engine)
            # By the stored identity: a sink that has not moved keeps the note of what it has written.
            stored_changes = compare(home.identity(), pipeline)
            forget_old_places(queries, {change.name for change in stored_changes if change.verdict == FROM_NOW})
            check_ledgers(queries, topics)
            identity = _with_schemas(identity, rebuild, pipeline, engine)
            # A pipeline that has not run has nothing to replace.
            replaced = frozenset(name for name in rebuild if identity.generations.get(name, 0) > 0)
            prepare_rebuilds(pipeline, queries, replaced, topics, report, accepted)
            # Only now, when all queries could be built: a file with an error must not change the stored identity.
            _store_identity(home, registry, identity, folder, outputs, records)
            home.keep_columns(engine.output_columns)
            if remote is not None:
                remote.keep(identity)
            # After the identity: its generations name the checkpoints.
            store_starts(pipeline, queries, topics)
            engine.finish_empty_rebuilds(queries)
            restarts = pipeline.settings.get("restarts")
            runner = Supervisor(
                queries,
                home,
                name=name_of(pipeline),
                # Failures in a row, not in total: a completed batch resets the count.
                limit=None if restarts is None else int(restarts),
                trigger=pipeline.settings.get("trigger"),
                fail_fast=fail_fast,
                graph=graph_rows(pipeline),
                report=report,
                log_batches=log_batches,
                rebuilds=load_targets(queries),
                rights=rights,
            )
            with ExitStack() as stack:
                address = metrics if metrics is not None else pipeline.settings.get("metrics")
                listening = stack.enter_context(serve_metrics(name_of(pipeline), runner.status, address))
                if listening is not None:
                    report(f"metrics on http://{listening[0]}:{listening[1]}/metrics")
                letters = functools.partial(
                    newest_letters, topics.watcher, dict.fromkeys(pipeline.dead_letters.values())
                )
                page = stack.enter_context(serve_ui(name_of(pipeline), ui, runner.status, home, letters))
                if page is not None:
                    report(f"page on http://{page[0]}:{page[1]}/")
                if not once:
                    runner.lags = stack.enter_context(LagWatch(topics.watcher, runner.positions))
                runner.late_rows = LateRowsWatch(engine)
                stack.enter_context(runner.late_rows.running())
                stack.enter_context(_signals(runner.stop))
                run = stack.enter_context(registry.running(identity, folder, runner.fence))
                place = RunPlace(identity, run, folder)
                stack.enter_context(ClusterControl(registry, place, home, runner.status))
                runner.run(once=once)
            clear_rebuilds(queries)
        finally:
            # A session that was passed in belongs to the caller.
            if spark is None:
                spark_session.stop()


@contextmanager
def _explained_denials(rights: PipelineRights) -> Iterator[None]:
    """Raise ConfigError, with the right to grant, in place of a broker's refusal."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # Refusals in Spark's processes have another type: only their text says what they are.
        message = rights.explain(str(error))
        if message is None:
            raise
        raise ConfigError(message) from error


def _identify(
    pipeline: Pipeline,
    home: Home,
    registry: PipelineRegistry,
    records: Mapping[str, PipelineRecord],
    folder: str,
    rebuild: frozenset[str],
    continued: Iterable[str],
    adopt: Iterable[str],
) -> QueryIdentity:
    """Return the identity to run with, of the home or of the cluster's records; ConfigError when they disagree."""
    name = name_of(pipeline)
    place = f"{registry.host}:{folder}"
    outputs = output_places(pipeline, registry.host, os.getcwd())
    repaired = rebuild | frozenset(adopt)
    # A backfill stores an identity as well, and has not written what the queries write.
    has_run = home.status()["state"] != NEVER_RAN
    stored = choose_identity(pipeline, name, place, home.identity(), records, repaired, outputs, has_run=has_run)
    if stored is not None:
        # Before anything is prepared: the other run may be writing to the checkpoints.
        registry.check_lease(stored, folder)
    return renew_identity(pipeline, home, rebuild, continued, stored)


def _store_identity(
    home: Home,
    registry: PipelineRegistry,
    identity: QueryIdentity,
    folder: str,
    outputs: Mapping[str, str],
    seen: Mapping[str, PipelineRecord],
) -> None:
    """Store the identity in the folder and in the cluster; ConfigError when another start was faster."""
    before = home.identity()
    # The folder first: a record without its folder would be taken for a folder that was removed.
    home.keep(identity)
    try:
        registry.keep(identity, folder, outputs, seen)
    except ConfigError:
        home.restore(before)
        raise


def write_starting(home: Home, pipeline: Pipeline, waits_for: str) -> None:
    """Publish a status before there are queries, so that `show` has the graph from the first second."""
    now_ms = time.time_ns() // 1_000_000
    home.write_status(
        {
            "state": "starting",
            "pid": os.getpid(),
            "started_ms": now_ms,
            "updated_ms": now_ms,
            "waits_for": waits_for,
            "error": None,
            "graph": graph_rows(pipeline),
            "queries": {},
        }
    )


def _with_schemas(
    identity: QueryIdentity, rebuilt: Container[str], pipeline: Pipeline, engine: Engine
) -> QueryIdentity:
    """Return the identity with the types of the state; ConfigError when the state that is kept has others.

    The identity has the types of the run that is continued: of this folder, or of the cluster's record.
    """
    schemas = describe_schemas(pipeline, engine.output_columns)
    refusals = [
        f"{name} must be rebuilt: {reason}, and its state has the old type; "
        f"--rebuild {name} reads its topics from the beginning"
        for name, reason in schema_changes(identity.schemas, schemas, pipeline).items()
        # A rebuilt query begins without state. An adopted or restored one, of a new generation too, keeps it.
        if name not in rebuilt
    ]
    if refusals:
        raise ConfigError("\n".join(refusals))
    return replace(identity, schemas=schemas)


def _build_queries(engine: Engine) -> list[Query]:
    """Build the queries; ConfigError when an executor's Python lacks a package."""
    try:
        return engine.build()
    except SqlError:
        raise
    except Exception as error:
        if NO_PYTHON not in str(error):
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
