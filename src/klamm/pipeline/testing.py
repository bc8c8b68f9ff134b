"""Runs a pipeline without a cluster, for tests: rows in, rows out, with a clock of the test's choice.

    from klamm.pipeline.testing import run

    def test_balances():
        out = run("bank.sql", {"payments": [{"account": "a", "amount": 5}, {"account": "a", "amount": 2}]})
        out.expect("balances", [{"account": "a", "balance": 7}])

Inputs are rows by the name of their stream, table or source; a list of such inputs is several steps. After each step
every query runs until it has read all records. All tests of a process share one Spark session.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline, compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.row_expressions import has_json_key
from klamm.pipeline.sql.core.statement_options import SINGLE
from klamm.pipeline.sql.core.statements import SINK, SOURCE, TABLE, VIEW
from klamm.pipeline.sql.engine import Engine, Query
from klamm.pipeline.sql.folder_topics import FolderTopics, Raw
from klamm.pipeline.sql.registry_schemas import resolve, without_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DeadLetter", "Deleted", "Outputs", "Raw", "run"]

Row = dict[str, Any]
Inputs = Mapping[str, Sequence[Any]]
Time = int | str | dt.datetime
_FAST_SMALL_QUERIES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Generating code for a query of a few rows takes longer than interpreting it. SET spark.* wins."""
_DEFAULT_TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Deleted:
    """A key that is deleted from a table: Deleted(id="a")."""

    def __init__(self, **key: Any) -> None:
        self.key = key


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A bad record, and its error."""

    key: bytes | None
    value: bytes | None
    error: str
    offset: int


class Outputs(dict[str, list[Any]]):
    """Rows by the name of their statement, as a consumer reads them; of a table, the newest row of each key.

    `changes` has every record with its key, None for a deletion; `dead_letters` the bad records by stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, list[tuple[Any, Any]]] = {}
        self.dead_letters: dict[str, list[DeadLetter]] = {}

    def expect(self, name: str, rows: Iterable[Any], *, ordered: bool = False) -> None:
        """Raise AssertionError with the difference, row by row, unless `name` has these rows."""
        if name not in self:
            raise AssertionError(f"there is no output {name}{suggest(name, self)}")
        actual, expected = [_to_json(row) for row in self[name]], [_to_json(_to_jsonable(row)) for row in rows]
        if not ordered:
            actual, expected = sorted(actual), sorted(expected)
        if actual != expected:
            raise AssertionError(f"{name} has other rows (- expected, + found):\n" + "\n".join(_diff(expected, actual)))


def run(
    sql: str | os.PathLike[str],
    inputs: Inputs | Sequence[Inputs],
    clock: Time | Sequence[Time] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> Outputs:
    """Return the rows that a pipeline (its text, or a file's name) makes of inputs.

    A row is a dict of columns, bytes or text for a value, `Raw` for a whole record, `Deleted` for a deleted key.
    `clock` is the time of the records, one for all or one for each step. `settings` override the file's SETs.
    """
    text, name = _text(sql)
    pipeline = without_registry(resolve(compile_text(text, name, settings)))
    steps = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    times = _times(clock, len(steps))
    _check_inputs(pipeline, steps)
    folder = tempfile.mkdtemp(prefix="klamm-pipeline-")
    try:
        topics = FolderTopics(os.path.join(folder, "topics"))
        identity = QueryIdentity("testing", os.path.basename(name), {}, {}).renew(pipeline)
        given = {name.lower() for step in steps for name in step}
        # A test reads no databases or files: a source that is given no rows has none.
        given |= {node.name for node in pipeline.nodes if node.name.lower() in given or node.kind == SOURCE}
        # Views and settings are per session; the JVM and its caches are shared.
        session = (spark or _session()).newSession()
        spark_settings = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
        for setting, value in {**_FAST_SMALL_QUERIES, **spark_settings}.items():
            # Static settings belong to the shared session and cannot change for one test.
            if session.conf.isModifiable(setting):
                session.conf.set(setting, value)
        queries = Engine(session, pipeline, topics, os.path.join(folder, "checkpoints"), identity).build(given)
        read_ends: dict[str, list[Any]] = {}
        for step, now_ms in zip(steps, times, strict=True):
            topics.now_ms = now_ms
            for statement, records in step.items():
                node = pipeline.node(statement)
                topics.add(node.topic, [_record(node, record, now_ms) for record in records])
            for query in queries:
                ends = [topics.end(topic) for topic in _input_topics(pipeline, query)]
                if read_ends.get(query.name) != ends:
                    # One after the other, in the order of the graph: each sees what those before it wrote in this step.
                    query.start(once=True).awaitTermination()
                    read_ends[query.name] = ends
        return _collect_outputs(pipeline, topics, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _input_topics(pipeline: Pipeline, query: Query) -> list[str]:
    """Return the topics a query reads; without new records in them its start is skipped, which saves a second."""
    node = query.node
    if query.name != node.name:
        return [node.topic]  # its dead letters
    return [pipeline.node(table).topic for table in (node.streams or node.tables)]


def _session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    from klamm.pipeline.sessions import session  # noqa: PLC0415

    # A JVM has one SparkContext: a session that the test suite has started is reused.
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    quiet = {"spark.ui.enabled": False, "spark.log.level": "OFF"}
    return session("klamm-pipeline-testing", master="local[2]", config=quiet, progress=False)


def _text(sql: str | os.PathLike[str]) -> tuple[str, str]:
    if isinstance(sql, os.PathLike) or (sql.endswith(".sql") and "\n" not in sql):
        with open(sql, encoding="utf-8") as file:
            return file.read(), os.fspath(sql)
    return sql, "pipeline.sql"


def _times(clock: Time | Sequence[Time] | None, count: int) -> list[int]:
    if clock is None or isinstance(clock, int | str | dt.datetime):
        return [_millis(clock if clock is not None else _DEFAULT_TIME)] * count
    times = [_millis(time) for time in clock]
    if len(times) != count:
        raise ConfigError(f"the clock has {len(times)} times for {count} steps")
    return times


def _millis(time: Time) -> int:
    if isinstance(time, int):
        return time
    moment = dt.datetime.fromisoformat(time) if isinstance(time, str) else time
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def _check_inputs(pipeline: Pipeline, steps: Sequence[Inputs]) -> None:
    accepting = [node.name for node in pipeline.nodes if node.has_topic and (node.create.select is None)]
    accepted = {name.lower() for name in accepting}
    for name in {name for step in steps for name in step}:
        if name.lower() not in accepted:
            raise ConfigError(f"rows cannot be given to {name}{suggest(name, accepting)}")


def _record(node: GraphNode, record: Any, now_ms: int) -> Raw:
    if isinstance(record, Raw):
        return record
    if isinstance(record, Deleted):
        return Raw(_key(node, record.key), None, now_ms)
    if isinstance(record, bytes | str):
        return Raw(None, record.encode() if isinstance(record, str) else record, now_ms)
    row = dict(record)
    at_ms, headers = now_ms, []
    key = _key(node, row)
    for column in node.create.columns:
        if column.metadata is None or column.name not in row:
            continue
        value = row.pop(column.name)
        if column.metadata == "timestamp":
            at_ms = _millis(value)
        elif column.metadata == "key":
            key = _bytes(value)
        elif column.metadata == "headers":
            headers = list(value.items())
    return Raw(key, _value(node, row), at_ms, headers)


def _key(node: GraphNode, row: Row) -> bytes | None:
    values = {column: row.get(column) for column in node.key}
    if not values or all(value is None for value in values.values()):
        return None
    if has_json_key(node):
        return json.dumps(_to_jsonable(values)).encode()
    return _bytes(next(iter(values.values())))


def _value(node: GraphNode, row: Row) -> bytes | None:
    if node.format in SINGLE:
        keys = {column.lower() for column in node.key}
        return _bytes(next((value for name, value in row.items() if name.lower() not in keys), None))
    if node.format == "csv":
        columns = [column.name for column in node.create.columns if column.metadata is None]
        return ",".join(
            "" if row.get(column) is None else str(_to_jsonable(row[column])) for column in columns
        ).encode()
    if node.format == "debezium" and "op" not in row and "payload" not in row:
        # Rows of a database may be given as they are, instead of as changes.
        row = {"op": "c", "after": row}
    return json.dumps(_to_jsonable(row)).encode()


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(_to_jsonable(value)).encode()


def _to_jsonable(value: Any) -> Any:
    """Return a value as the JSON of a pipeline has it: times in UTC, decimals as numbers, bytes in base64."""
    if isinstance(value, dict):
        return {name: _to_jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_jsonable(item) for item in value]
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _collect_outputs(pipeline: Pipeline, topics: FolderTopics, given: set[str]) -> Outputs:
    outputs = Outputs()
    for node in pipeline.nodes:
        if node.kind == VIEW:
            continue
        if node.name in pipeline.dead_letters:
            letters = [_parse_letter(record) for record in topics.records(pipeline.dead_letters[node.name])]
            # Several streams may share one dead-letter topic.
            outputs.dead_letters[node.name] = [letter for name, letter in letters if name == node.name]
        if node.runs and node.name not in given:
            records = topics.records(node.name if node.kind == SINK else node.topic)
            changes = [(record["key"], _decode(node, record["value"])) for record in records]
            outputs.changes[node.name] = changes
            if node.kind == TABLE or node.upserts:
                # A later change of a key replaces an earlier one, None deletes it: the topic is compacted.
                newest = dict(changes)
                outputs[node.name] = [row for row in newest.values() if row is not None]
            else:
                outputs[node.name] = [value for _, value in changes]
    return outputs


def _parse_letter(record: Mapping[str, Any]) -> tuple[str, DeadLetter]:
    headers = {header["key"]: (header["value"] or b"").decode() for header in record["headers"]}
    error, offset = headers["dead_letter.error"], int(headers["dead_letter.offset"])
    return headers["dead_letter.stream"], DeadLetter(record["key"], record["value"], error, offset)


def _decode(node: GraphNode, value: bytes | None) -> Any:
    if value is None or node.format == "raw":
        return value
    # FolderTopics keeps a sink's rows as JSON, whatever the sink's format.
    return json.loads(value) if node.format == "json" or node.kind == SINK else value.decode()


def _to_json(row: Any) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False, default=repr)


def _diff(expected: list[str], actual: list[str]) -> list[str]:
    import difflib  # noqa: PLC0415

    return [line for line in difflib.ndiff(expected, actual) if not line.startswith("?")]
