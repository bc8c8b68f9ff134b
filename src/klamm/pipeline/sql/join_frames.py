"""Frames of the rows that joins need: from topics to the join store, and from the store back to Spark."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final

from klamm.pipeline.query_checkpoint import local_path
from klamm.pipeline.sql.core import row_expressions
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.identity import describe
from klamm.pipeline.sql.core.join_plan import JoinEdge, JoinPlan
from klamm.pipeline.sql.frame_columns import parse_expression
from klamm.pipeline.sql.join_store import JoinStore, StoredRecord, StoredRow, decode_headers, encode_headers
from klamm.pipeline.sql.query_ledger import QueryLedger
from klamm.pipeline.sql.topic_views import TopicViews, add_errors
from klamm.records.arrow import schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = "_klamm_root"
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_HASHED: Final = ("string", "date", "timestamp", "timestamp_ntz", "binary", "boolean")
_PART_BYTES: Final = 64 << 20
"""Records that are in the driver's memory at a time while a table is loaded. Every part reads all of a frame."""
_ROW_BYTES: Final = 64
"""What a row takes beside its key and value."""
_BROADCAST_ROWS: Final = 10_000
# Names that no declared column has.
_TABLE: Final = "_klamm_table"
_KEY: Final = "_klamm_key"
_VALUE: Final = "_klamm_value"
_PLACE: Final = "_klamm_place"
_HEADERS: Final = "_klamm_headers"
_HASHES: Final = "_klamm_hashes"
# Places in a row of the store.
_VALUE_PLACE: Final = 5
_HASHES_PLACE: Final = 7


@dataclass(frozen=True, slots=True)
class HashedSide:
    """One side of an edge: rows of a table, or of the stream, are found by this hash."""

    alias: str
    text: str


class JoinFrames:
    """What one query's joins read and store; made for every start of the query."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, views: TopicViews, node: GraphNode, plan: JoinPlan
    ) -> None:
        """Check the types of the joined columns; JoinTypesError where hashes of equal values would differ."""
        self.plan = plan
        self._pipeline = pipeline
        self._views = views
        self._node = node
        self.tables = {name: pipeline.node(name) for name in node.tables}
        self._sides: dict[tuple[int, int], HashedSide] = {}
        """By the number of the edge and the relation."""
        for number, edge in enumerate(plan.edges):
            pairs = [pair for pair in (_hashable(spark, plan, edge, texts) for texts in edge.pairs) if pair is not None]
            if not pairs:
                raise JoinTypesError(
                    f"the columns of {' = '.join(edge.pairs[0])} have types that are not compared by hash"
                )
            for relation, side in ((edge.source, 0), (edge.target, 1)):
                text = f"xxhash64({', '.join(pair[side] for pair in pairs)})"
                self._sides[number, relation] = HashedSide(plan.relations[relation].alias, text)
        self._columns: dict[str, list[tuple[int, int]]] = {name: [] for name in self.tables}
        for number, relation in self._sides:
            table = self.table(relation)
            if table is not None:
                self._columns[table].append((number, relation))

    def table(self, relation: int) -> str | None:
        """Return the table of a relation; None for the stream."""
        name = self._pipeline.node(self.plan.relations[relation].name).name
        return name if name in self.tables else None

    def column(self, edge: int, relation: int) -> int:
        """Return the number of the hash of one side of an edge, among those of its table."""
        table = self.table(relation)
        assert table is not None
        return self._columns[table].index((edge, relation))

    def stream_hash(self, edge: int) -> HashedSide:
        """Return the hash of an edge that leaves the stream."""
        return self._sides[edge, self.plan.root]

    def open_store(self, ledger: QueryLedger) -> JoinStore:
        """Open the store beside the query's checkpoint; for a remote one a temporary file, which a restart loses."""
        path = None if ledger.location is None else local_path(ledger.location)
        folder = os.path.join(path, "klamm") if path else os.path.join(tempfile.gettempdir(), f"klamm-{ledger.app}")
        hashes = {name: len(columns) for name, columns in self._columns.items()}
        description = json.dumps(
            [
                describe(self._pipeline)[self._node.name],
                # Of tables with a SELECT of their own, only Spark knows the columns.
                {name: [str(column) for column in self._views.columns[name]] for name in self.tables},
                [[*place, side.alias, side.text] for place, side in self._sides.items()],
            ],
            sort_keys=True,
        )
        return JoinStore(os.path.join(folder, "joined.sqlite"), description, hashes)

    # From topics to the store

    def hash_records(self, name: str, raw: DataFrame) -> DataFrame:
        """Return good records of a table with their hashes."""
        node = self.tables[name]
        columns = self._views.columns[name]
        checked = add_errors(raw, node, columns)
        is_failing = self._pipeline.policy(node) == "fail"
        good = row_expressions.good_or_raise(node) if is_failing else f"{row_expressions.ERROR} IS NULL"
        place = "struct(partition, offset, unix_micros(timestamp) AS timestamp_us, unix_micros(timestamp) AS latest_us)"
        frame = checked.where(good).selectExpr(
            f"key AS {_KEY}",
            f"value AS {_VALUE}",
            f"{place} AS {_PLACE}",
            f"headers AS {_HEADERS}",
            *row_expressions.column_expressions(node, columns),
        )
        hashes = []
        for number, (edge, relation) in enumerate(self._columns[name]):
            side = self._sides[edge, relation]
            # An alias for each: a table that is joined with itself has two.
            frame = frame.alias(side.alias).selectExpr("*", f"{side.text} AS `_klamm_hash {number}`")
            hashes.append(f"`_klamm_hash {number}`")
        array = f"array({', '.join(hashes)})" if hashes else "cast(array() AS ARRAY<BIGINT>)"
        number = list(self.tables).index(name)
        return frame.selectExpr(f"{number} AS {_TABLE}", _KEY, _VALUE, _PLACE, _HEADERS, f"{array} AS {_HASHES}")

    def collect(self, frames: Sequence[DataFrame]) -> dict[str, list[StoredRecord]]:
        """Return the records of hashed frames by table, in the order of their partitions."""
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        records: dict[str, list[StoredRecord]] = {name: [] for name in self.tables}
        names = list(self.tables)
        for place, record in _records(union.toArrow()):
            records[names[place]].append(record)
        for name in names:
            records[name].sort(key=_order)
        return records

    @contextmanager
    def newest(self, name: str, raw: DataFrame) -> Iterator[DataFrame]:
        """Yield the newest record of each key in each partition, which Spark keeps on disk meanwhile."""
        from pyspark import StorageLevel  # noqa: PLC0415 - pyspark is an extra

        newest = _newest_of_partitions(self.hash_records(name, raw)).persist(StorageLevel.DISK_ONLY)
        try:
            yield newest
        finally:
            newest.unpersist()

    def load(self, store: JoinStore, name: str, newest: DataFrame) -> int:
        """Load a table's records in parts that fit into memory; return their number."""
        count, parts = measure_frame(newest, (_KEY, _VALUE))
        for part in split_frame(newest, _KEY, parts):
            for batch in part.to_batches():
                store.load(name, _stored_rows(batch))
        return count

    # From the store to Spark

    def register(self, session: SparkSession, records: Mapping[str, Iterable[StoredRecord]]) -> None:
        """Register views of the tables with these rows only; the root's rows have their key in a column."""
        root = self.table(self.plan.root)
        for name, node in self.tables.items():
            rows = list(records[name])
            frame = session.createDataFrame(_arrow(node.topic, rows))
            broadcast = name != root and len(rows) <= _BROADCAST_ROWS
            self._views.register_rows(node, frame, self._extra(name), broadcast=broadcast)

    def register_whole(self, name: str, newest: DataFrame) -> None:
        """Register the view of a table with all of its rows, from the newest records of its partitions."""
        node = self.tables[name]
        # The rule of `table_records.newest_records` and of `JoinStore.records`.
        rows = newest.groupBy(_KEY).agg(
            parse_expression(f"max_by(struct(*), struct({_PLACE}.latest_us, {_PLACE}.offset)) AS newest")
        )
        records = rows.where(f"newest.{_VALUE} IS NOT NULL").selectExpr(
            f"{_KEY} AS key",
            f"newest.{_VALUE} AS value",
            f"'{node.topic}' AS topic",
            f"newest.{_PLACE}.partition AS partition",
            f"newest.{_PLACE}.offset AS offset",
            f"timestamp_micros(newest.{_PLACE}.timestamp_us) AS timestamp",
            f"newest.{_HEADERS} AS headers",
        )
        self._views.register_rows(node, records, self._extra(name), broadcast=False)

    def _extra(self, name: str) -> tuple[str, ...]:
        """Return columns of a table's view beside its own: of the root the key, by which results are stored."""
        return (f"key AS {ROOT}",) if name == self.table(self.plan.root) else ()

    def register_empty(self, session: SparkSession) -> None:
        """Register views without rows, to find out whether Spark accepts a SELECT."""
        self.register(session, dict.fromkeys(self.tables, ()))


class JoinTypesError(Exception):
    """Raised when rows of a join cannot be found by hashes."""


def measure_frame(frame: DataFrame, columns: Iterable[str]) -> tuple[int, int]:
    """Return how many rows a frame has, and into how many parts it is split to fit into memory."""
    lengths = " + ".join(f"ifnull(length({column}), 0)" for column in columns)
    (row,) = frame.selectExpr("count(*) AS rows", f"sum({lengths}) AS bytes").collect()
    return int(row["rows"]), max(math.ceil(((row["bytes"] or 0) + _ROW_BYTES * row["rows"]) / _PART_BYTES), 1)


def split_frame(frame: DataFrame, column: str, parts: int) -> Iterator[pa.Table]:
    """Return a persisted frame in parts, split by the hash of a column."""
    for part in range(parts):
        yield (frame if parts == 1 else frame.where(f"pmod(xxhash64({column}), {parts}) = {part}")).toArrow()


def _hashable(spark: SparkSession, plan: JoinPlan, edge: JoinEdge, texts: tuple[str, str]) -> tuple[str, str] | None:
    """Return both sides of an equality so that equal values have equal hashes; None where that is not certain."""
    types = []
    for relation, text in zip((edge.source, edge.target), texts, strict=True):
        chosen = plan.relations[relation]
        frame = spark.table(quote_name(chosen.name)).alias(chosen.alias)
        types.append(frame.selectExpr(text).schema.fields[0].dataType.simpleString())
    # A hash depends on the type. Spark compares numbers of different types as the wider one.
    if all(kind in _INTEGERS for kind in types):
        return f"cast({texts[0]} AS BIGINT)", f"cast({texts[1]} AS BIGINT)"
    same = types[0] == types[1]
    return texts if same and (types[0] in _HASHED or types[0].startswith("decimal")) else None


def _newest_of_partitions(hashed: DataFrame) -> DataFrame:
    """Return the newest record of each key in each partition, with the latest time of the key there."""
    groups = hashed.groupBy(_KEY, parse_expression(f"{_PLACE}.partition AS _klamm_partition")).agg(
        parse_expression(f"max_by(struct(*), {_PLACE}.offset) AS newest"),
        parse_expression(f"max({_PLACE}.latest_us) AS latest"),
    )
    fields = ("partition", "offset", "timestamp_us")
    place = ", ".join([*(f"newest.{_PLACE}.{field} AS {field}" for field in fields), "latest AS latest_us"])
    return groups.selectExpr(
        *(f"newest.{name}" for name in (_TABLE, _KEY, _VALUE)),
        f"struct({place}) AS {_PLACE}",
        *(f"newest.{name}" for name in (_HEADERS, _HASHES)),
    )


def _records(rows: pa.Table) -> Iterator[tuple[int, StoredRecord]]:
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            place = row[_PLACE]
            record = StoredRecord(
                row[_KEY],
                place["partition"],
                place["offset"],
                place["timestamp_us"],
                row[_VALUE],
                encode_headers(row[_HEADERS]),
                tuple(row[_HASHES]),
                place["latest_us"],
            )
            yield row[_TABLE], record


def _stored_rows(batch: pa.RecordBatch) -> Iterator[StoredRow]:
    """Return rows of the store, by columns: a dictionary per row would take most of the time of a load."""
    place = batch.column(_PLACE)
    values = batch.column(_VALUE).to_pylist()
    headers = batch.column(_HEADERS)
    # Few tables have headers.
    encoded: Iterable[str | None] = (
        repeat(None, len(values)) if headers.null_count == len(values) else map(encode_headers, headers.to_pylist())
    )
    flat = batch.column(_HASHES).flatten().to_pylist()
    count = len(flat) // max(len(values), 1)
    rows = zip(
        batch.column(_KEY).to_pylist(),
        *(place.field(name).to_pylist() for name in ("partition", "latest_us", "offset", "timestamp_us")),
        values,
        encoded,
        *(flat[number::count] for number in range(count)),
        strict=True,
    )
    return rows if batch.column(_VALUE).null_count == 0 else (_without_hashes(row) for row in rows)


def _without_hashes(row: StoredRow) -> StoredRow:
    """Return a row of the store; of a deletion without hashes, as in `StoredRecord.row`."""
    hashes = len(row) - _HASHES_PLACE
    return row if row[_VALUE_PLACE] is not None else (*row[:_HASHES_PLACE], *[None] * hashes)


def _order(record: StoredRecord) -> tuple[int, int]:
    return record.partition, record.offset


def _arrow(topic: str, records: Sequence[StoredRecord]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    columns = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "topic": [topic] * len(records),
        "partition": [record.partition for record in records],
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp_us for record in records],
        "headers": [decode_headers(record.headers) for record in records],
    }
    fields = [field for field in schema() if field.name in columns]
    return pa.table([pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields))
