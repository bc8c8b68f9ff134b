"""Builds Spark frames and queries from a pipeline's statements.

Each statement with a topic is a query of its own; statements that read it read the topic, so that they see what any
other consumer sees. Streams are appended. Tables of streams are upserted batch by batch. Tables of tables are computed
again whenever one of them changes, and the difference to the topic's contents is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import partition_names
from klamm.pipeline.executor_package import ship_module
from klamm.pipeline.sql.core import change_formats, late_rows, row_expressions
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.dead_letter_expressions import (
    FILE_ORIGIN,
    RECORD_ORIGIN,
    letter_expressions,
    routed_expressions,
)
from klamm.pipeline.sql.core.graph import DEAD_LETTERS, GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem, SqlSource
from klamm.pipeline.sql.core.query_totals import BAD
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import SINK, SOURCE, TABLE, VIEW, Column
from klamm.pipeline.sql.core.temporal_joins import rewrite_select, versions_view
from klamm.pipeline.sql.file_source import file_rows
from klamm.pipeline.sql.jdbc import Database, JdbcWriter
from klamm.pipeline.sql.lake_upserts import LakeUpserts
from klamm.pipeline.sql.query_ledger import QueryLedger, app_of, ledger_of
from klamm.pipeline.sql.registry_functions import RegistryFunctions
from klamm.pipeline.sql.spark_errors import error_position
from klamm.pipeline.sql.spark_jvm import activate_session, check_append_stream, clone_session
from klamm.pipeline.sql.table_records import newest_records, newest_rows, row_versions
from klamm.pipeline.sql.topics import TopicConnector
from klamm.pipeline.sql.user_functions import find_modules_beside, load_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_RATE_COLUMNS: Final = (Column("timestamp", "TIMESTAMP", 0), Column("value", "BIGINT", 0))


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be started repeatedly on the same checkpoint."""

    name: str
    node: GraphNode
    checkpoint: str
    ledger: QueryLedger
    source: SqlSource
    _writer: Callable[[], Any]
    in_passes: bool = False
    """Whether it has state and reads tables: Spark reads tables once per start, so it is started again and again."""

    def start(self, *, once: bool, trigger: str | None = None) -> StreamingQuery:
        """Start it, over the current records or for ever; SqlError when Spark cannot run the query as a stream."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        writer = self._writer().queryName(self.name).option("checkpointLocation", self.checkpoint)
        if once:
            # Unlike once=True it reads in several batches and honours max_records.
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        try:
            return writer.start()
        except AnalysisException as error:
            select = self.node.create.select
            offset, message = error_position(error, select.text) if select else (0, str(error))
            base = self.node.create.offset if select is None else select.offset
            raise SqlError(self.source, [SqlProblem(base + offset, message)]) from None


class Engine:
    """One pipeline in one Spark session, which holds its views."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, topics: TopicConnector, folder: str, identity: QueryIdentity
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._topics = topics
        self._folder = folder
        self._identity = identity
        self._streams: dict[str, DataFrame] = {}
        self._columns: dict[str, Sequence[Column]] = {}
        self.output_columns: dict[str, dict[str, str]] = {}
        """Names and types of the columns of each query that `build` has built."""
        self._encodings = RegistryFunctions(spark, pipeline)
        self._versioned = {moment.name.lower() for node in pipeline.nodes for moment in node.temporal_joins}

    def build(self, given: Container[str] = ()) -> list[Query]:
        """Return all queries, each after those it reads from; sources in `given` have no query: a test feeds them."""
        queries: list[Query] = []
        find_modules_beside(self._pipeline)
        for declared in self._pipeline.functions:
            # Imported on the driver first: a wrong target fails here, and not in a task.
            function = load_function(declared.target)
            # Before it is registered: Spark pickles the function with the files known at that time.
            ship_module(self._spark, declared.target.partition(":")[0])
            self._spark.udf.register(declared.name, function, declared.returns)
        read_names = {name for node in self._pipeline.nodes for name in node.inputs}
        for node in self._pipeline.nodes:
            if node.kind == VIEW:
                self._sql(node).createOrReplaceTempView(quote_name(node.name))
                continue
            columns: Sequence[Column] = node.create.columns
            if node.kind == SOURCE and node.name in given:
                columns = columns or (self._given_columns(node) if node.name in read_names else ())
            elif node.runs:
                frame = self._connector(node) if node.kind == SOURCE else self._sql(node)
                queries.append(self._query(node, frame))
                columns = columns_of(frame.schema)
                self.output_columns[node.name] = {column.name: column.type for column in columns}
                if node.kind == SOURCE and node.name in self._pipeline.dead_letters:
                    queries.append(self._bad_rows(node))
            if node.has_topic and node.name in read_names:
                self._check_columns(node, columns)
                self._columns[node.name] = columns
                self._relation(node)
                if node.name in self._pipeline.dead_letters and node.kind != SOURCE:
                    queries.append(self._dead_letters(node))
        return queries

    def _given_columns(self, node: GraphNode) -> Sequence[Column]:
        if node.connector == "rate":
            return _RATE_COLUMNS
        raise ConfigError(f"{node.name} is given rows, and its columns are the database's: declare them")

    def rows(self, name: str) -> DataFrame:
        """Return the rows of one query as a batch (for a backfill); as records if they go to a topic."""
        self.build({source.name for source in self._pipeline.nodes if source.kind == SOURCE})
        node = self._pipeline.node(name)
        return self._sql(node) if node.kind == SINK else self._encode(node, self._sql(node))

    def find_late_rows(
        self,
        node: GraphNode,
        starts: Sequence[Mapping[str, Any]],
        ends: Sequence[Mapping[str, Any]],
        watermark_ms: int,
    ) -> DataFrame | None:
        """Return the rows that a query has left out of a batch between two positions; None when it has no watermark."""
        streams = [self._pipeline.node(name) for name in node.streams]
        timed = [stream for stream in streams if stream.option("timestamp") and stream.option("watermark")]
        if not timed or not watermark_ms:
            return None
        session = clone_session(self._spark)
        # Writers look `format("klamm")` up in the active session, and this is a thread of its own.
        activate_session(session)
        for stream in streams:
            end = next((position for position in ends if stream.topic in position), None)
            if end is None:
                return None
            start = next((position for position in starts if stream.topic in position), {})
            self._past_rows(stream, self._topics.between(session, start, end))
        self._refresh(node, session)
        select = late_rows.rows_select(node.create.select) if node.create.select is not None else None
        if select is None:
            select = late_rows.own_time_select(timed[0].name, timed[0].option("timestamp") or "")
        rows = session.sql(select)
        if late_rows.ROW in rows.columns:
            # A row of a hopping window comes once for each window: it is late when the last of them has ended.
            columns = [quote_name(name) for name in rows.columns if name not in (late_rows.ROW, late_rows.END)]
            newest = _expression(f"max_by(struct({', '.join(columns)}), {late_rows.END}) AS newest")
            ended = _expression(f"max({late_rows.END}) AS {late_rows.END}")
            rows = rows.groupBy(late_rows.ROW).agg(newest, ended).select("newest.*", late_rows.END)
        return rows.where(f"{late_rows.END} <= timestamp_millis({watermark_ms})")

    def _past_rows(self, stream: GraphNode, records: DataFrame) -> None:
        """Register good records of a stream, read as a batch, under the stream's name in their session."""
        columns = self._columns[stream.name]
        good = self._add_errors(records, stream, columns).where(f"{row_expressions.ERROR} IS NULL")
        row = f"concat(topic, '-', partition, '-', offset) AS {late_rows.ROW}"
        good.selectExpr(*row_expressions.column_expressions(stream, columns), row).createOrReplaceTempView(
            quote_name(stream.name)
        )

    def write_late(self, node: GraphNode, records: DataFrame, batch: int) -> None:
        """Write late rows to the query's late_topic under the batch's number; nothing without one."""
        topic = self._pipeline.late_topics.get(node.name)
        if topic is not None:
            # Without the checkpoint: late rows are found after their batch, so their numbers follow its own.
            late = QueryLedger(node.name, f"{app_of(self._identity, node, node.name)}.late")
            self._topics.write(records, topic, node, late, batch)

    def _refresh(self, reader: GraphNode, session: SparkSession | None = None) -> None:
        """Create the frames of the tables that a query reads again: a frame is fixed when it is created."""
        read_names = set(reader.inputs)
        # Backwards, so that a view of a view is resolved in one pass.
        for node in reversed(self._pipeline.nodes):
            if node.kind == VIEW and node.name in read_names:
                read_names |= set(node.inputs)
        for node in self._pipeline.nodes:
            if node.name not in read_names:
                continue
            if node.kind == TABLE:
                self._relation(node, session)
            elif node.kind == VIEW:
                self._sql(node, session).createOrReplaceTempView(quote_name(node.name))

    def _relation(self, node: GraphNode, session: SparkSession | None = None) -> None:
        """Register the view by which SELECTs read a statement's topic."""
        columns = self._columns[node.name]
        self._encodings.register_readers(node, columns)
        is_table = node.kind == TABLE
        raw = self._topics.read_all(session or self._spark, node.topic) if is_table else self._stream(node)
        frame = self._add_errors(raw, node, columns)
        if self._pipeline.policy(node) == "fail":
            frame = frame.where(row_expressions.good_or_raise(node))
        else:
            # Not of a table: every read of the whole topic would count its bad records again.
            if self._pipeline.policy(node) == "drop" and not is_table:
                frame = _count_bad_records(frame, "drop", node)
            frame = frame.where(f"{row_expressions.ERROR} IS NULL")
        if is_table and node.name.lower() in self._versioned:
            row_versions(frame, node, columns).createOrReplaceTempView(quote_name(versions_view(node.name)))
        if is_table:
            # After the check for errors: a bad record must not hide the good version before it.
            frame = newest_rows(frame)
        frame = frame.selectExpr(*row_expressions.column_expressions(node, columns))
        if not is_table:
            frame = self._apply_watermark(frame, node)
        frame.createOrReplaceTempView(quote_name(node.name))

    def _stream(self, node: GraphNode) -> DataFrame:
        """Return the stream of a topic; created once, as Spark starts a process to get the columns of a source."""
        if node.name not in self._streams:
            self._streams[node.name] = self._topics.stream(self._spark, [node.topic], node)
        return self._streams[node.name]

    @staticmethod
    def _add_errors(raw: DataFrame, node: GraphNode, columns: Sequence[Column]) -> DataFrame:
        if change_formats.is_change_log(node):
            opened = raw.selectExpr("*", f"{change_formats.envelope_struct(node)} AS {change_formats.ENVELOPE}")
            raw = opened.selectExpr(*change_formats.change_expressions(node, opened.columns))
        with_row = raw.selectExpr("*", f"{row_expressions.value_struct(node, columns)} AS {row_expressions.PARSED}")
        key = row_expressions.key_struct(node)
        if key is not None:
            with_row = with_row.selectExpr("*", f"{key} AS {row_expressions.KEYED}")
        checked = with_row.selectExpr(
            "*", f"{row_expressions.error_expression(node, columns)} AS {row_expressions.ERROR}"
        )
        if change_formats.is_change_log(node) and node.kind != TABLE:
            return checked.where(f"value IS NOT NULL OR {row_expressions.ERROR} IS NOT NULL")
        return checked

    @staticmethod
    def _apply_watermark(frame: DataFrame, node: GraphNode) -> DataFrame:
        timestamp, delay = node.option("timestamp"), node.option("watermark")
        if timestamp and delay:
            frame = frame.withWatermark(timestamp, delay)
        key_columns = node.option("deduplicate")
        if key_columns:
            names = list(name_list(key_columns))
            # Within a watermark Spark forgets keys; without one the state grows for ever. A backfill is no stream.
            within = delay and frame.isStreaming
            frame = frame.dropDuplicatesWithinWatermark(names) if within else frame.dropDuplicates(names)
        return frame

    def _connector(self, node: GraphNode) -> DataFrame:
        """Return the rows of a source; for a database only a frame with its columns."""
        if node.connector == "jdbc":
            return Database(self._spark, node).shape()
        stream = self._spark.readStream
        if node.connector == "rate":
            return stream.format("rate").option("rowsPerSecond", node.option("rows_per_second") or "1").load()
        checked = file_rows(self._spark, node)
        policy = self._pipeline.source_policy(node)
        good = checked.where(
            row_expressions.good_row_or_raise(node) if policy == "fail" else f"{row_expressions.ERROR} IS NULL"
        )
        return good.selectExpr(*(quote_name(column.name) for column in node.create.columns))

    def _sql(self, node: GraphNode, session: SparkSession | None = None) -> DataFrame:
        """Return the frame of a SELECT; SqlError shows where in the file Spark found an error."""
        from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - pyspark is an extra

        select = node.create.select
        assert select is not None
        # PySpark logs every error with the JVM's stack trace, in addition to the SqlError below.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        rewritten = rewrite_select(select, self._names)
        try:
            return (session or self._spark).sql(rewritten.text)
        except (AnalysisException, ParseException) as error:
            offset, message = error_position(error, rewritten.text)
            raise SqlError(
                self._pipeline.source, [SqlProblem(select.offset + rewritten.original(offset), message)]
            ) from None

    def _names(self, table: str) -> list[str]:
        return [column.name for column in self._columns[self._pipeline.node(table).name]]

    def _check_columns(self, node: GraphNode, columns: Sequence[Column]) -> None:
        """Check options that name columns of a SELECT, which only Spark resolves."""
        names = {column.name.lower() for column in columns}
        for option in ("key", "timestamp", "deduplicate"):
            value = node.create.options.get(option)
            for name in name_list(value.text) if value else ():
                if value and name.lower() not in names:
                    existing = ", ".join(column.name for column in columns)
                    message = f"{node.name} has no column {name}: it has {existing}"
                    raise SqlError(self._pipeline.source, [SqlProblem(value.offset, message)])

    def _check_partitions(self, node: GraphNode, frame: DataFrame) -> None:
        """Check that a sink's partition_by names columns of its SELECT, of types that partitions can have."""
        value = node.create.options.get("partition_by")
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        if value is None:
            return
        try:
            partition_names(name_list(value.text), types, node.name)
        except ConfigError as error:
            raise SqlError(self._pipeline.source, [SqlProblem(value.offset, str(error))]) from None

    def _query(self, node: GraphNode, frame: DataFrame) -> Query:
        if node.kind == SINK:
            self._check_partitions(node, frame)
            if node.upserts:
                self._check_columns(node, columns_of(frame.schema))
                writer = self._upsert_sink_writer if node.streams else self._table_sink_writer
                return self._make_query(node.name, node, partial(writer, node))
            return self._make_query(node.name, node, partial(self._sink_writer, node))
        self._check_columns(node, columns_of(frame.schema))
        records = self._encode(node, frame)
        if node.connector == "jdbc":
            return self._make_query(node.name, node, partial(self._jdbc_writer, node))
        if node.kind == SOURCE:
            ledger = self._ledger(node)
            return self._make_query(node.name, node, partial(self._topics.append, records, node.topic, node, ledger))
        if self._pipeline.looks_up(node):
            return self._make_query(node.name, node, partial(self._lookup_writer, node))
        if node.recomputed:
            return self._make_query(node.name, node, partial(self._recompute_writer, node))
        return self._make_query(
            node.name, node, partial(self._upsert_writer if node.kind == TABLE else self._append_writer, node)
        )

    def _make_query(self, name: str, node: GraphNode, writer: Callable[[], Any]) -> Query:
        ledger = self._ledger(node, name)

        def begin() -> Any:
            # Spark plans a read of a topic once per frame and keeps the ranges: without new frames a restarted query
            # would see the tables as they were when the pipeline was built.
            self._refresh(node)
            return writer()

        in_passes = bool(node.streams and node.tables) and not self._pipeline.looks_up(node)
        return Query(name, node, str(ledger.location), ledger, self._pipeline.source, begin, in_passes)

    def _encode(self, node: GraphNode, frame: DataFrame, *, routed: bool = False) -> DataFrame:
        """Return rows as records of key and value; rows of a table without a key are dropped.

        `routed` sends rows that do not fit the registry's schema to the dead-letter topic, by a column topic.
        """
        types = {column.name.lower(): column.type for column in columns_of(frame.schema)}
        missing = [name for name in node.key if name.lower() not in types]
        if missing:
            offset = node.create.options["key"].offset if "key" in node.create.options else node.create.offset
            message = (
                f"the SELECT of {node.name} has no column {missing[0]} for the key: it has {', '.join(frame.columns)}"
            )
            raise SqlError(self._pipeline.source, [SqlProblem(offset, message)])
        self._encodings.register_writers(node, frame.schema)
        binary = bool(node.key) and types[node.key[0].lower()] == "BINARY"
        try:
            value = row_expressions.value_expression(node, frame.columns)
        except ValueError:
            message = f"format {node.format} has one column beside its key, not {', '.join(frame.columns)}"
            raise SqlError(self._pipeline.source, [SqlProblem(node.create.offset, message)]) from None
        key = f"{row_expressions.key_expression(node, binary)} AS key"
        if routed and node.name in self._pipeline.refused_rows:
            records = self._route(node, frame, key)
        else:
            records = frame.selectExpr(key, f"{value} AS value", *self._constant_headers(node))
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

    def _ledger(self, node: GraphNode, name: str | None = None) -> QueryLedger:
        return ledger_of(self._spark, self._pipeline, self._identity, self._folder, node, name or node.name)

    def _sink_writer(self, node: GraphNode) -> Any:
        return self._topics.sink(self._sql(node), node, self._ledger(node))

    def _upsert_sink_writer(self, node: GraphNode) -> Any:
        upserts = LakeUpserts(self._topics, node, self._ledger(node))
        # A grouped row is emitted at every change, and replaces the one before.
        grouped = node.scan is not None and node.scan.grouped and not node.scan.session
        return self._sql(node).writeStream.outputMode("update" if grouped else "append").foreachBatch(upserts.save_rows)

    def _table_sink_writer(self, node: GraphNode) -> Any:
        """Upsert the rows that changed in each batch, and delete those that are gone or that the SELECT leaves out."""
        upserts = LakeUpserts(self._topics, node, self._ledger(node))
        table = self._pipeline.node(node.tables[0])
        columns = self._columns[table.name]
        checked = self._add_errors(self._stream(table), table, columns)
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
                upserts.save_changes(self._sql(node, batch.sparkSession), newest.selectExpr(*keys), number)
            finally:
                newest.unpersist()

        return checked.where(good).writeStream.outputMode("append").foreachBatch(save)

    def _jdbc_writer(self, node: GraphNode) -> JdbcWriter:
        return JdbcWriter(Database(self._spark, node), self._batch_writer(node))

    def _append_writer(self, node: GraphNode) -> Any:
        records = self._encode(node, self._sql(node), routed=True)
        return self._topics.append(records, node.topic, node, self._ledger(node))

    def _upsert_writer(self, node: GraphNode) -> Any:
        records = self._encode(node, self._sql(node), routed=True)

        def save(batch: DataFrame, number: int) -> None:
            self._topics.write(batch, node.topic, node, self._ledger(node), number)

        # In update mode Spark emits a row whenever it changes; in append mode once, when the watermark has passed it.
        return records.writeStream.outputMode("append" if node.final else "update").foreachBatch(save)

    def _recompute_writer(self, node: GraphNode) -> Any:
        # The changed rows only trigger a batch: what it writes depends on the tables as they are then.
        changes = self._topics.stream(self._spark, [self._pipeline.node(table).topic for table in node.tables], None)

        def save(_: DataFrame, number: int) -> None:
            self._refresh(node)
            current = self._encode(node, self._sql(node)).selectExpr(
                "cast(key AS BINARY) key", "cast(value AS BINARY) value"
            )
            # max(value) makes rows of one key deterministic: a replay of the batch must compute the same records.
            current = current.where("value IS NOT NULL").groupBy("key").agg(_expression("max(value) AS value"))
            previous = newest_rows(self._topics.read_all(self._spark, node.topic)).selectExpr("key", "value AS before")
            # A full join: rows that are gone have no value, and a null value deletes the key.
            changed = current.join(previous, "key", "full_outer").where("NOT (value <=> before)")
            changed = changed.selectExpr("key", "value", *self._constant_headers(node))
            self._topics.write(changed, node.topic, node, self._ledger(node), number)

        return changes.writeStream.outputMode("append").foreachBatch(save)

    def _batch_writer(self, node: GraphNode) -> Callable[[DataFrame, int], None]:
        """Return a function that writes a batch of rows under its number."""

        def save(batch: DataFrame, number: int) -> None:
            records = self._encode(node, batch, routed=True)
            self._topics.write(records, node.topic, node, self._ledger(node), number)

        return save

    def _lookup_writer(self, node: GraphNode) -> Any:
        """Join each batch, as a batch, with the tables as they are after the batch was planned.

        So a row finds every row that was in the table's topic before it. Spark's own join of a stream with a table
        would keep the table as of the query's start.
        """
        (name,) = node.streams
        self._check_stream(node)
        write = self._batch_writer(node)

        def save(batch: DataFrame, number: int) -> None:
            session = batch.sparkSession  # a streaming query runs in a clone of the session, with views of its own
            batch.createOrReplaceTempView(quote_name(name))
            self._refresh(node, session)
            write(self._sql(node, session), number)

        return self._spark.table(quote_name(name)).writeStream.outputMode("append").foreachBatch(save)

    def _check_stream(self, node: GraphNode) -> None:
        """Raise SqlError for a SELECT that Spark rejects on a stream: as a batch it would run, with another meaning."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        frame = self._sql(node)
        if not frame.isStreaming:  # a backfill
            return
        select = node.create.select
        assert select is not None
        try:
            check_append_stream(self._spark, frame)
        except AnalysisException as error:
            _, message = error_position(error, select.text)
            raise SqlError(self._pipeline.source, [SqlProblem(select.offset, message)]) from None

    def _bad_rows(self, node: GraphNode) -> Query:
        """Return the query that writes bad rows of files to the dead-letter topic."""
        bad = _count_bad_records(file_rows(self._spark, node), "dead_letter", node).where(
            f"{row_expressions.ERROR} IS NOT NULL"
        )
        rows = bad.selectExpr(
            "cast(NULL AS BINARY) AS key",
            f"{row_expressions.bad_row(node)} AS value",
            "cast(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
            "_file",
            "_written",
            row_expressions.ERROR,
        )
        return self._letter_query(node, rows, FILE_ORIGIN)

    def _dead_letters(self, node: GraphNode) -> Query:
        # A query of its own, as a streaming query has one sink: the topic is read and decoded once more.
        raw = self._stream(node)
        checked = _count_bad_records(self._add_errors(raw, node, node.create.columns), "dead_letter", node)
        bad = checked.where(f"{row_expressions.ERROR} IS NOT NULL")
        if change_formats.is_change_log(node):
            bad = bad.selectExpr(*change_formats.restored_expressions(bad.columns))
        return self._letter_query(node, bad, RECORD_ORIGIN)

    def _letter_query(self, node: GraphNode, bad: DataFrame, origin: Mapping[str, str]) -> Query:
        topic = self._pipeline.dead_letters[node.name]
        bytes_max = self._topics.message_bytes_max(topic)
        letters = bad.selectExpr(*letter_expressions(self._identity.name, node, bytes_max, origin))
        name = f"{node.name}{DEAD_LETTERS}"
        writer = partial(self._topics.append, letters, topic, node, self._ledger(node, name), bytes_max)
        return self._make_query(name, node, writer)


def _count_bad_records(checked: DataFrame, policy: str, node: GraphNode) -> DataFrame:
    """Let Spark count a stream's bad records per batch; `query_totals` reads the counts from its progress."""
    return checked.observe(
        f"{BAD}{policy}.{node.name}", _expression(f"count_if({row_expressions.ERROR} IS NOT NULL) AS records")
    )


def _expression(text: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.expr(text)


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of a frame."""
    return [Column(field.name, spark_type(field.dataType), 0) for field in schema.fields]


def spark_type(kind: Any) -> str:
    """Return a Spark type in the spelling of declarations, with quoted field names."""
    name = kind.typeName()
    if name == "struct":
        return (
            f"STRUCT<{', '.join(f'{quote_name(field.name)}: {spark_type(field.dataType)}' for field in kind.fields)}>"
        )
    if name == "array":
        return f"ARRAY<{spark_type(kind.elementType)}>"
    if name == "map":
        return f"MAP<{spark_type(kind.keyType)}, {spark_type(kind.valueType)}>"
    return str(kind.simpleString()).upper()
