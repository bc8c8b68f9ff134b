"""The writers of queries: how the rows of a statement become numbered batches of its topic or lake table.

Streams are appended. Tables of streams are upserted batch by batch. Tables of tables are computed again whenever one
of them changes, and the difference to the topic's contents is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from klamm.pipeline.postgres.capture import CaptureWriter
from klamm.pipeline.postgres.capture_options import capture_options
from klamm.pipeline.sql.core import row_expressions
from klamm.pipeline.sql.core.captured_tables import POSTGRES
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.dead_letter_expressions import routed_expressions
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.join_plan import JoinPlan, plan_joins
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.rebuild_steps import RebuildStep
from klamm.pipeline.sql.core.statements import SINK, TABLE
from klamm.pipeline.sql.frame_columns import columns_of, parse_expression
from klamm.pipeline.sql.incremental_joins import StreamLookups, TableJoins, rooted_select
from klamm.pipeline.sql.jdbc import Database, JdbcWriter
from klamm.pipeline.sql.join_frames import JoinFrames, JoinTypesError
from klamm.pipeline.sql.lake_upserts import LakeUpserts
from klamm.pipeline.sql.query_ledger import QueryLedger, app_of, ledger_of
from klamm.pipeline.sql.rebuilds import LakeRebuild, Rebuild, newest_by_key
from klamm.pipeline.sql.registry_functions import RegistryFunctions
from klamm.pipeline.sql.spark_errors import error_position
from klamm.pipeline.sql.spark_jvm import check_append_stream, clone_session
from klamm.pipeline.sql.table_records import newest_records, newest_rows
from klamm.pipeline.sql.topic_views import TopicViews, add_errors
from klamm.pipeline.sql.topics import TopicConnector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


class QueryWriters:
    """Makes the writer of each query anew at every start of it."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        topics: TopicConnector,
        folder: str,
        identity: QueryIdentity,
        views: TopicViews,
        encodings: RegistryFunctions,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._topics = topics
        self._folder = folder
        self._identity = identity
        self._views = views
        self._encodings = encodings

    def make(self, node: GraphNode) -> Any:
        """Return what starts a query: a writer of Spark's, or one with its methods for a database."""
        if node.kind == SINK:
            if node.upserts:
                return self._upsert_sink_writer(node) if node.streams else self._table_sink_writer(node)
            return self._sink_writer(node)
        if node.connector == "jdbc":
            return self._jdbc_writer(node)
        if node.connector == POSTGRES:
            return self._capture_writer(node)
        if self._pipeline.looks_up(node):
            return self._lookup_writer(node)
        if node.recomputed:
            return self._recompute_writer(node)
        return self._upsert_writer(node) if node.kind == TABLE else self._append_writer(node)

    def encode(self, node: GraphNode, frame: DataFrame, *, routed: bool = False, kept: Sequence[str] = ()) -> DataFrame:
        """Return rows as records of key and value; rows of a table without a key are dropped.

        `routed` sends rows that do not fit the registry's schema to the dead-letter topic, by a column topic. Columns
        in `kept` are no part of the row, and stay beside the record.
        """
        row = frame.drop(*kept)
        types = {column.name.lower(): column.type for column in columns_of(row.schema)}
        missing = [name for name in node.key if name.lower() not in types]
        if missing:
            offset = node.create.options["key"].offset if "key" in node.create.options else node.create.offset
            message = (
                f"the SELECT of {node.name} has no column {missing[0]} for the key: it has {', '.join(row.columns)}"
            )
            raise SqlError(self._pipeline.source, [SqlProblem(offset, message)])
        self._encodings.register_writers(node, row.schema)
        binary = bool(node.key) and types[node.key[0].lower()] == "BINARY"
        try:
            value = row_expressions.value_expression(node, row.columns)
        except ValueError:
            message = f"format {node.format} has one column beside its key, not {', '.join(row.columns)}"
            raise SqlError(self._pipeline.source, [SqlProblem(node.create.offset, message)]) from None
        key = f"{row_expressions.key_expression(node, binary)} AS key"
        if routed and node.name in self._pipeline.refused_rows:
            records = self._route(node, frame, key)
        else:
            records = frame.selectExpr(key, f"{value} AS value", *self._constant_headers(node), *kept)
        return records.where("key IS NOT NULL") if node.kind == TABLE else records

    def _route(self, node: GraphNode, frame: DataFrame, key: str) -> DataFrame:
        row = row_expressions.json_object(frame.columns)
        encoded = row_expressions.value_expression(node, frame.columns, checked=True)
        headers = self._encodings.headers(node)
        constant = row_expressions.headers_expression(headers) if headers else ""
        letters = self._pipeline.refused_rows[node.name]
        records = frame.selectExpr(key, f"{encoded} AS _encoded", f"{row} AS _json")
        return records.selectExpr(
            "key", *routed_expressions(self._identity.name, node, letters, "_encoded", "_json", constant)
        )

    def _constant_headers(self, node: GraphNode) -> list[str]:
        headers = self._encodings.headers(node)
        return [f"{row_expressions.headers_expression(headers)} AS headers"] if headers else []

    def ledger(self, node: GraphNode, name: str | None = None) -> QueryLedger:
        """Return the ledger of a statement's query, or of another query of it by name."""
        return ledger_of(self._spark, self._pipeline, self._identity, self._folder, node, name or node.name)

    def _capture_writer(self, node: GraphNode) -> CaptureWriter:
        identity = self._identity
        options = capture_options(node, identity.id, identity.generation(node.name, node.name))
        return CaptureWriter(options, self._topics.change_topic(node, app_of(identity, node, node.name)))

    def _sink_writer(self, node: GraphNode) -> Any:
        return self._topics.sink(self._views.sql(node), node, self.ledger(node), self._lake_rebuild(node))

    def _lake_rebuild(self, node: GraphNode) -> LakeRebuild | None:
        rebuild = Rebuild.load(self.ledger(node))
        return None if rebuild is None else LakeRebuild(rebuild, self._topics, node, self.ledger(node))

    def _upsert_sink_writer(self, node: GraphNode) -> Any:
        upserts = LakeUpserts(self._topics, node, self.ledger(node), self._lake_rebuild(node))
        # A grouped row is emitted at every change, and replaces the one before.
        grouped = node.scan is not None and node.scan.grouped and not node.scan.session
        return (
            self._views.sql(node)
            .writeStream.outputMode("update" if grouped else "append")
            .foreachBatch(upserts.save_rows)
        )

    def _table_sink_writer(self, node: GraphNode) -> Any:
        """Upsert the rows that changed in each batch, and delete those that are gone or that the SELECT leaves out."""
        upserts = LakeUpserts(self._topics, node, self.ledger(node), self._lake_rebuild(node))
        table = self._pipeline.node(node.tables[0])
        columns = self._views.columns[table.name]
        checked = add_errors(self._views.stream(table), table, columns)
        policy = self._pipeline.policy(table)
        good = row_expressions.good_or_raise(table) if policy == "fail" else f"{row_expressions.ERROR} IS NULL"
        names = {name.lower() for name in table.key}
        keys = row_expressions.column_expressions(
            table, columns, [column for column in columns if column.name.lower() in names]
        )

        def save(batch: DataFrame, number: int) -> None:
            # Read once: the rows and the keys that are gone are two parts of it.
            newest = newest_records(batch).persist()
            try:
                rows = newest.where("value IS NOT NULL").selectExpr(*row_expressions.column_expressions(table, columns))
                rows.createOrReplaceTempView(quote_name(table.name))
                upserts.save_changes(self._views.sql(node, batch.sparkSession), newest.selectExpr(*keys), number)
            finally:
                newest.unpersist()

        return checked.where(good).writeStream.outputMode("append").foreachBatch(save)

    def _jdbc_writer(self, node: GraphNode) -> JdbcWriter:
        return JdbcWriter(Database(self._spark, node), self._batch_writer(node))

    def _append_writer(self, node: GraphNode) -> Any:
        records = self.encode(node, self._views.sql(node), routed=True)
        return self._topics.append(records, node.topic, node, self.ledger(node))

    def _upsert_writer(self, node: GraphNode) -> Any:
        records = self.encode(node, self._views.sql(node), routed=True)
        save = self._record_writer(node)
        # In update mode Spark emits a row whenever it changes; in append mode once, when the watermark has passed it.
        return records.writeStream.outputMode("append" if node.final else "update").foreachBatch(save)

    def _recompute_writer(self, node: GraphNode) -> Any:
        changes = self._topics.stream(self._spark, [self._pipeline.node(table).topic for table in node.tables], None)
        joins = self.table_joins(node)
        if joins is not None:
            return changes.writeStream.outputMode("append").foreachBatch(joins.save)

        # The changed rows only trigger a batch: what it writes depends on the tables as they are then.
        def save(_: DataFrame, number: int) -> None:
            self._views.refresh(node)
            current = self.encode(node, self._views.sql(node)).selectExpr(
                "cast(key AS BINARY) key", "cast(value AS BINARY) value"
            )
            self.write_difference(node, current.where("value IS NOT NULL"), number)

        return changes.writeStream.outputMode("append").foreachBatch(save)

    def write_difference(self, node: GraphNode, current: DataFrame, number: int) -> None:
        """Write the difference between all rows of a table and its topic."""
        # max(value) makes rows of one key deterministic: a replay of the batch must compute the same records.
        current = current.groupBy("key").agg(parse_expression("max(value) AS value"))
        self.write_changes(node, self._difference(node, current), number)

    def write_changes(self, node: GraphNode, changed: DataFrame, number: int) -> None:
        """Write changed keys and values of a table under a batch's number."""
        records = changed.selectExpr("key", "value", *self._constant_headers(node))
        self._topics.write(records, node.topic, node, self.ledger(node), number)

    def table_joins(self, node: GraphNode) -> TableJoins | None:
        """Return what computes a table of tables for the rows that change; None for one that is computed whole."""
        frames = self._join_frames(node)
        if frames is None:
            return None
        return TableJoins(self._topics, self, node, frames, self.ledger(node))

    def _join_frames(self, node: GraphNode) -> JoinFrames | None:
        """Return what finds the rows that a join needs; None for a query that reads its tables whole."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        plan = plan_joins(self._pipeline, node)
        if not isinstance(plan, JoinPlan):
            return None
        try:
            frames = JoinFrames(self._spark, self._pipeline, self._views, node, plan)
            if node.recomputed:
                session = clone_session(self._spark)
                frames.register_empty(session)
                session.sql(rooted_select(node, frames))
        except (AnalysisException, JoinTypesError) as error:
            # The plan is made from the text alone; a name that only Spark resolves may be in the way.
            _log.warning("tables read whole query=%s: %s", node.name, str(error).splitlines()[0])
            return None
        return frames

    def _difference(self, node: GraphNode, current: DataFrame) -> DataFrame:
        """Return the keys and values that turn a table's topic into the current rows, of which each key has one."""
        # In the session of the rows: Spark does not join frames of two.
        records = self._topics.read_all(current.sparkSession, node.topic)
        previous = newest_rows(records).selectExpr("key", "value AS before")
        # A full join: rows that are gone have no value, and a null value deletes the key.
        return current.join(previous, "key", "full_outer").where("NOT (value <=> before)")

    def _record_writer(self, node: GraphNode) -> Callable[[DataFrame, int], None]:
        """Return a function that writes a batch of records under its number; of a rebuilt table only when it switches.

        Bad rows among the records name their dead-letter topic, and are not kept aside.
        """
        ledger = self.ledger(node)
        rebuild = Rebuild.load(ledger) if node.kind == TABLE else None

        def save(records: DataFrame, number: int) -> None:
            step = RebuildStep.WRITE if rebuild is None else rebuild.step(number)
            if rebuild is None or step is RebuildStep.WRITE:
                if rebuild is not None:
                    rebuild.clear()
                self._topics.write(records, node.topic, node, ledger, number)
                return
            routed = "topic" in records.columns
            good = records.where(f"topic = '{node.topic}'") if routed else records
            rows = good.selectExpr("cast(key AS BINARY) key", "cast(value AS BINARY) value")
            staged = rebuild.stage(rows, number)
            letters = records.where(f"topic <> '{node.topic}'") if routed else None
            changed = letters
            if step is RebuildStep.SWITCH:
                current = newest_by_key(staged, ["key"]).where("value IS NOT NULL")
                changed = self._difference(node, current).selectExpr("key", "value", *self._constant_headers(node))
                if letters is not None:
                    changed = letters.unionByName(
                        changed.selectExpr("*", f"'{node.topic}' AS topic"), allowMissingColumns=True
                    )
            if changed is not None:
                self._topics.write(changed, node.topic, node, ledger, number)

        return save

    def switch_empty(self, node: GraphNode) -> None:
        """Remove the rows of a rebuilt query whose sources have no records: no batch would do it.

        Called after the new generation is stored. A run that ends in between does it again, which changes nothing.
        """
        ledger = self.ledger(node)
        rebuild = Rebuild.load(ledger)
        if rebuild is None or not rebuild.is_without_batches():
            return
        # Under a name of its own: the query's first batch has number 0.
        switch = QueryLedger(node.name, f"{ledger.app}.empty", in_topic=ledger.in_topic)
        if node.kind == TABLE:
            empty = self._spark.createDataFrame([], "key BINARY, value BINARY")
            removed = self._difference(node, empty).selectExpr("key", "value", *self._constant_headers(node))
            self._topics.write(removed, node.topic, node, switch, 0)
        else:
            rows = self._spark.createDataFrame([], self._views.sql(node).schema)
            self._topics.replace(rows, node, switch, 0)
        rebuild.clear()

    def _batch_writer(self, node: GraphNode) -> Callable[[DataFrame, int], None]:
        """Return a function that writes a batch of rows under its number."""
        write = self._record_writer(node)

        def save(batch: DataFrame, number: int) -> None:
            write(self.encode(node, batch, routed=True), number)

        return save

    def _lookup_writer(self, node: GraphNode) -> Any:
        """Join each batch, as a batch, with the tables as they are after the batch was planned.

        So a row finds every row that was in the table's topic before it. Spark's own join of a stream with a table
        would keep the table as of the query's start.
        """
        (name,) = node.streams
        self._check_stream(node)
        write = self._batch_writer(node)
        frames = self._join_frames(node)
        lookups = None if frames is None else StreamLookups(self._topics, self._views, frames, self.ledger(node))

        def save(batch: DataFrame, number: int) -> None:
            session = batch.sparkSession  # a streaming query runs in a clone of the session, with views of its own
            if lookups is None:
                batch.createOrReplaceTempView(quote_name(name))
                self._views.refresh(node, session)
                write(self._views.sql(node, session), number)
                return
            # Read once: first for the values to look up, then for the join.
            rows = batch.persist()
            try:
                rows.createOrReplaceTempView(quote_name(name))
                lookups.register(node, rows)
                write(self._views.sql(node, session), number)
            finally:
                rows.unpersist()

        return self._spark.table(quote_name(name)).writeStream.outputMode("append").foreachBatch(save)

    def _check_stream(self, node: GraphNode) -> None:
        """Raise SqlError for a SELECT that Spark rejects on a stream: as a batch it would run, with another meaning."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        frame = self._views.sql(node)
        if not frame.isStreaming:  # a backfill
            return
        select = node.create.select
        assert select is not None
        try:
            check_append_stream(self._spark, frame)
        except AnalysisException as error:
            _, message = error_position(error, select.text)
            raise SqlError(self._pipeline.source, [SqlProblem(select.offset, message)]) from None
