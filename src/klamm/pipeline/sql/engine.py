"""A pipeline's statements as Spark's frames and queries.

Each statement with a topic is a query of its own; what reads it reads the topic, so that a result is the same for the
pipeline and for everybody else. Streams are appended by the sink. Tables of streams are upserted batch by batch; tables
of tables are computed anew whenever one of them changes, and the difference to what the topic holds is written.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import partition_names
from klamm.pipeline.executor_package import ship_module
from klamm.pipeline.sql.core import row_expressions
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import DEAD_LETTERS, Node, Pipeline
from klamm.pipeline.sql.core.identity import Identity
from klamm.pipeline.sql.core.problems import Problem, Source, SqlError
from klamm.pipeline.sql.core.query_totals import BAD
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import SINK, SOURCE, TABLE, VIEW, Column
from klamm.pipeline.sql.core.temporal_joins import FROM, UNTIL, rewrite_select, versions_view
from klamm.pipeline.sql.jdbc import Database, JdbcWriter
from klamm.pipeline.sql.registry_functions import RegistryFunctions
from klamm.pipeline.sql.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_RATE: Final = (Column("timestamp", "TIMESTAMP", 0), Column("value", "BIGINT", 0))


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be started, again and again on the same checkpoint."""

    name: str
    node: Node
    checkpoint: str
    source: Source
    _writer: Callable[[], Any]
    in_passes: bool = False
    """Whether it reads tables as they are when it starts, so that seeing them anew takes another start."""

    def start(self, *, once: bool, trigger: str | None = None) -> StreamingQuery:
        """Begin, over what is there now or for ever; SqlError when Spark cannot run such a query as a stream."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        writer = self._writer().queryName(self.name).option("checkpointLocation", self.checkpoint)
        if once:
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        try:
            return writer.start()
        except AnalysisException as error:
            select = self.node.create.select
            offset, words = error_position(error, select.text) if select else (0, str(error))
            base = self.node.create.offset if select is None else select.offset
            raise SqlError(self.source, [Problem(base + offset, words)]) from None


class Engine:
    """One pipeline in one session of Spark; its views live in that session."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, topics: Topics, folder: str, identity: Identity
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._topics = topics
        self._folder = folder
        self._identity = identity
        self._streams: dict[str, DataFrame] = {}
        self._columns: dict[str, Sequence[Column]] = {}
        self._encodings = RegistryFunctions(spark, pipeline)
        self._versioned = {moment.name.lower() for node in pipeline.nodes for moment in node.temporal_joins}

    def build(self, given: Container[str] = ()) -> list[Query]:
        """All queries, in an order in which each comes after what feeds it; sources that are `given` have none."""
        queries: list[Query] = []
        for each in self._pipeline.functions:
            function = load_function(each.target)
            ship_module(self._spark, each.target.partition(":")[0])
            self._spark.udf.register(each.name, function, each.returns)
        read = {name for node in self._pipeline.nodes for name in node.inputs}
        for node in self._pipeline.nodes:
            if node.kind == VIEW:
                self._sql(node).createOrReplaceTempView(quote_name(node.name))
                continue
            columns: Sequence[Column] = node.create.columns
            if node.kind == SOURCE and node.name in given:
                columns = columns or (self._given_columns(node) if node.name in read else ())
            elif node.runs:
                frame = self._connector(node) if node.kind == SOURCE else self._sql(node)
                queries.append(self._query(node, frame))
                columns = columns_of(frame.schema)
                if node.kind == SOURCE and node.name in self._pipeline.dead_letters:
                    queries.append(self._bad_rows(node))
            if node.has_topic and node.name in read:
                self._check_columns(node, columns)
                self._columns[node.name] = columns
                self._relation(node)
                if node.name in self._pipeline.dead_letters and node.kind != SOURCE:
                    queries.append(self._dead_letters(node))
        return queries

    def _given_columns(self, node: Node) -> Sequence[Column]:
        if node.connector == "rate":
            return _RATE
        raise ConfigError(f"{node.name} is given rows, and its columns are the database's: declare them")

    def rows(self, name: str) -> DataFrame:
        """The rows of one query as a batch, where topics are read in batches; as records if they go to a topic."""
        self.build({each.name for each in self._pipeline.nodes if each.kind == SOURCE})
        node = self._pipeline.node(name)
        return self._sql(node) if node.kind == SINK else self._encoded(node, self._sql(node))

    # What is read

    def _refresh(self, reader: Node, session: SparkSession | None = None) -> None:
        """Look again at the tables a query reads, where a frame of a table is what there was when it was made."""
        read = set(reader.inputs)
        for node in reversed(self._pipeline.nodes):
            if node.kind == VIEW and node.name in read:
                read |= set(node.inputs)
        for node in self._pipeline.nodes:
            if node.name not in read:
                continue
            if node.kind == TABLE:
                self._relation(node, session)
            elif node.kind == VIEW:
                self._sql(node, session).createOrReplaceTempView(quote_name(node.name))

    def _relation(self, node: Node, session: SparkSession | None = None) -> None:
        """Make a topic known to SELECTs by its statement's name."""
        columns = self._columns[node.name]
        self._encodings.reads(node, columns)
        table = node.kind == TABLE
        raw = self._topics.whole(session or self._spark, node.topic) if table else self._stream(node)
        frame = self._judged(raw, node, columns)
        if self._pipeline.policy(node) == "fail":
            frame = frame.where(row_expressions.good_or_raise(node))
        else:
            if self._pipeline.policy(node) == "drop" and not table:
                frame = _counting(frame, "drop", node)
            frame = frame.where(f"{row_expressions.ERROR} IS NULL")
        if table and node.name.lower() in self._versioned:
            _versions(frame, node, columns).createOrReplaceTempView(quote_name(versions_view(node.name)))
        if table:
            frame = _newest(frame)
        frame = frame.selectExpr(*row_expressions.column_expressions(node, columns))
        if not table:
            frame = self._timed(frame, node)
        frame.createOrReplaceTempView(quote_name(node.name))

    def _stream(self, node: Node) -> DataFrame:
        """Records as they come; made once, because Spark starts a process to ask a source for its columns."""
        if node.name not in self._streams:
            self._streams[node.name] = self._topics.stream(self._spark, [node.topic], node)
        return self._streams[node.name]

    @staticmethod
    def _judged(raw: DataFrame, node: Node, columns: Sequence[Column]) -> DataFrame:
        with_row = raw.selectExpr("*", f"{row_expressions.value_struct(node, columns)} AS {row_expressions.PARSED}")
        key = row_expressions.key_struct(node)
        if key is not None:
            with_row = with_row.selectExpr("*", f"{key} AS {row_expressions.KEYED}")
        return with_row.selectExpr("*", f"{row_expressions.error_expression(node, columns)} AS {row_expressions.ERROR}")

    @staticmethod
    def _timed(frame: DataFrame, node: Node) -> DataFrame:
        stamp, delay = node.option("timestamp"), node.option("watermark")
        if stamp and delay:
            frame = frame.withWatermark(stamp, delay)
        unique = node.option("deduplicate")
        if unique:
            names = list(name_list(unique))
            within = delay and frame.isStreaming
            frame = frame.dropDuplicatesWithinWatermark(names) if within else frame.dropDuplicates(names)
        return frame

    def _connector(self, node: Node) -> DataFrame:
        """The rows of a source; of a database only their columns."""
        if node.connector == "jdbc":
            return Database(self._spark, node).shape()
        stream = self._spark.readStream
        if node.connector == "rate":
            return stream.format("rate").option("rowsPerSecond", node.option("rows_per_second") or "1").load()
        judged = self._file_rows(node)
        policy = self._pipeline.source_policy(node)
        good = judged.where(
            row_expressions.good_row_or_raise(node) if policy == "fail" else f"{row_expressions.ERROR} IS NULL"
        )
        return good.selectExpr(*(quote_name(column.name) for column in node.create.columns))

    def _file_rows(self, node: Node) -> DataFrame:
        """Rows of files, judged; `_broken` is the text of those that are no rows of these columns."""
        kind, columns = (node.option("file_format") or "json").lower(), node.create.columns
        reader = self._spark.readStream.format(kind)
        for name, value in node.create.options.items():
            if name.startswith("option."):
                reader = reader.option(name.removeprefix("option."), expand(value.text, os.environ, name))
        texts = kind in ("json", "csv")
        if texts:
            reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", row_expressions.BROKEN)
        broken = f", {row_expressions.BROKEN} STRING" if texts else ""
        frame = reader.schema(row_expressions.ddl(columns) + broken).load(node.option("path"))
        found = frame.selectExpr(
            "*",
            "_metadata.file_path AS _file",
            "_metadata.file_modification_time AS _written",
            *(() if texts else (f"cast(NULL AS STRING) AS {row_expressions.BROKEN}",)),
        )
        return found.selectExpr("*", f"{row_expressions.row_error(node, kind)} AS {row_expressions.ERROR}")

    def _sql(self, node: Node, session: SparkSession | None = None) -> DataFrame:
        """A SELECT, analysed; what Spark refuses is told where it was written."""
        from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - pyspark is an extra

        select = node.create.select
        assert select is not None
        # PySpark logs every refusal with the JVM's trace; the words below are enough.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        told = rewrite_select(select, self._names)
        try:
            return (session or self._spark).sql(told.text)
        except (AnalysisException, ParseException) as error:
            offset, words = error_position(error, told.text)
            raise SqlError(self._pipeline.source, [Problem(select.offset + told.original(offset), words)]) from None

    def _names(self, table: str) -> list[str]:
        return [column.name for column in self._columns[self._pipeline.node(table).name]]

    def _check_columns(self, node: Node, columns: Sequence[Column]) -> None:
        """Options of a derived statement name columns that only Spark knows."""
        names = {column.name.lower() for column in columns}
        for option in ("key", "timestamp", "deduplicate"):
            value = node.create.options.get(option)
            for each in name_list(value.text) if value else ():
                if value and each.lower() not in names:
                    words = f"{node.name} has no column {each}: it has {', '.join(some.name for some in columns)}"
                    raise SqlError(self._pipeline.source, [Problem(value.offset, words)])

    def _check_partitions(self, node: Node, frame: DataFrame) -> None:
        """A sink's partition_by names columns that only Spark knows, and not all types will do."""
        value = node.create.options.get("partition_by")
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        if value is None:
            return
        try:
            partition_names(name_list(value.text), types, node.name)
        except ConfigError as error:
            raise SqlError(self._pipeline.source, [Problem(value.offset, str(error))]) from None

    # What is written

    def _query(self, node: Node, frame: DataFrame) -> Query:
        if node.kind == SINK:
            self._check_partitions(node, frame)
            return self._made(node.name, node, lambda: self._topics.sink(self._sql(node), node, self._app(node)))
        self._check_columns(node, columns_of(frame.schema))
        records = self._encoded(node, frame)
        if node.connector == "jdbc":
            return self._made(node.name, node, lambda: JdbcWriter(Database(self._spark, node), self._numbered(node)))
        if node.kind == SOURCE:
            return self._made(node.name, node, lambda: self._topics.append(records, node.topic, node))
        if self._pipeline.looks_up(node):
            return self._made(node.name, node, lambda: self._looked_up(node))
        if node.recomputed:
            return self._made(node.name, node, lambda: self._recomputed(node))
        if node.kind == TABLE:
            return self._made(node.name, node, lambda: self._upserted(node, self._encoded(node, self._sql(node))))
        return self._made(
            node.name, node, lambda: self._topics.append(self._encoded(node, self._sql(node)), node.topic, node)
        )

    def _made(self, name: str, node: Node, writer: Callable[[], Any]) -> Query:
        generation = self._identity.generations.get(node.name, 0)

        def begin() -> Any:
            if self._topics.listed:
                self._refresh(node)
            return writer()

        where = os.path.join(self._folder, f"{name}.{generation}")
        passes = bool(node.streams and node.tables) and not self._pipeline.looks_up(node)
        return Query(name, node, where, self._pipeline.source, begin, passes)

    def _encoded(self, node: Node, frame: DataFrame) -> DataFrame:
        """Rows as key and value; a row without a key has no place in a table."""
        types = {each.name.lower(): each.type for each in columns_of(frame.schema)}
        missing = [each for each in node.key if each.lower() not in types]
        if missing:
            where = node.create.options["key"].offset if "key" in node.create.options else node.create.offset
            words = (
                f"the SELECT of {node.name} has no column {missing[0]} for the key: it has {', '.join(frame.columns)}"
            )
            raise SqlError(self._pipeline.source, [Problem(where, words)])
        self._encodings.writes(node, frame.schema)
        binary = bool(node.key) and types[node.key[0].lower()] == "BINARY"
        try:
            value = row_expressions.value_expression(node, frame.columns)
        except ValueError:
            words = f"format {node.format} has one column beside its key, not {', '.join(frame.columns)}"
            raise SqlError(self._pipeline.source, [Problem(node.create.offset, words)]) from None
        found = frame.selectExpr(
            f"{row_expressions.key_expression(node, binary)} AS key", f"{value} AS value", *self._constant_headers(node)
        )
        return found.where("key IS NOT NULL") if node.kind == TABLE else found

    def _constant_headers(self, node: Node) -> list[str]:
        headers = self._encodings.headers(node)
        return [f"{row_expressions.headers_expression(headers)} AS headers"] if headers else []

    def _app(self, node: Node) -> str:
        """The name under which a table's batches are numbered: another one with every rebuild."""
        return f"klamm-pipeline-{self._identity.id}.{node.name}.{self._identity.generations.get(node.name, 0)}"

    def _upserted(self, node: Node, records: DataFrame) -> Any:
        def save(batch: DataFrame, number: int) -> None:
            self._topics.write(batch, node.topic, node, self._app(node), number)

        return records.writeStream.outputMode("append" if node.final else "update").foreachBatch(save)

    def _recomputed(self, node: Node) -> Any:
        changes = self._topics.stream(self._spark, [self._pipeline.node(table).topic for table in node.tables], None)

        def save(_: DataFrame, number: int) -> None:
            if self._topics.listed:
                self._refresh(node)
            now = self._encoded(node, self._sql(node)).selectExpr(
                "cast(key AS BINARY) key", "cast(value AS BINARY) value"
            )
            now = now.where("value IS NOT NULL").groupBy("key").agg(_expr("max(value) AS value"))
            before = _newest(self._topics.whole(self._spark, node.topic)).selectExpr("key", "value AS before")
            changed = now.join(before, "key", "full_outer").where("NOT (value <=> before)")
            changed = changed.selectExpr("key", "value", *self._constant_headers(node))
            self._topics.write(changed, node.topic, node, self._app(node), number)

        return changes.writeStream.outputMode("append").foreachBatch(save)

    def _numbered(self, node: Node) -> Callable[[DataFrame, int], None]:
        """What writes a batch of rows under its number."""

        def save(batch: DataFrame, number: int) -> None:
            self._topics.write(self._encoded(node, batch), node.topic, node, self._app(node), number)

        return save

    def _looked_up(self, node: Node) -> Any:
        """Row by row with tables: each batch is joined, as a batch, with the tables as they are after it was cut.

        So a row finds whatever was in the table's topic before it. Spark's own join of a stream with a table would
        keep the table of the query's start.
        """
        (name,) = node.streams
        self._stream_allows(node)
        write = self._numbered(node)

        def save(batch: DataFrame, number: int) -> None:
            session = batch.sparkSession  # the query's own: others have their own views
            batch.createOrReplaceTempView(quote_name(name))
            self._refresh(node, session)
            write(self._sql(node, session), number)

        return self._spark.table(quote_name(name)).writeStream.outputMode("append").foreachBatch(save)

    def _stream_allows(self, node: Node) -> None:
        """Refuse what Spark refuses of a stream: as a batch it would be computed, and mean something else."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - pyspark is an extra

        frame, jvm = self._sql(node), self._spark._jvm
        if not frame.isStreaming:  # a backfill
            return
        select = node.create.select
        assert select is not None
        try:
            jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
                frame._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Append()
            )
        except AnalysisException as error:
            _, words = error_position(error, select.text)
            raise SqlError(self._pipeline.source, [Problem(select.offset, words)]) from None

    def _bad_rows(self, node: Node) -> Query:
        """Rows of files that are none, to the topic of dead letters."""
        bad = _counting(self._file_rows(node), "dead_letter", node).where(f"{row_expressions.ERROR} IS NOT NULL")
        headers = row_expressions.bad_row_headers(self._identity.name, node)
        letters = bad.selectExpr(
            "cast(NULL AS BINARY) AS key", f"{row_expressions.bad_row(node)} AS value", f"{headers} AS headers"
        )
        topic = self._pipeline.dead_letters[node.name]
        return self._made(f"{node.name}{DEAD_LETTERS}", node, lambda: self._topics.append(letters, topic, node))

    def _dead_letters(self, node: Node) -> Query:
        raw = self._stream(node)
        judged = _counting(self._judged(raw, node, node.create.columns), "dead_letter", node)
        bad = judged.where(f"{row_expressions.ERROR} IS NOT NULL")
        headers = row_expressions.dead_letter_headers(self._identity.name, node)
        letters = bad.selectExpr("key", "value", f"{headers} AS headers")
        topic = self._pipeline.dead_letters[node.name]
        return self._made(f"{node.name}{DEAD_LETTERS}", node, lambda: self._topics.append(letters, topic, node))


def _counting(judged: DataFrame, policy: str, node: Node) -> DataFrame:
    """Have Spark count a stream's bad records batch by batch; `tally` finds the counts in what it tells of them."""
    return judged.observe(
        f"{BAD}{policy}.{node.name}", _expr(f"count_if({row_expressions.ERROR} IS NOT NULL) AS records")
    )


def _versions(records: DataFrame, node: Node, columns: Sequence[Column]) -> DataFrame:
    """Every version of each row with the time it is valid from and, if there is a later one or a deletion, until."""
    time = row_expressions.version_time(node, columns)
    timed = records.where("key IS NOT NULL").selectExpr("*", f"{time} AS {FROM}")
    ended = timed.selectExpr("*", f"lead({FROM}) OVER (PARTITION BY key ORDER BY {FROM}, offset) AS {UNTIL}")
    return ended.where("value IS NOT NULL").selectExpr(*row_expressions.column_expressions(node, columns), FROM, UNTIL)


def _newest(records: DataFrame) -> DataFrame:
    """The newest record of each key, without deleted ones."""
    newest = records.where("key IS NOT NULL").groupBy("key").agg(_expr("max_by(struct(*), offset) AS newest"))
    return newest.select("newest.*").where("value IS NOT NULL")


def _expr(text: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.expr(text)


def load_function(target: str) -> Callable[..., Any]:
    """The Python function of `module:function`."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"there is no function {target}: {error}") from None
    if not callable(found):
        raise ConfigError(f"{target} is no function")
    return found  # type: ignore[no-any-return]


def columns_of(schema: Any) -> list[Column]:
    """The columns of a frame."""
    return [Column(field.name, spark_type(field.dataType), 0) for field in schema.fields]


def spark_type(kind: Any) -> str:
    """A type of Spark in the spelling of declarations; names of fields are quoted, whatever they are."""
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


def error_position(error: Any, text: str) -> tuple[int, str]:
    """Where in a SELECT Spark found something wrong, and its words without the plan it prints."""
    words = str(error.getMessage() if hasattr(error, "getMessage") else error) or str(error)
    contexts = error.getQueryContext() if hasattr(error, "getQueryContext") else []
    offset = 0
    for context in contexts or []:
        start = context.startIndex()
        if 0 <= start < len(text):
            offset = start
            break
    else:
        match = re.search(r"\(line (\d+), pos (\d+)\)", str(error))
        if match is not None:
            lines = text.split("\n")
            offset = sum(len(line) + 1 for line in lines[: int(match[1]) - 1]) + int(match[2])
    return min(offset, max(len(text) - 1, 0)), words.split("SQLSTATE")[0].split(";\n")[0].strip().rstrip(".;")
