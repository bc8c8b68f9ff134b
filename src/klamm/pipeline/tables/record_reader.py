"""Records of a table's topic as rows: what `row_expressions` is for Spark, for Arrow batches without Spark.

The rules are the same: a record without a key is bad, a null value deletes the key, a column of the key is taken from
the record's key first and from the value otherwise, and nulls in NOT NULL columns are bad. Values are always parsed
strictly (`parsing = 'strict'`): what Spark's lenient parser accepts cannot be told without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import registry_schemas
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.statement_options import CHANGE_FORMATS, SINGLE
from klamm.pipeline.sql.core.statements import Column
from klamm.pipeline.sql.core.value_parsing import EVENT_YEARS
from klamm.pipeline.tables.arrow_columns import arrow_type, decode_text, parse_texts
from klamm.pipeline.tables.core.change_envelopes import ChangeEnvelope
from klamm.pipeline.tables.core.field_types import DeclaredColumns, FieldType, parse_field_type
from klamm.pipeline.tables.core.inferred_columns import InferredColumns
from klamm.pipeline.tables.core.time_formats import make_time_parser
from klamm.pipeline.tables.value_readers import (
    ColumnArrays,
    CsvReader,
    InferringReader,
    JsonReader,
    RegistryReader,
    TextReader,
    ValueReader,
)

KEY: Final = "_klamm_key"
PARTITION: Final = "_klamm_partition"
OFFSET: Final = "_klamm_offset"
TIME: Final = "_klamm_time"
DELETED: Final = "_klamm_deleted"
SYSTEM_COLUMNS: Final = (KEY, PARTITION, OFFSET, TIME)
"""Columns of every stored row: the record's key, and which of two versions of a key is newer."""


@dataclass(frozen=True, slots=True)
class BadTableRecord:
    """A record that is no row of its table."""

    topic: str
    partition: int
    offset: int
    error: str


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Rows of a batch: system columns, DELETED, and the table's columns; and the records that are no rows."""

    rows: pa.Table
    bad: Sequence[BadTableRecord]
    keys_may_change: bool = False
    """Whether a key column is not in the record's key, so that it can differ between two versions of a row."""


class RecordReader:
    """Reads the records of one table; `columns` grow while it reads if no statement declares them."""

    def __init__(
        self,
        node: GraphNode,
        declared: Sequence[Column],
        values: ValueReader,
        keys: ValueReader | None = None,
        envelope: ChangeEnvelope | None = None,
    ) -> None:
        self._node = node
        self._envelope = envelope
        self._declared = declared
        self._values = values
        self._keys = keys
        self._event_time = (node.option("timestamp") or "").lower()
        self._not_null = [column.name for column in declared if not column.nullable]

    @property
    def columns(self) -> list[tuple[str, FieldType]]:
        """Names and types of the table's columns."""
        if self._declared:
            return [(column.name, parse_field_type(column.type)) for column in self._declared]
        columns = list(self._values.columns)
        present = {name.lower() for name, _ in columns}
        # The SELECT's key columns are in the value, too. Until a value was seen they are the only columns known.
        missing = [(name, FieldType("STRING")) for name in self._node.key if name.lower() not in present]
        return [*missing, *columns]

    @property
    def inferred_types(self) -> dict[str, str] | None:
        """The types of columns that are inferred from values; None when columns are declared."""
        return self._values.inferred.types if isinstance(self._values, InferringReader) else None

    def forget_inferred(self) -> None:
        """Forget the columns of values seen so far: the topic is read again."""
        if isinstance(self._values, InferringReader):
            self._values.inferred = InferredColumns()

    def read(self, batch: pa.RecordBatch) -> TableChanges:
        """Return the rows of a batch of records of this table's topic."""
        keys, values, headers = batch.column("key"), batch.column("value"), batch.column("headers")
        opened = None if self._envelope is None else [self._envelope.open(value) for value in values.to_pylist()]
        if opened is not None:
            values = pa.array([change.row for change in opened], pa.binary())
        decoded = self._values.read(values, headers)
        by_name = {name.lower(): array for (name, _), array in zip(self._values.columns, decoded.arrays, strict=True)}
        errors = _Errors(len(keys))
        errors.add_where(pc.is_null(keys), "the key is null")
        from_keys = self._read_keys(keys, headers, errors)
        if opened is not None:
            errors.add_all([change.error for change in opened])
            ops = pa.array([change.op for change in opened], pa.string())
            batch = batch.append_column("op", ops)
        errors.add_all(decoded.errors)
        arrays: dict[str, pa.Array] = {}
        deleted = pc.is_null(values)
        keys_may_change = any(array.null_count for array in from_keys.values())
        for name, field_type in self.columns:
            array = self._column(name, field_type, batch, by_name, from_keys)
            if name in self._not_null and array.null_count:
                errors.add_where(pc.and_not(pc.is_null(array), deleted), f"{name} is null")
            if name.lower() == self._event_time and pa.types.is_timestamp(array.type):
                first, last = EVENT_YEARS
                year = pc.year(array)
                outside = pc.fill_null(pc.or_(pc.less(year, first), pc.greater_equal(year, last)), False)
                errors.add_where(outside, f"{name} is not between the years {first} and {last}")
            arrays[name] = array
        rows = pa.table(
            {
                KEY: keys,
                PARTITION: batch.column("partition"),
                OFFSET: batch.column("offset"),
                TIME: pc.cast(batch.column("timestamp"), pa.int64()),
                DELETED: deleted,
                **arrays,
            }
        )
        if not errors.any:
            return TableChanges(rows, (), keys_may_change)
        bad = [
            BadTableRecord(self._node.topic, partition.as_py(), offset.as_py(), error)
            for partition, offset, error in zip(
                batch.column("partition"), batch.column("offset"), errors.texts, strict=True
            )
            if error is not None
        ]
        return TableChanges(rows.filter(pa.array([error is None for error in errors.texts])), bad, keys_may_change)

    def _read_keys(self, keys: pa.Array, headers: pa.Array | None, errors: _Errors) -> dict[str, pa.Array]:
        if self._keys is None:
            return {}
        decoded = self._keys.read(keys, headers)
        if self._node.key_registered:
            errors.add_all(decoded.errors, "the key: ")
        arrays = zip(self._keys.columns, decoded.arrays, strict=True)
        return {name.lower(): array for (name, _), array in arrays}

    def _column(
        self,
        name: str,
        field_type: FieldType,
        batch: pa.RecordBatch,
        from_values: dict[str, pa.Array],
        from_keys: dict[str, pa.Array],
    ) -> pa.Array:
        declared = next((column for column in self._declared if column.name == name), None)
        if declared is not None and declared.metadata is not None:
            return _metadata(batch, declared.metadata, field_type)
        candidates = [part[name.lower()] for part in (from_keys, from_values) if name.lower() in part]
        candidates = [array.cast(arrow_type(field_type), safe=False) for array in candidates]
        if not candidates:
            return pa.nulls(batch.num_rows, arrow_type(field_type))
        return candidates[0] if len(candidates) == 1 else pc.coalesce(*candidates)


class _Errors:
    """The first error of each record of a batch; nothing is allocated while there is none."""

    def __init__(self, rows: int) -> None:
        self.texts: list[str | None] = []
        self._rows = rows

    @property
    def any(self) -> bool:
        return bool(self.texts)

    def add_all(self, errors: Sequence[str | None] | None, prefix: str = "") -> None:
        if errors is None:
            return
        for index, error in enumerate(errors):
            if error is not None:
                self._add(index, prefix + error)

    def add_where(self, mask: pa.Array, error: str) -> None:
        for index in pc.indices_nonzero(mask).to_pylist():
            self._add(index, error)

    def _add(self, index: int, error: str) -> None:
        if not self.texts:
            self.texts = [None] * self._rows
        self.texts[index] = self.texts[index] or error


def _metadata(batch: pa.RecordBatch, part: str, field_type: FieldType) -> pa.Array:
    array = batch.column(part)
    if part == "key":
        return array if field_type.name == "BINARY" else decode_text(array)
    if part == "headers":
        # Of a repeated name the last counts: a map has each key once.
        maps = [
            None if row is None else list({item["key"]: item["value"] for item in row}.items())
            for row in array.to_pylist()
        ]
        return pa.array(maps, arrow_type(field_type))
    return array.cast(arrow_type(field_type))


class _SingleKeyReader:
    """Reads keys that are the text of one column."""

    def __init__(self, name: str, field_type: FieldType) -> None:
        self.columns: DeclaredColumns = [(name, field_type)]
        self._field_type = field_type

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        del headers
        if self._field_type.name == "BINARY":
            return ColumnArrays([values])
        return ColumnArrays([parse_texts(decode_text(values), self._field_type)])


def make_record_reader(
    pipeline: Pipeline, node: GraphNode, declared: Sequence[Column], inferred: InferredColumns | None = None
) -> RecordReader:
    """Return the reader of a table's records; columns that are not declared are inferred from JSON."""
    types = {column.name: parse_field_type(column.type) for column in declared}
    key_names = {name.lower() for name in node.key}
    in_value = [
        (column.name, types[column.name])
        for column in declared
        if column.metadata is None and not (node.format in SINGLE and column.name.lower() in key_names)
    ]
    return RecordReader(
        node,
        declared,
        _value_reader(pipeline, node, in_value, inferred),
        _key_reader(pipeline, node, declared),
        ChangeEnvelope.of(node) if node.format in CHANGE_FORMATS else None,
    )


def _value_reader(
    pipeline: Pipeline, node: GraphNode, columns: DeclaredColumns, inferred: InferredColumns | None
) -> ValueReader:
    if node.registered:
        names = [name for name, _ in columns]
        decode = _registry_decoder(pipeline, node, registry_schemas.VALUE, names)
        return RegistryReader(columns, decode, base64_bytes=node.format == "json_schema")
    if node.format in CHANGE_FORMATS and "order_by" in node.create.options:
        raise ConfigError(
            f"{node.name} is read from changes in the order of order_by: query a table that is made of it"
            f" (CREATE TABLE name WITH (key = '{', '.join(node.key)}') AS SELECT * FROM {node.name})"
        )
    if node.format in SINGLE:
        return TextReader(columns)
    if node.format == "csv":
        return CsvReader(columns, make_time_parser(node.option("timestamp_format")))
    if inferred is not None:
        return InferringReader(inferred)
    return JsonReader(columns, make_time_parser(node.option("timestamp_format")))


def _key_reader(pipeline: Pipeline, node: GraphNode, declared: Sequence[Column]) -> ValueReader | None:
    """Return the reader of key columns; None when no column is declared that is in the key."""
    types = {column.name.lower(): parse_field_type(column.type) for column in declared if column.metadata is None}
    columns = [(name, types.get(name.lower(), FieldType("STRING"))) for name in node.key]
    if not declared:
        return None  # columns of the key are in the value as well, with their types
    if node.key_registered:
        names = [name for name, _ in columns]
        return RegistryReader(columns, _registry_decoder(pipeline, node, registry_schemas.KEY, names))
    if node.key_format == "json":
        return JsonReader(columns)
    return _SingleKeyReader(*columns[0])


def _registry_decoder(
    pipeline: Pipeline, node: GraphNode, part: str, names: Sequence[str]
) -> Callable[[pa.Array, pa.Array | None], pa.Array]:
    from klamm.pipeline.registry.columns import make_decoder  # noqa: PLC0415 - needs klamm[registry]

    return make_decoder(
        registry_schemas.registry_of(pipeline, node),
        subject=registry_schemas.subject_of(node, part),
        names=names,
        message=registry_schemas.message_of(node, part),
        part=part,
        alone=registry_schemas.lone_column(node, names, part),
    )
