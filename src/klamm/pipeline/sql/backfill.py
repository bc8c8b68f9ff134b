"""Backfills: a query's rows of a bounded range of its topics, as one batch job, written once.

A range is offsets, whatever it was asked by, so that the same command twice is the same job twice. The job has an
identity of its own: a stream's topic, a Delta or Iceberg table and the ledger of a folder know whether it is done. What
was done is also written down in the pipeline's folder, where a range that overlaps one of them is noticed.
"""

from __future__ import annotations

import dataclasses
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
from klamm.pipeline.sql.core.graph import Node, Pipeline
from klamm.pipeline.sql.core.identity import Identity, describe
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statements import SINK, SOURCE, TABLE
from klamm.pipeline.sql.registry_schemas import resolve
from klamm.pipeline.sql.runner import SPARK_SETTINGS, home_of, name_of, renew_identity
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.topics import ClusterTopics, lake_table
from klamm.pipeline.topic_metadata import TopicLookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DONE: Final = "backfills.json"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What would be read, and where its rows would go."""

    node: Node
    ranges: tuple[Range, ...]
    until_ms: int | None = None
    """The time tables are looked at; None is now."""
    replace: bool = False
    again: bool = False

    @property
    def records(self) -> int:
        """How many offsets; gaps count."""
        return sum(range_.size for range_ in self.ranges)

    @property
    def target(self) -> str:
        """For people."""
        found = lake_table(self.node)
        return f"topic {self.node.topic}" if found is None else found.where


class BoundedTopics(ClusterTopics):
    """A cluster's topics, of which a range is read."""

    def __init__(self, pipeline: Pipeline, client: Mapping[str, str] | None, job: Backfill) -> None:
        super().__init__(pipeline, client)
        self._job = job

    def stream(self, spark: SparkSession, names: Sequence[str], node: Node | None) -> DataFrame:
        """The range, as a batch; of topics that are not part of the job whatever there is."""
        ranges = [range_ for range_ in self._job.ranges if range_.topic in set(names)]
        options = {
            **self._settings(CONSUMER_CONFIGS, node),
            "subscribe": ",".join(names),
            "includeHeaders": "true",
        }
        if ranges:
            options["startingOffsets"] = _offsets((range_.topic, range_.partition, range_.start) for range_ in ranges)
            options["endingOffsets"] = _offsets((range_.topic, range_.partition, range_.end) for range_ in ranges)
        return spark.read.format("klamm").options(**options).load()

    def whole(self, spark: SparkSession, name: str) -> DataFrame:
        """A table as it was when the range ends, if that is a time."""
        if self._job.until_ms is None:
            return super().whole(spark, name)
        options = {
            **self._settings(CONSUMER_CONFIGS, None),
            "subscribe": name,
            "includeHeaders": "true",
            "endingTimestamp": str(self._job.until_ms),
        }
        return spark.read.format("klamm").options(**options).load()


def _offsets(places: Iterable[tuple[str, int, int]]) -> str:
    found: dict[str, dict[str, int]] = {}
    for topic, partition, offset in places:
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


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
    """What a backfill of one query would do; asks the cluster for offsets. ConfigError when it makes no sense."""
    node = _query(pipeline, name)
    table = lake_table(node)
    if node.kind == SINK and table is None:
        raise ConfigError(f"{node.name} is a sink of {node.option('format')}: there is nothing to fill")
    if node.recomputed:
        raise ConfigError(f"{node.name} is made of tables and computed anew at every change: there is nothing to fill")
    if node.kind == TABLE and start != ReadBound(everywhere=EARLIEST):
        raise ConfigError(
            f"{node.name} is a table: rows of a part of its input would overwrite newer ones; write --from earliest"
        )
    if replace and (table is None or not table.partition_by):
        raise ConfigError(f"{node.name} has no partitions to replace: --replace is for sinks with partition_by")
    topics = ClusterTopics(pipeline, client)
    names = tuple(dict.fromkeys(pipeline.node(stream).topic for stream in node.streams))
    with TopicLookup(topics.consumer_settings(), TopicSelection(topics=names)) as view:
        first = view.at(start, "--from", late_is_latest=True)
        last = view.at(end, "--to", late_is_latest=True)
        earliest, latest = view.earliest(last.offsets), view.lookup(dict.fromkeys(last.offsets, LATEST))
    ranges = []
    for where in sorted(last.offsets):
        low, high = earliest[where], latest[where]
        upto = min(max(last.offsets[where], low), high)
        begin = min(max(first.offsets.get(where, low), low), upto)
        ranges.append(Range(where.topic, where.partition, begin, upto))
    until = end.everywhere if end.timed else None
    return Backfill(node, tuple(ranges), until, replace, again)


def _query(pipeline: Pipeline, name: str) -> Node:
    names = [query.name for query in pipeline.queries if query.kind != SOURCE]
    found = next((each for each in names if each.lower() == name.lower()), None)
    if found is None:
        raise ConfigError(f"there is no sink, stream or table {name} to fill{suggest(name, names)}")
    return pipeline.node(found)


def run_backfill(
    pipeline: Pipeline,
    job: Backfill,
    *,
    client: Mapping[str, str] | None = None,
    master: str | None = None,
    spark: Any = None,
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Do it, in a session of its own or in `spark`; False when it was done before. A pipeline may run meanwhile."""
    pipeline = resolve(pipeline, declared=True)
    home = home_of(pipeline)
    identity = _identity(pipeline, home)
    app = app_name(pipeline, identity, job)
    if not job.again:
        before = [each for each in _done(home) if each["query"] == job.node.name]
        if any(each["app"] == app for each in before):
            return False
        overlapping = next((each for each in before if _overlap(each["ranges"], job.ranges)), None)
        if overlapping and not job.replace:
            ranges = overlapping["ranges"]
            told = ", ".join(f"{topic}-{part} from {first} to {last}" for topic, part, first, last in ranges)
            raise ConfigError(
                f"{job.node.name} was filled with an overlapping range before ({told}): rows would be there twice;"
                " --replace replaces partitions, --again writes nevertheless"
            )
    running = spark
    if spark is None:
        from klamm.pipeline.sessions import session  # noqa: PLC0415 - pyspark is an extra

        say("starting Spark")
        own = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        config = {**SPARK_SETTINGS, **own}
        where: dict[str, Any] = {} if master is None else {"master": master}
        running = session(f"klamm {name_of(pipeline)} backfill", config=config, **where)
    try:
        written = _write(running, pipeline, job, client, home, identity, app)
    finally:
        if spark is None:
            running.stop()
    _note(home, job, app)
    return written


def _write(
    spark: Any,
    pipeline: Pipeline,
    job: Backfill,
    client: Mapping[str, str] | None,
    home: Home,
    identity: Identity,
    app: str,
) -> bool:
    from klamm.pipeline.lake.sinks import open_sink  # noqa: PLC0415
    from klamm.pipeline.sql.engine import Engine  # noqa: PLC0415

    topics = BoundedTopics(pipeline, client, job)
    engine = Engine(spark, _part(pipeline, job.node), topics, home.path, identity)
    frame = engine.rows(job.node.name)
    table = lake_table(job.node)
    if table is None:
        topics.write(frame, job.node.topic, job.node, app, 0)
        return True
    sink = open_sink(table)
    return sink.write(frame, app, 0, replace=job.replace)


def _part(pipeline: Pipeline, node: Node) -> Pipeline:
    """What a query is made of, and nothing else: every topic that is read costs Spark a process to ask for columns."""
    needed, waiting = {node.name}, list(node.inputs)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(pipeline.node(name).inputs)
    return dataclasses.replace(pipeline, nodes=tuple(each for each in pipeline.nodes if each.name in needed))


def app_name(pipeline: Pipeline, identity: Identity, job: Backfill) -> str:
    """The name under which a backfill is written: the same for the same range of the same query.

    What replaces rows is another job once its SELECT is another.
    """
    described: list[Any] = [[range_.topic, range_.partition, range_.start, range_.end] for range_ in job.ranges]
    if job.replace:
        described.append(describe(pipeline)[job.node.name])
    word = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    return f"klamm-backfill-{identity.id}.{job.node.name}.{uuid.uuid4().hex if job.again else word}"


def _identity(pipeline: Pipeline, home: Home) -> Identity:
    """The pipeline's identity; one that never ran gets it now."""
    found = home.identity()
    if found is None:
        with home.locked():
            found = home.identity() or renew_identity(pipeline, home)
            home.keep(found)
    return found


def _done(home: Home) -> list[dict[str, Any]]:
    try:
        with open(os.path.join(home.path, _DONE), encoding="utf-8") as file:
            found: list[dict[str, Any]] = json.load(file)
    except FileNotFoundError:
        return []
    return found


def _note(home: Home, job: Backfill, app: str) -> None:
    ranges = [[range_.topic, range_.partition, range_.start, range_.end] for range_ in job.ranges]
    entry = {
        "query": job.node.name,
        "ranges": ranges,
        "replace": job.replace,
        "app": app,
        "at_ms": int(time.time() * 1000),
    }
    path = os.path.join(home.path, _DONE)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump([*_done(home), entry], file, indent=1)
    os.replace(f"{path}.new", path)


def _overlap(done: Iterable[Sequence[Any]], ranges: Sequence[Range]) -> bool:
    before = {TopicPartition(topic, part): (first, last) for topic, part, first, last in done}
    for range_ in ranges:
        first, last = before.get(TopicPartition(range_.topic, range_.partition), (0, 0))
        if max(first, range_.start) < min(last, range_.end):
            return True
    return False
