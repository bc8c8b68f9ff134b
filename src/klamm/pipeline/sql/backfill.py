"""Backfills: writes a query's rows of a bounded range of its topics once, as a batch job.

The range is resolved to offsets, so that the same command is the same job. The job has an app name of its own, under
which the sink's commits topic, a Delta or Iceberg table, or the folder log has its completion. Jobs are recorded in the
pipeline's folder as well, to detect a range that overlaps an earlier one.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.client.config import CONSUMER_CONFIGS
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound, TopicSelection
from klamm.pipeline.core.offsets import Range
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity, describe
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statements import SINK, SOURCE, TABLE
from klamm.pipeline.sql.query_ledger import QueryLedger
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.sql.renamed_pipelines import take_renamed
from klamm.pipeline.sql.runner import SPARK_SETTINGS, renew_identity
from klamm.pipeline.sql.spark_jvm import active_session
from klamm.pipeline.sql.state_folders import home_of, name_of
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.supervisor import report_nothing
from klamm.pipeline.sql.topics import ClusterTopics, lake_table
from klamm.pipeline.topic_metadata import TopicLookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOBS_FILE: Final = "backfills.json"


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill job: the query, and the offsets it reads."""

    node: GraphNode
    ranges: tuple[Range, ...]
    until_ms: int | None = None
    """The time as of which tables are read; None is now."""
    replace: bool = False
    again: bool = False

    @property
    def records(self) -> int:
        """The number of offsets, gaps included."""
        return sum(range_.size for range_ in self.ranges)

    @property
    def target(self) -> str:
        """Where the rows go, for messages."""
        table = lake_table(self.node)
        return f"topic {self.node.topic}" if table is None else table.where


class BoundedTopics(ClusterTopics):
    """A cluster's topics, of which a backfill reads a range."""

    def __init__(self, pipeline: Pipeline, client: Mapping[str, str] | None, job: Backfill) -> None:
        super().__init__(pipeline, client)
        self._job = job

    def stream(
        self,
        spark: SparkSession,
        names: Sequence[str],
        node: GraphNode | None,
        start: str = "",  # noqa: ARG002 - a batch
    ) -> DataFrame:
        """Return the job's range as a batch; all records of a topic that is not part of the job."""
        ranges = [range_ for range_ in self._job.ranges if range_.topic in set(names)]
        options = {
            **self._settings(CONSUMER_CONFIGS, node),
            "subscribe": ",".join(names),
            "includeHeaders": "true",
        }
        if ranges:
            # Offsets, not times: retention or late records must not change what a repeated job reads.
            options["startingOffsets"] = _offsets((range_.topic, range_.partition, range_.start) for range_ in ranges)
            options["endingOffsets"] = _offsets((range_.topic, range_.partition, range_.end) for range_ in ranges)
        return spark.read.format("klamm").options(**options).load()

    def read_all(self, spark: SparkSession, name: str) -> DataFrame:
        """Return a table as of the range's end, if that is a time."""
        if self._job.until_ms is None:
            return super().read_all(spark, name)
        options = {
            **self._settings(CONSUMER_CONFIGS, None),
            "subscribe": name,
            "includeHeaders": "true",
            "endingTimestamp": str(self._job.until_ms),
        }
        return spark.read.format("klamm").options(**options).load()


def _offsets(entries: Iterable[tuple[str, int, int]]) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for topic, partition, offset in entries:
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic)


def plan_backfill(
    pipeline: Pipeline,
    name: str,
    start: ReadBound,
    end: ReadBound,
    *,
    client: Mapping[str, str] | None = None,
    replace: bool = False,
    again: bool = False,
) -> Backfill:
    """Plan the backfill of one query; looks up offsets in the cluster. ConfigError when the query has none to fill."""
    node = _query(pipeline, name)
    table = lake_table(node)
    if node.kind == SINK and table is None:
        raise ConfigError(f"{node.name} is a sink of {node.option('format')}: there is nothing to fill")
    if node.upserts:
        raise ConfigError(f"{node.name} upserts its table: run the pipeline with --rebuild {node.name} instead")
    if node.recomputed:
        raise ConfigError(f"{node.name} is made of tables and computed again at every change: there is nothing to fill")
    if node.kind == TABLE and start != ReadBound(everywhere=EARLIEST):
        raise ConfigError(
            f"{node.name} is a table: rows of a part of its input would overwrite newer ones; write --from earliest"
        )
    if replace and (table is None or not table.partition_by):
        raise ConfigError(f"{node.name} has no partitions to replace: --replace is for sinks with partition_by")
    topics = ClusterTopics(pipeline, client)
    names = tuple(dict.fromkeys(pipeline.node(stream).topic for stream in node.streams))
    with TopicLookup(topics.consumer_settings(), TopicSelection(topics=names)) as lookup:
        first = lookup.at(start, "--from", late_is_latest=True)
        last = lookup.at(end, "--to", late_is_latest=True)
        earliest, latest = lookup.earliest(last.offsets), lookup.lookup(dict.fromkeys(last.offsets, LATEST))
    ranges = []
    for partition in sorted(last.offsets):
        log_start, log_end = earliest[partition], latest[partition]
        # Clamped to the log: a time may lie before its first or after its last record.
        stop = min(max(last.offsets[partition], log_start), log_end)
        begin = min(max(first.offsets.get(partition, log_start), log_start), stop)
        ranges.append(Range(partition.topic, partition.partition, begin, stop))
    until = end.everywhere if end.timed else None
    return Backfill(node, tuple(ranges), until, replace, again)


def _query(pipeline: Pipeline, name: str) -> GraphNode:
    names = [query.name for query in pipeline.queries if query.kind != SOURCE]
    match = next((query for query in names if query.lower() == name.lower()), None)
    if match is None:
        raise ConfigError(f"there is no sink, stream or table {name} to fill{suggest(name, names)}")
    return pipeline.node(match)


def run_backfill(
    pipeline: Pipeline,
    job: Backfill,
    *,
    client: Mapping[str, str] | None = None,
    master: str | None = None,
    spark: Any = None,
    report: Callable[[str], None] = report_nothing,
) -> bool:
    """Run a backfill, in a new session or in `spark`; return False when it was done before.

    The pipeline may run at the same time.
    """
    pipeline = resolve(pipeline, declared=True)
    home = home_of(pipeline, client)
    # A new identity for a file that was renamed would not know the ranges that were filled under its older name.
    take_renamed(pipeline, home, ClusterTopics(pipeline, client).registry(), report)
    identity = _identity(pipeline, home)
    app = app_name(pipeline, identity, job)
    # A check by name and range only; the sink's own log is what prevents a second write after a crash.
    if not job.again:
        earlier = [entry for entry in _read_jobs(home) if entry["query"] == job.node.name]
        if any(entry["app"] == app for entry in earlier):
            return False
        overlapping = next((entry for entry in earlier if _overlaps(entry["ranges"], job.ranges)), None)
        if overlapping and not job.replace:
            ranges = overlapping["ranges"]
            described = ", ".join(f"{topic}-{part} from {first} to {last}" for topic, part, first, last in ranges)
            raise ConfigError(
                f"{job.node.name} was filled with an overlapping range before ({described}): rows would be duplicated;"
                " --replace replaces partitions, --again writes anyway"
            )
    spark_session = spark
    if spark is None:
        from klamm.pipeline.sessions import session  # noqa: PLC0415 - pyspark is an extra

        report("starting Spark")
        spark_settings = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        config = {**SPARK_SETTINGS, **spark_settings}
        session_options: dict[str, Any] = {} if master is None else {"master": master}
        spark_session = session(f"klamm {name_of(pipeline)} backfill", config=config, **session_options)
    try:
        with active_session(spark_session):
            written = _write(spark_session, pipeline, job, client, home, identity, app)
    finally:
        if spark is None:
            spark_session.stop()
    # After the write: a job that failed has to be repeatable.
    _record_job(home, job, app)
    return written


def _write(
    spark: Any,
    pipeline: Pipeline,
    job: Backfill,
    client: Mapping[str, str] | None,
    home: Home,
    identity: QueryIdentity,
    app: str,
) -> bool:
    from klamm.pipeline.lake.sinks import open_sink  # noqa: PLC0415
    from klamm.pipeline.sql.engine import Engine  # noqa: PLC0415

    topics = BoundedTopics(pipeline, client, job)
    engine = Engine(spark, _needed_part(pipeline, job.node), topics, home.path, identity)
    frame = engine.rows(job.node.name)
    table = lake_table(job.node)
    if table is None:
        # A job has an app name of its own and is one write, so its batch number is always 0.
        topics.write(frame, job.node.topic, job.node, QueryLedger(job.node.name, app), 0)
        return True
    sink = open_sink(table)
    return sink.write(frame, app, 0, replace=job.replace)


def _needed_part(pipeline: Pipeline, node: GraphNode) -> Pipeline:
    """Return the part of a pipeline that a query reads: Spark starts a process per topic to get its columns."""
    needed_names, waiting = {node.name}, list(node.inputs)
    while waiting:
        name = waiting.pop()
        if name not in needed_names:
            needed_names.add(name)
            waiting.extend(pipeline.node(name).inputs)
    return dataclasses.replace(pipeline, nodes=tuple(part for part in pipeline.nodes if part.name in needed_names))


def app_name(pipeline: Pipeline, identity: QueryIdentity, job: Backfill) -> str:
    """Return the app name of a backfill: the same for the same range of the same query.

    With `replace` a changed SELECT makes another job, so that rows can be replaced by those of the new SELECT.
    """
    described: list[Any] = [[range_.topic, range_.partition, range_.start, range_.end] for range_ in job.ranges]
    # The SELECT is part of the name only here: without replace, a changed SELECT must not append the range again.
    if job.replace:
        described.append(describe(pipeline)[job.node.name])
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    return f"klamm-backfill-{identity.id}.{job.node.name}.{uuid.uuid4().hex if job.again else digest}"


def _identity(pipeline: Pipeline, home: Home) -> QueryIdentity:
    """Return the pipeline's identity; a pipeline that never ran gets a new one."""
    identity = home.identity()
    if identity is None:
        # A pipeline that starts at the same time must not create another identity.
        with home.hold_lock():
            # Read again under the lock: the pipeline may have stored one meanwhile.
            identity = home.identity() or renew_identity(pipeline, home)
            home.keep(identity)
    return identity


def _read_jobs(home: Home) -> list[dict[str, Any]]:
    try:
        with open(os.path.join(home.path, _JOBS_FILE), encoding="utf-8") as file:
            jobs: list[dict[str, Any]] = json.load(file)
    except FileNotFoundError:
        return []
    return jobs


def _record_job(home: Home, job: Backfill, app: str) -> None:
    ranges = [[range_.topic, range_.partition, range_.start, range_.end] for range_ in job.ranges]
    entry = {
        "query": job.node.name,
        "ranges": ranges,
        "replace": job.replace,
        "app": app,
        "at_ms": int(time.time() * 1000),
    }
    path = os.path.join(home.path, _JOBS_FILE)
    # A lock of its own, because the pipeline's lock belongs to the process that runs it. Without one, of two backfills
    # that end at the same time one would be missing from the list.
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump([*_read_jobs(home), entry], file, indent=1)
        # Atomic: a crash leaves the old list, and the sink's own log still has the job.
        os.replace(f"{path}.new", path)


def _overlaps(done: Iterable[Sequence[Any]], ranges: Sequence[Range]) -> bool:
    done_ranges = {TopicPartition(topic, part): (first, last) for topic, part, first, last in done}
    for range_ in ranges:
        first, last = done_ranges.get(TopicPartition(range_.topic, range_.partition), (0, 0))
        if max(first, range_.start) < min(last, range_.end):
            return True
    return False
