"""Avro: schemas as Arrow types, values by fastavro; records of an old schema are resolved to the reader's schema."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import io
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import BadRecord, SchemaFrame
from klamm.pipeline.registry.client import Schema

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
# The most digits of decimal128, and of Spark's DECIMAL.
_DIGITS_MAX = 38


class AvroCodec:
    """A compiled schema. A union of several types becomes a struct with one member set, as in Spark's from_avro."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        named: dict[str, Any] = {}
        try:
            # fastavro adds the types of every schema to `named`; references come innermost first.
            for reference in references.values():
                fastavro.parse_schema(json.loads(reference.text), named)
            self.parsed: Any = fastavro.parse_schema(json.loads(schema.text), named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise BadRecord(f"schema {schema.id} is not an Avro schema: {error}") from None
        self.named_types = named
        self._arrow: pa.DataType | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        if self._arrow is None:
            self._arrow = _arrow(self.parsed, self.named_types, ())
        return self._arrow

    def decoder(self, reader: AvroCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records of this schema into values of the reader's schema."""
        # Without a reader's schema fastavro skips the resolution of fields.
        reader_schema = None if reader.parsed == self.parsed else reader.parsed
        reshape = _reshaper(reader.parsed, reader.named_types)

        def decode(frame: SchemaFrame) -> Any:
            source = io.BytesIO(frame.payload)
            try:
                value = fastavro.schemaless_reader(source, self.parsed, reader_schema)
            except Exception as error:  # noqa: BLE001 - fastavro raises any exception for damaged bytes
                raise BadRecord(
                    f"not a value of Avro schema {self.schema.id}: {error or type(error).__name__}"
                ) from None
            # Left-over bytes mean that the record was not written with this schema, even if it decodes.
            if source.tell() != len(frame.payload):
                raise BadRecord(f"{len(frame.payload) - source.tell()} bytes are left after the value")
            return value if reshape is None else reshape(value)

        return decode

    def encode(self, value: Any) -> bytes:
        """Encode a value."""
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self.parsed, value)
        except Exception as error:  # noqa: BLE001
            raise BadRecord(f"does not fit Avro schema {self.schema.id}: {error or type(error).__name__}") from None
        return out.getvalue()

    @property
    def path(self) -> None:
        """None: unlike a Protobuf file, a schema has one type."""
        return


def _arrow(node: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(node, list):
        branches = [branch for branch in node if branch != "null"]
        if len(branches) == 1:
            return _arrow(branches[0], named, inside)
        # The names of Spark's from_avro, so that queries need no change.
        return pa.struct([(f"member{n}", _arrow(branch, named, inside)) for n, branch in enumerate(branches)])
    if isinstance(node, str):
        return _PRIMITIVES[node] if node in _PRIMITIVES else _arrow(named[node], named, inside)
    kind = node["type"]
    if kind in ("record", "error"):
        name = node["name"]
        if name in inside:
            raise ConfigError(f"Avro record {name} is recursive, which columns cannot be")
        return pa.struct([(field["name"], _arrow(field["type"], named, (*inside, name))) for field in node["fields"]])
    if kind == "array":
        return pa.list_(_arrow(node["items"], named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(node["values"], named, inside))
    logical = node.get("logicalType")
    if logical == "decimal" and node["precision"] <= _DIGITS_MAX:
        return pa.decimal128(node["precision"], node.get("scale", 0))
    return _LOGICAL.get(logical) or (_PRIMITIVES[kind] if kind in _PRIMITIVES else _arrow(kind, named, inside))


def _reshaper(node: Any, named: Mapping[str, Any], depth: int = 0) -> Callable[[Any], Any] | None:
    """Return a function that turns fastavro's values into Arrow's; None where they are the same."""
    # Named types refer to each other by name, so a recursive schema would never end.
    if depth > 100:
        raise ConfigError("the Avro schema is recursive, which columns cannot be")
    if isinstance(node, str):
        return None if node in _PRIMITIVES else _reshaper(named[node], named, depth + 1)
    if isinstance(node, list):
        return _union_reshaper(node, named, depth)
    kind = node["type"]
    if kind in ("record", "error"):
        parts = {field["name"]: _reshaper(field["type"], named, depth + 1) for field in node["fields"]}
        reshaped = {name: part for name, part in parts.items() if part is not None}
        return functools.partial(_reshape_record, reshaped) if reshaped else None
    if kind in ("array", "map"):
        inner = _reshaper(node["items" if kind == "array" else "values"], named, depth + 1)
        if kind == "map":
            return functools.partial(_reshape_map, inner)
        return None if inner is None else functools.partial(_reshape_array, inner)
    logical = node.get("logicalType")
    if logical == "uuid":
        return str
    # fastavro makes datetime.time; the column is Avro's integer, as Spark 4.0 has no TIME.
    if logical in ("time-millis", "time-micros"):
        return functools.partial(_reshape_time, 1000 if logical == "time-millis" else 1)
    return None


def _reshape_record(reshaped: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    return {**value, **{name: reshape(value[name]) for name, reshape in reshaped.items()}}


def _reshape_map(inner: Callable[[Any], Any] | None, value: Any) -> Any:
    # Arrow takes a map as a list of pairs.
    return [(key, inner(item) if inner else item) for key, item in value.items()]


def _reshape_array(inner: Callable[[Any], Any], value: Any) -> Any:
    return [inner(item) for item in value]


def _reshape_nullable(inner: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else inner(value)


def _reshape_time(unit_us: int, value: Any) -> int:
    return _micros(value) // unit_us


def _union_reshaper(node: list[Any], named: Mapping[str, Any], depth: int) -> Callable[[Any], Any] | None:
    branches = [branch for branch in node if branch != "null"]
    shapes = [_reshaper(branch, named, depth + 1) for branch in branches]
    if len(branches) == 1:
        (inner,) = shapes
        return None if inner is None else functools.partial(_reshape_nullable, inner)
    tests = [_branch_test(branch, named) for branch in branches]

    def reshape(value: Any) -> Any:
        if value is None:
            return None
        # int and long, or records of equal fields, cannot be distinguished by value: the first branch counts.
        index = next((n for n, fits in enumerate(tests) if fits(value)), 0)
        inner = shapes[index]
        return {f"member{index}": value if inner is None else inner(value)}

    return reshape


def _branch_test(node: Any, named: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Return a test whether a value is of this branch of a union; records are recognized by their field names."""
    if isinstance(node, str) and node not in _PRIMITIVES:
        return _branch_test(named[node], named)
    kind = node if isinstance(node, str) else node["type"]
    logical = None if isinstance(node, str) else node.get("logicalType")
    if kind in ("record", "error"):
        names = {field["name"] for field in node["fields"]}
        return functools.partial(_is_record_of, names)
    return functools.partial(_is_exactly, _LOGICAL_CLASSES.get(logical or "") or _KIND_CLASSES.get(kind, object))


def _is_record_of(names: set[str], value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == names


def _is_exactly(expected: type, value: Any) -> bool:
    # Not isinstance: True is an int, and a datetime a date.
    return type(value) is expected


_LOGICAL_CLASSES = {
    "date": dt.date,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "time-millis": dt.time,
    "time-micros": dt.time,
    **dict.fromkeys((name for name in _LOGICAL if "timestamp" in name), dt.datetime),
}
_KIND_CLASSES = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
}


def _micros(value: Any) -> int:
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return int(value)
