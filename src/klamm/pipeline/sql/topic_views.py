"""The views by which SELECTs read topics: records as rows, without bad ones; of tables the newest row of each key."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from klamm.pipeline.sql.core import change_formats, late_rows, row_expressions
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.query_totals import BAD
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import TABLE, VIEW, Column
from klamm.pipeline.sql.core.temporal_joins import rewrite_select, versions_view
from klamm.pipeline.sql.frame_columns import parse_expression
from klamm.pipeline.sql.registry_functions import RegistryFunctions
from klamm.pipeline.sql.spark_errors import error_position
from klamm.pipeline.sql.table_records import newest_rows, row_versions
from klamm.pipeline.sql.topics import TopicConnector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TopicViews:
    """The views of one pipeline in one Spark session."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, topics: TopicConnector, encodings: RegistryFunctions
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._topics = topics
        self._encodings = encodings
        self._streams: dict[tuple[str, str], DataFrame] = {}
        self._starts: Mapping[str, str] = {}
        self.columns: dict[str, Sequence[Column]] = {}
        """Of the statements whose topics are read; set before a view is registered."""
        self._versioned = {moment.name.lower() for node in pipeline.nodes for moment in node.temporal_joins}

    def register_past_rows(self, stream: GraphNode, records: DataFrame) -> None:
        """Register good records of a stream, read as a batch, under the stream's name in their session."""
        columns = self.columns[stream.name]
        good = add_errors(records, stream, columns).where(f"{row_expressions.ERROR} IS NULL")
        row = f"concat(topic, '-', partition, '-', offset) AS {late_rows.ROW}"
        good.selectExpr(*row_expressions.column_expressions(stream, columns), row).createOrReplaceTempView(
            quote_name(stream.name)
        )

    def begin_at(self, starts: Mapping[str, str]) -> None:
        """Let the streams of the query that starts next begin at stored positions, by the names of statements.

        Each query has its own: a frame is shared by the queries that read a stream, and Spark gets its start from it.
        """
        self._starts = starts
        for name in starts:
            if name in self.columns and self._pipeline.node(name).kind != TABLE:
                self.register(self._pipeline.node(name))

    def refresh(self, reader: GraphNode, session: SparkSession | None = None) -> None:
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
                self.register(node, session)
            elif node.kind == VIEW:
                self.sql(node, session).createOrReplaceTempView(quote_name(node.name))

    def register(self, node: GraphNode, session: SparkSession | None = None) -> None:
        """Register the view by which SELECTs read a statement's topic."""
        columns = self.columns[node.name]
        self._encodings.register_readers(node, columns)
        is_table = node.kind == TABLE
        raw = self._topics.read_all(session or self._spark, node.topic) if is_table else self.stream(node)
        frame = add_errors(raw, node, columns)
        if self._pipeline.policy(node) == "fail":
            frame = frame.where(row_expressions.good_or_raise(node))
        else:
            # Not of a table: every read of the whole topic would count its bad records again.
            if self._pipeline.policy(node) == "drop" and not is_table:
                frame = count_bad_records(frame, "drop", node)
            frame = frame.where(f"{row_expressions.ERROR} IS NULL")
        if is_table and node.name.lower() in self._versioned:
            row_versions(frame, node, columns).createOrReplaceTempView(quote_name(versions_view(node.name)))
        if is_table:
            # After the check for errors: a bad record must not hide the good version before it.
            frame = newest_rows(frame)
        frame = frame.selectExpr(*row_expressions.column_expressions(node, columns))
        if not is_table:
            frame = _apply_watermark(frame, node)
        frame.createOrReplaceTempView(quote_name(node.name))

    def register_rows(self, node: GraphNode, raw: DataFrame, extra: Sequence[str] = (), *, broadcast: bool) -> None:
        """Register the view of a table with these records only, good ones and the newest of their keys."""
        columns = self.columns[node.name]
        rows = add_errors(raw, node, columns).selectExpr(*row_expressions.column_expressions(node, columns), *extra)
        # Spark does not estimate the size of rows that come from Python, and would sort both sides.
        (rows.hint("broadcast") if broadcast else rows).createOrReplaceTempView(quote_name(node.name))

    def stream(self, node: GraphNode) -> DataFrame:
        """Return the stream of a topic; created once, as Spark starts a process to get the columns of a source."""
        start = self._starts.get(node.name, "")
        if (node.name, start) not in self._streams:
            self._streams[node.name, start] = self._topics.stream(self._spark, [node.topic], node, start)
        return self._streams[node.name, start]

    def sql(self, node: GraphNode, session: SparkSession | None = None) -> DataFrame:
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
        return [column.name for column in self.columns[self._pipeline.node(table).name]]


def add_errors(raw: DataFrame, node: GraphNode, columns: Sequence[Column]) -> DataFrame:
    """Return records with their parsed values, and the reason why a record is bad; no reason for a good one."""
    if change_formats.is_change_log(node):
        opened = raw.selectExpr("*", f"{change_formats.envelope_struct(node)} AS {change_formats.ENVELOPE}")
        raw = opened.selectExpr(*change_formats.change_expressions(node, opened.columns))
    with_row = raw.selectExpr("*", f"{row_expressions.value_struct(node, columns)} AS {row_expressions.PARSED}")
    key = row_expressions.key_struct(node)
    if key is not None:
        with_row = with_row.selectExpr("*", f"{key} AS {row_expressions.KEYED}")
    checked = with_row.selectExpr("*", f"{row_expressions.error_expression(node, columns)} AS {row_expressions.ERROR}")
    if change_formats.is_change_log(node) and node.kind != TABLE:
        return checked.where(f"value IS NOT NULL OR {row_expressions.ERROR} IS NOT NULL")
    return checked


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


def count_bad_records(checked: DataFrame, policy: str, node: GraphNode) -> DataFrame:
    """Let Spark count a stream's bad records per batch; `query_totals` reads the counts from its progress."""
    return checked.observe(
        f"{BAD}{policy}.{node.name}", parse_expression(f"count_if({row_expressions.ERROR} IS NOT NULL) AS records")
    )
