"""Record values as columns, one reader per format.

A reader takes the values of a batch and returns an array per column, with an error for each value that is not what
the statement declares. A null value gives nulls and no error: what it means is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from klamm.pipeline.tables.arrow_columns import (
    arrow_type,
    convert_array,
    decode_text,
    make_array,
    parse_base64_texts,
    parse_texts,
)
from klamm.pipeline.tables.core.csv_line import split_fields
from klamm.pipeline.tables.core.field_types import DeclaredColumns, FieldType
from klamm.pipeline.tables.core.inferred_columns import InferredColumns
from klamm.pipeline.tables.core.json_values import parse_document, read_fields
from klamm.pipeline.tables.core.text_values import BadValue, from_text
from klamm.pipeline.tables.core.time_formats import TimeParser, parse_iso

_BLOCK_BYTES_MAX = 1 << 30
_SLOW_TYPES = ("VARIANT", "BINARY", "TIMESTAMP_NTZ")
"""Types of simple columns that Arrow's parser reads by other rules."""


class ColumnArrays(NamedTuple):
    """Columns of values, and the error of each value; `errors` is None when there is none."""

    arrays: list[pa.Array]
    errors: list[str | None] | None = None


class ValueReader(Protocol):
    """Reads values of one format."""

    @property
    def columns(self) -> DeclaredColumns:
        """Names and types of the columns that the last `read` returned."""

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the columns of values."""


def _read_rows(values: pa.Array, columns: DeclaredColumns, read_row: Callable[[bytes], Sequence[Any]]) -> ColumnArrays:
    """Read values one by one."""
    rows: list[Sequence[Any]] = []
    errors: list[str | None] | None = None
    nulls = (None,) * len(columns)
    for index, value in enumerate(values.to_pylist()):
        try:
            rows.append(nulls if value is None else read_row(value))
        except BadValue as error:
            rows.append(nulls)
            errors = errors or [None] * len(values)
            errors[index] = str(error)
    parts = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return ColumnArrays(
        [make_array(part, field_type) for part, (_, field_type) in zip(parts, columns, strict=True)], errors
    )


class JsonReader:
    """Reads JSON objects: all values of a batch by Arrow's parser if they are plain, otherwise one by one."""

    def __init__(self, columns: DeclaredColumns, parse_time: TimeParser = parse_iso) -> None:
        self.columns = columns
        self._parse_time = parse_time
        self._schema: pa.Schema | None = None
        plain = not any(field_type.nested or field_type.name in _SLOW_TYPES for _, field_type in columns)
        if plain and parse_time is parse_iso and columns:
            fields = [(name, _parsed_type(field_type)) for name, field_type in columns]
            self._schema = pa.schema([("value", pa.struct(fields))])

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the columns of JSON objects."""
        del headers
        arrays = self._read_whole(values)
        return _read_rows(values, self.columns, self._read_row) if arrays is None else ColumnArrays(arrays)

    def _read_row(self, value: bytes) -> list[Any]:
        return read_fields(parse_document(value), self.columns, self._parse_time)

    def _read_whole(self, values: pa.Array) -> list[pa.Array] | None:
        """Return the columns if Arrow reads every value by the same rules; None if that is not certain."""
        if self._schema is None or not len(values) or values.nbytes > _BLOCK_BYTES_MAX:
            return None
        present = values.drop_null()
        try:
            # Arrow's JSON parser does not check UTF-8, the cast does.
            texts = present.cast(pa.string())
            objects = self._parse(texts) if len(texts) else None
            if objects is None:
                return None
            arrays = []
            for name, field_type in self.columns:
                column = pc.struct_field(objects, name)
                parsed = column if column.type == arrow_type(field_type) else parse_texts(column, field_type)
                # Text that is no date or time: the rules say which, and why.
                if parsed.null_count != column.null_count:
                    return None
                arrays.append(parsed)
        except pa.ArrowInvalid:
            return None
        if len(present) == len(values):
            return arrays
        positions = pc.if_else(
            pc.is_valid(values), pc.subtract(pc.cumulative_sum(pc.is_valid(values).cast("int64")), 1), None
        )
        return [array.take(positions) for array in arrays]

    def _parse(self, texts: pa.Array) -> pa.Array | None:
        """Return values as structs; None when a value may be more, or less, than one object."""
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), '}\n{"value":')[0]
        lines = b'{"value":%b}' % joined.as_buffer()
        has_newlines = pc.any(pc.match_substring(texts, "\n")).as_py()
        parsed = arrow_json.read_json(
            pa.BufferReader(lines),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=self._schema, newlines_in_values=has_newlines),
        )
        # `1,"other":2` inside of the braces is two fields, and `1}{"value":2` two rows: no JSON by itself.
        if parsed.num_rows != len(texts) or parsed.schema.names != ["value"]:
            return None
        objects = parsed["value"].combine_chunks()
        return None if objects.null_count else objects


def _parsed_type(field_type: FieldType) -> pa.DataType:
    # Dates and times are parsed from text afterwards: Arrow's JSON parser knows fewer spellings.
    return pa.string() if field_type.name in ("DATE", "TIMESTAMP") else arrow_type(field_type)


class InferringReader:
    """Reads JSON objects whose columns are not declared; columns become more and wider as values are seen."""

    def __init__(self, inferred: InferredColumns) -> None:
        self.inferred = inferred

    @property
    def columns(self) -> DeclaredColumns:
        """The columns seen so far."""
        return self.inferred.columns()

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the columns of JSON objects, those of earlier batches among them."""
        del headers
        documents: list[dict[str, Any] | str | None] = []
        for value in values.to_pylist():
            try:
                document = None if value is None else parse_document(value)
            except BadValue as error:
                documents.append(str(error))
                continue
            documents.append(document)
            if document is not None:
                self.inferred.observe(document)
        # Only now: a value further on may have widened a column.
        columns = self.columns
        nulls = [None] * len(columns)
        rows: list[list[Any]] = []
        errors: list[str | None] = []
        for fields in documents:
            row, error_text = nulls, fields if isinstance(fields, str) else None
            if isinstance(fields, dict):
                try:
                    row = read_fields(fields, columns)
                except BadValue as error:
                    error_text = str(error)
            rows.append(row)
            errors.append(error_text)
        parts = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        arrays = [make_array(part, field_type) for part, (_, field_type) in zip(parts, columns, strict=True)]
        return ColumnArrays(arrays, errors if any(errors) else None)


class CsvReader:
    """Reads lines of CSV, one value per column."""

    def __init__(self, columns: DeclaredColumns, parse_time: TimeParser = parse_iso) -> None:
        self.columns = columns
        self._parse_time = parse_time

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the columns of CSV lines."""
        del headers
        return _read_rows(values, self.columns, self._read_row)

    def _read_row(self, value: bytes) -> list[Any]:
        try:
            fields = split_fields(value.decode())
        except UnicodeDecodeError as error:
            raise BadValue(f"the value is no text: {error}") from None
        if len(fields) != len(self.columns):
            raise BadValue(f"the value has {len(fields)} fields of CSV, not {len(self.columns)}")
        row = []
        for field, (name, field_type) in zip(fields, self.columns, strict=True):
            try:
                row.append(None if field is None else self._convert(field, field_type))
            except BadValue as error:
                raise BadValue(f"{name}: {error}") from None
        return row

    def _convert(self, field: str, field_type: FieldType) -> Any:
        if field_type.name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            return self._parse_time(field, field_type.name == "TIMESTAMP")
        return from_text(field, field_type)


class TextReader:
    """Reads values that are one column: text of a type (`string`), or bytes (`raw`)."""

    def __init__(self, columns: DeclaredColumns) -> None:
        self.columns = columns

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the column."""
        del headers
        ((_, field_type),) = self.columns
        if field_type.name == "BINARY":
            return ColumnArrays([values])
        parsed = parse_texts(decode_text(values), field_type)
        if parsed.null_count == values.null_count:
            return ColumnArrays([parsed])
        wrong = pc.and_(pc.is_null(parsed), pc.is_valid(values)).to_pylist()
        return ColumnArrays([parsed], [f"the value is no {field_type}" if bad else None for bad in wrong])


class RegistryReader:
    """Reads values whose schemas are in a registry; fields are cast to the declared types."""

    def __init__(
        self,
        columns: DeclaredColumns,
        decode: Callable[[pa.Array, pa.Array | None], pa.Array],
        *,
        base64_bytes: bool = False,
    ) -> None:
        self.columns = columns
        self._decode = decode
        self._base64_bytes = base64_bytes

    def read(self, values: pa.Array, headers: pa.Array | None) -> ColumnArrays:
        """Return the fields of records; RegistryError when the registry does not answer."""
        decoded = self._decode(values, headers)
        records, problems = decoded.field("record"), decoded.field("error")
        errors = problems.to_pylist() if problems.null_count < len(problems) else None
        arrays = []
        for (name, field_type), field in zip(self.columns, records.flatten(), strict=True):
            in_base64 = self._base64_bytes and field_type.name == "BINARY" and pa.types.is_string(field.type)
            column = parse_base64_texts(field) if in_base64 else convert_array(field, field_type)
            if column.null_count != field.null_count:
                errors = errors or [None] * len(values)
                for index in pc.indices_nonzero(pc.and_(pc.is_null(column), pc.is_valid(field))).to_pylist():
                    errors[index] = errors[index] or f"{name} is no {field_type}"
            arrays.append(column)
        return ColumnArrays(arrays, errors)
