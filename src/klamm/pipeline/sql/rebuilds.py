"""Rebuilds a table or a lake sink beside its rows: readers see the old rows until one batch replaces them.

The new generation reads its sources from the beginning. Until it has caught up with where they ended when the rebuild
began, its rows are kept in its checkpoint (`klamm/staged`, by batch). Then one numbered batch changes the topic by the
difference, or replaces the lake table in one commit. docs/decisions/0026 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from klamm.model.errors import ConfigError
from klamm.model.units import pluralize
from klamm.pipeline.checkpoint_folder import CheckpointFolder, LocalFolder
from klamm.pipeline.core.lake_tables import DELETED
from klamm.pipeline.query_checkpoint import QueryCheckpoint, local_path
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.query_sources import normalize_select
from klamm.pipeline.sql.core.rebuild_steps import RebuildStep, RebuildTarget, SourceOffsets, lost_offsets
from klamm.pipeline.sql.core.statements import SINK, TABLE
from klamm.pipeline.sql.frame_columns import parse_expression
from klamm.pipeline.sql.jdbc_positions import HadoopFolder
from klamm.pipeline.sql.query_ledger import QueryLedger, describe_sink
from klamm.pipeline.sql.query_starts import offsets_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from klamm.pipeline.sql.engine import Query
    from klamm.pipeline.sql.topics import ClusterTopics, TopicConnector

_KLAMM: Final = "klamm"
_TARGET: Final = "rebuild"
_STAGED: Final = "staged"
_BATCH: Final = "klamm_batch"
_ORDER: Final = "klamm_order"


class Rebuild:
    """The rebuild of one query, as its checkpoint has it."""

    def __init__(self, ledger: QueryLedger, target: RebuildTarget) -> None:
        checkpoint = ledger.checkpoint()
        assert checkpoint is not None
        self._checkpoint: QueryCheckpoint = checkpoint
        self._ledger = ledger
        self.target = target
        self._cleared = False

    @classmethod
    def load(cls, ledger: QueryLedger) -> Rebuild | None:
        """Return the rebuild of a query; None when it is not being rebuilt."""
        folder = _folder(ledger)
        if folder is None or _TARGET not in folder.names(_KLAMM):
            return None
        return cls(ledger, RebuildTarget.decode(folder.read(_KLAMM, _TARGET)))

    def step(self, batch: int) -> RebuildStep:
        """Return what a batch does with its rows."""
        end, start, before = (self._checkpoint.position(batch - distance) for distance in range(3))
        return self.target.step(start, end, before)

    def is_without_batches(self) -> bool:
        """Whether the sources had no records, and still no batch is planned that would switch."""
        return not self.target.ends and self._checkpoint.last_planned() < 0

    def stage(self, rows: DataFrame, batch: int) -> DataFrame:
        """Keep the rows of a batch; return all rows that are kept, with the batch and the order they came in."""
        numbered = rows.withColumn(_ORDER, parse_expression("monotonically_increasing_id()"))
        # Overwritten: a batch that is run again has the same rows.
        numbered.write.mode("overwrite").parquet(f"{self._staged_location()}/{_BATCH}={batch}")
        schema = numbered.schema.add(_BATCH, "long")
        return rows.sparkSession.read.schema(schema).parquet(self._staged_location())

    def clear(self) -> None:
        """Remove what was kept; the query is one like others from now on."""
        if self._cleared:
            return
        folder = _folder(self._ledger)
        assert folder is not None
        folder.remove_folder(_KLAMM, _STAGED)
        # Last: without it nothing would remove the rows.
        if _TARGET in folder.names(_KLAMM):
            folder.remove(_KLAMM, _TARGET)
        self._cleared = True

    def clear_if_done(self) -> None:
        """Remove what was kept if the switch is committed."""
        if self.step(self._checkpoint.next_batch()) is RebuildStep.WRITE:
            self.clear()

    def _staged_location(self) -> str:
        location = str(self._ledger.location)
        path = local_path(location)
        # With its scheme: Spark takes a plain path for one of fs.defaultFS.
        return f"{location if path is None else f'file://{path}'}/{_KLAMM}/{_STAGED}"


def newest_by_key(staged: DataFrame, keys: Iterable[str]) -> DataFrame:
    """Return the row of each key that was kept last."""
    newest = parse_expression(f"max_by(struct(*), struct({_BATCH}, {_ORDER})) AS newest")
    return staged.groupBy(*map(quote_name, keys)).agg(newest).select("newest.*").drop(_BATCH, _ORDER)


class LakeRebuild:
    """Writes the batches of a lake sink that is being rebuilt."""

    def __init__(self, rebuild: Rebuild, topics: TopicConnector, node: GraphNode, ledger: QueryLedger) -> None:
        self._rebuild = rebuild
        self._topics = topics
        self._node = node
        self._ledger = ledger

    def save(self, rows: DataFrame, batch: int, write: Callable[[DataFrame, int], None]) -> None:
        """Keep a batch, replace the table with all rows, or let `write` add it; of upserts the newest row of a key."""
        step = self._rebuild.step(batch)
        if step is RebuildStep.WRITE:
            self._rebuild.clear()
            write(rows, batch)
            return
        staged = self._rebuild.stage(rows, batch)
        if step is RebuildStep.STAGE:
            return
        if DELETED in rows.columns:
            current = newest_by_key(staged, self._node.key).where(f"NOT {DELETED}").drop(DELETED)
        else:
            current = staged.drop(_BATCH, _ORDER)
        self._topics.replace(current, self._node, self._ledger, batch)


def prepare_rebuilds(
    pipeline: Pipeline,
    queries: Iterable[Query],
    names: frozenset[str],
    topics: ClusterTopics,
    report: Callable[[str], None],
    accepted: Container[str] = (),
) -> None:
    """Note for each rebuilt query where its sources end now; ConfigError where rows or values would be lost for ever.

    `accepted` names tables whose values may become those of the records that are left.
    """
    rebuilt = [query for query in queries if query.name in names and query.name == query.node.name]
    switched = []
    # All before the first target is written: a refusal leaves nothing behind.
    for query in rebuilt:
        node = query.node
        if is_switched(node, topics):
            ranges = topics.range_of(_topics_read(pipeline, node))
            _check_lost(query, ranges[0], topics, report, accepted)
            switched.append((query, ranges))
        elif node.has_topic and not node.recomputed:
            report(f"{node.name}: its rows come again in topic {node.topic}; another topic keeps them apart")
    for query, (starts, ends) in switched:
        node = query.node
        folder = _folder(query.ledger)
        assert folder is not None
        target = {partition: end for partition, end in ends.items() if end > starts[partition]}
        folder.write(_KLAMM, _TARGET, RebuildTarget(target, _emits_later(pipeline, node)).encode())
        unread = sum(end - starts[partition] for partition, end in target.items())
        report(f"{node.name}: rebuilding from {unread:,} offsets; {describe_sink(node)} keeps its rows until then")


def _topics_read(pipeline: Pipeline, node: GraphNode) -> list[str]:
    return [pipeline.node(name).topic for name in node.streams or node.tables]


def _check_lost(
    query: Query,
    starts: SourceOffsets,
    topics: ClusterTopics,
    report: Callable[[str], None],
    accepted: Container[str],
) -> None:
    node = query.node
    lost = lost_offsets(starts, offsets_before(query.ledger))
    if not lost:
        return
    names = ", ".join(sorted({topic for topic, _ in lost}))
    reason = f"retention has removed {pluralize(sum(lost.values()), 'offset')} of {names}"
    if node.kind == SINK and topics.has_table(node):
        raise ConfigError(
            f"{node.name} cannot be rebuilt in {describe_sink(node)}: {reason}, and the rows of those records would be "
            "removed; give it another path or table, which gets the rows that can be computed"
        )
    if node.kind == TABLE and node.name not in accepted:
        raise ConfigError(
            f"{node.name} cannot be rebuilt in {describe_sink(node)}: {reason}, and its values would become those of "
            f"the records that are left; --rebuild {node.name} --accept-lost {node.name} takes them, and another topic "
            "keeps both"
        )
    if node.kind == TABLE:
        report(f"{node.name}: {reason}: its values become those of the records that are left")


def is_switched(node: GraphNode, topics: ClusterTopics) -> bool:
    """Whether a rebuild replaces the rows of a query in one step; rows of a stream cannot be taken back."""
    if node.kind == SINK:
        return topics.is_lake(node)
    # A table of tables writes the difference anyway.
    return node.kind == TABLE and not node.recomputed and bool(node.streams)


def _emits_later(pipeline: Pipeline, node: GraphNode) -> bool:
    """Whether the watermark decides when rows are emitted."""
    timed = any(pipeline.node(name).option("watermark") for name in node.streams)
    grouped = node.scan is not None and node.scan.grouped
    words = set() if node.create.select is None else {word.lower() for word in normalize_select(node.create.select)}
    # A row without a match is emitted when the watermark has passed the time in which one could come.
    outer = len(node.streams) > 1 and bool(words & {"left", "right", "full"})
    appended = node.final if node.kind == TABLE else not node.upserts
    return timed and appended and (grouped or outer)


def _folder(ledger: QueryLedger) -> CheckpointFolder | None:
    if ledger.location is None:
        return None
    path = local_path(ledger.location)
    if path is not None:
        return LocalFolder(path)
    return None if ledger.spark is None else HadoopFolder(ledger.spark, ledger.location)


def load_targets(queries: Iterable[Query]) -> dict[str, RebuildTarget]:
    """Return where each query that is being rebuilt catches up."""
    rebuilds = {query.name: Rebuild.load(query.ledger) for query in queries}
    return {name: rebuild.target for name, rebuild in rebuilds.items() if rebuild is not None}


def clear_rebuilds(queries: Iterable[Query]) -> None:
    """Remove what rebuilds have kept that have switched."""
    for query in queries:
        rebuild = Rebuild.load(query.ledger)
        if rebuild is not None:
            rebuild.clear_if_done()
