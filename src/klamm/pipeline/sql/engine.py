"""Builds Spark frames and queries from a pipeline's statements.

Each statement with a topic is a query of its own; statements that read it read the topic, so that they see what any
other consumer sees. `topic_views` has the views that they read, `query_writers` has what writes their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import partition_names
from klamm.pipeline.executor_package import ship_module
from klamm.pipeline.sql.core import change_formats, late_rows, row_expressions
from klamm.pipeline.sql.core.captured_tables import POSTGRES, capture_of
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.dead_letter_expressions import (
    FILE_ORIGIN,
    RECORD_ORIGIN,
    letter_expressions,
)
from klamm.pipeline.sql.core.graph import DEAD_LETTERS, GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem, SqlSource
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import SINK, SOURCE, VIEW, Column, Select
from klamm.pipeline.sql.file_source import file_rows
from klamm.pipeline.sql.frame_columns import columns_of, parse_expression
from klamm.pipeline.sql.jdbc import Database
from klamm.pipeline.sql.query_ledger import QueryLedger, app_of
from klamm.pipeline.sql.query_starts import starts_of
from klamm.pipeline.sql.query_writers import QueryWriters
from klamm.pipeline.sql.registry_functions import RegistryFunctions
from klamm.pipeline.sql.spark_errors import error_position
from klamm.pipeline.sql.spark_jvm import active_session, clone_session
from klamm.pipeline.sql.topic_views import TopicViews, add_errors, count_bad_records
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
    _spark: SparkSession
    _writer: Callable[[], Any]
    in_passes: bool = False
    """Whether it has state and reads tables: Spark reads tables once per start, so it is started again and again."""

    def start(self, *, once: bool, trigger: str | None = None) -> StreamingQuery:
        """Start it, over the current records or for ever; SqlError when Spark cannot run the query as a stream."""
        with active_session(self._spark):
            return self._start(once=once, trigger=trigger)

    def _start(self, *, once: bool, trigger: str | None) -> StreamingQuery:
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


def inputs_of(query: Query, names: Container[str]) -> tuple[str, ...]:
    """Return the queries that write what a query reads."""
    reads = (*query.node.streams, *query.node.tables)
    # Dead letters are of the statement itself, which a capture may write.
    captures = [capture_of(name) for name in (*reads, *((query.node.name,) if query.name != query.node.name else ()))]
    return tuple(dict.fromkeys(name for name in (*reads, *captures) if name in names))


class Engine:
    """One pipeline in one Spark session, which holds its views."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, topics: TopicConnector, folder: str, identity: QueryIdentity
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._topics = topics
        self._identity = identity
        encodings = RegistryFunctions(spark, pipeline)
        self._views = TopicViews(spark, pipeline, topics, encodings)
        self._writers = QueryWriters(spark, pipeline, topics, folder, identity, self._views, encodings)
        self.output_columns: dict[str, dict[str, str]] = {}
        """Names and types of the columns of each query that `build` has built."""

    def build(self, given: Container[str] = ()) -> list[Query]:
        """Return all queries, each after those it reads from; sources in `given` have no query: a test feeds them."""
        # PySpark makes the session of a frame that it creates the active one, of the caller too.
        with active_session(self._spark):
            return self._build(given)

    def _build(self, given: Container[str]) -> list[Query]:
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
                self._views.sql(node).createOrReplaceTempView(quote_name(node.name))
                continue
            if node.connector == POSTGRES:
                # Its topic is read by the table or stream that declares the columns.
                if node.name not in given:
                    queries.append(self._make_query(node.name, node, partial(self._writers.make, node)))
                continue
            columns: Sequence[Column] = node.create.columns
            if node.kind == SOURCE and node.name in given:
                columns = columns or (self._given_columns(node) if node.name in read_names else ())
            elif node.runs:
                frame = self._connector(node) if node.kind == SOURCE else self._views.sql(node)
                queries.append(self._query(node, frame))
                columns = columns_of(frame.schema)
                self.output_columns[node.name] = {column.name: column.type for column in columns}
                if node.kind == SOURCE and node.name in self._pipeline.dead_letters:
                    queries.append(self._bad_rows(node))
            if node.has_topic and node.name in read_names:
                self._check_columns(node, columns)
                self._views.columns[node.name] = columns
                self._views.register(node)
                if node.name in self._pipeline.dead_letters and node.kind != SOURCE:
                    queries.append(self._dead_letters(node))
        return queries

    def finish_empty_rebuilds(self, queries: Iterable[Query]) -> None:
        """Remove the rows of rebuilt queries that have no records to read."""
        with active_session(self._spark):
            for query in queries:
                if query.name == query.node.name:
                    self._writers.switch_empty(query.node)

    def _given_columns(self, node: GraphNode) -> Sequence[Column]:
        if node.connector == "rate":
            return _RATE_COLUMNS
        raise ConfigError(f"{node.name} is given rows, and its columns are the database's: declare them")

    def rows(self, name: str) -> DataFrame:
        """Return the rows of one query as a batch (for a backfill); as records if they go to a topic."""
        self.build({source.name for source in self._pipeline.nodes if source.kind == SOURCE})
        node = self._pipeline.node(name)
        return self._views.sql(node) if node.kind == SINK else self._writers.encode(node, self._views.sql(node))

    def find_late_rows(
        self,
        node: GraphNode,
        starts: Sequence[Mapping[str, Any]],
        ends: Sequence[Mapping[str, Any]],
        watermark_ms: int,
    ) -> DataFrame | None:
        """Return the rows that a query has left out of a batch between two positions, as JSON, with the time by which.

        None when it has no watermark, and when it is not known which rows of such a SELECT are late.
        """
        streams = [self._pipeline.node(name) for name in node.streams]
        timed = [(stream.name, stream.option("timestamp") or "") for stream in streams if stream.option("watermark")]
        deduplicated = {stream.name for stream in streams if stream.option("deduplicate")}
        selects = late_rows.late_selects(node.create.select, self._inner_selects(node), timed, deduplicated)
        if not timed or not watermark_ms or selects is None:
            return None
        session = clone_session(self._spark)
        for stream in streams:
            end = next((position for position in ends if stream.topic in position), None)
            if end is None:
                return None
            start = next((position for position in starts if stream.topic in position), {})
            self._views.register_past_rows(stream, self._topics.between(session, start, end))
        self._views.refresh(node, session)
        first, *others = (_find_late(session.sql(select), watermark_ms) for select in selects)
        for frame in others:
            first = first.unionAll(frame)
        return first

    def _inner_selects(self, node: GraphNode) -> list[Select]:
        """Return the SELECTs of the views that a statement reads, and of those they read."""
        selects = []
        for name in node.inputs:
            view = self._pipeline.node(name)
            if view.kind == VIEW:
                selects += [view.create.select] if view.create.select is not None else []
                selects += self._inner_selects(view)
        return selects

    def write_late(self, node: GraphNode, records: DataFrame, batch: int) -> None:
        """Write late rows to the query's late_topic under the batch's number; nothing without one."""
        topic = self._pipeline.late_topics.get(node.name)
        if topic is not None:
            # Without the checkpoint: late rows are found after their batch, so their numbers follow its own.
            late = QueryLedger(node.name, f"{app_of(self._identity, node, node.name)}.late")
            with active_session(records.sparkSession):
                self._topics.write(records, topic, node, late, batch)

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
        writer = partial(self._writers.make, node)
        if node.kind == SINK:
            self._check_partitions(node, frame)
            if node.upserts:
                self._check_columns(node, columns_of(frame.schema))
            return self._make_query(node.name, node, writer)
        self._check_columns(node, columns_of(frame.schema))
        records = self._writers.encode(node, frame)
        if node.kind == SOURCE and node.connector != "jdbc":
            writer = partial(self._topics.append, records, node.topic, node, self._writers.ledger(node))
        return self._make_query(node.name, node, writer)

    def _make_query(self, name: str, node: GraphNode, writer: Callable[[], Any]) -> Query:
        ledger = self._writers.ledger(node, name)

        def begin() -> Any:
            # Spark plans a read of a topic once per frame and keeps the ranges: without new frames a restarted query
            # would see the tables as they were when the pipeline was built.
            self._views.begin_at(starts_of(ledger))
            self._views.refresh(node)
            return writer()

        in_passes = bool(node.streams and node.tables) and not self._pipeline.looks_up(node)
        return Query(name, node, str(ledger.location), ledger, self._pipeline.source, self._spark, begin, in_passes)

    def _bad_rows(self, node: GraphNode) -> Query:
        """Return the query that writes bad rows of files to the dead-letter topic."""
        return self._letter_query(node, partial(self._bad_file_rows, node), FILE_ORIGIN)

    def _bad_file_rows(self, node: GraphNode) -> DataFrame:
        bad = count_bad_records(file_rows(self._spark, node), "dead_letter", node).where(
            f"{row_expressions.ERROR} IS NOT NULL"
        )
        return bad.selectExpr(
            "cast(NULL AS BINARY) AS key",
            f"{row_expressions.bad_row(node)} AS value",
            "cast(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
            "_file",
            "_written",
            row_expressions.ERROR,
        )

    def _dead_letters(self, node: GraphNode) -> Query:
        """Return the query that writes bad records of a topic to the dead-letter topic."""
        return self._letter_query(node, partial(self._bad_records, node), RECORD_ORIGIN)

    def _bad_records(self, node: GraphNode) -> DataFrame:
        # A query of its own, as a streaming query has one sink: the topic is read and decoded once more.
        raw = self._views.stream(node)
        checked = count_bad_records(add_errors(raw, node, node.create.columns), "dead_letter", node)
        bad = checked.where(f"{row_expressions.ERROR} IS NOT NULL")
        if change_formats.is_change_log(node):
            bad = bad.selectExpr(*change_formats.restored_expressions(bad.columns))
        return bad

    def _letter_query(self, node: GraphNode, bad: Callable[[], DataFrame], origin: Mapping[str, str]) -> Query:
        topic = self._pipeline.dead_letters[node.name]
        bytes_max = self._topics.message_bytes_max(topic)
        expressions = letter_expressions(self._identity.name, node, bytes_max, origin)
        name = f"{node.name}{DEAD_LETTERS}"
        ledger = self._writers.ledger(node, name)
        bad().selectExpr(*expressions)  # an error is reported before a query is started

        def make_writer() -> Any:
            return self._topics.append(bad().selectExpr(*expressions), topic, node, ledger, bytes_max)

        return self._make_query(name, node, make_writer)


def _find_late(rows: DataFrame, watermark_ms: int) -> DataFrame:
    """Return those of rows with an end that are late, as JSON beside their end."""
    names = [name for name in rows.columns if name not in (late_rows.ROW, late_rows.END)]
    if late_rows.ROW in rows.columns:
        # A row of a hopping window comes once for each window: it is late when the last of them has ended.
        newest = parse_expression(f"max_by(struct({', '.join(map(quote_name, names))}), {late_rows.END}) AS newest")
        ended = parse_expression(f"max({late_rows.END}) AS {late_rows.END}")
        rows = rows.groupBy(late_rows.ROW).agg(newest, ended).select("newest.*", late_rows.END)
    late = rows.where(f"{late_rows.END} <= timestamp_millis({watermark_ms})")
    return late.selectExpr(f"{row_expressions.json_object(names)} AS {late_rows.ROW}", late_rows.END)
