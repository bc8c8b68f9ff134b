"""Avro: schemas as types of Arrow, values by fastavro; what an old schema wrote is read as the new one says."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import BadRecord, Frame
from klamm.pipeline.registry.client import Schema

_PLAIN = {
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
_DIGITS_MAX = 38


class AvroCodec:
    """One schema. Unions of several types become a struct with one member set, as Spark's own functions do."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema]) -> None:
        self.schema = schema
        named: dict[str, Any] = {}
        try:
            for reference in references.values():
                fastavro.parse_schema(json.loads(reference.text), named)
            self.parsed: Any = fastavro.parse_schema(json.loads(schema.text), named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise BadRecord(f"schema {schema.id} is no Avro schema: {error}") from None
        self._named = named
        self._arrow: pa.DataType | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The type of its values."""
        if self._arrow is None:
            self._arrow = _arrow(self.parsed, self._named, ())
        return self._arrow

    def decoder(self, reader: AvroCodec) -> Callable[[Frame], Any]:
        """From what this schema wrote to what `reader` says."""
        other = None if reader.parsed == self.parsed else reader.parsed
        shape = _shape(reader.parsed, reader._named)

        def decode(frame: Frame) -> Any:
            source = io.BytesIO(frame.payload)
            try:
                found = fastavro.schemaless_reader(source, self.parsed, other)
            except Exception as error:  # noqa: BLE001 - damaged bytes make fastavro raise whatever they meet
                raise BadRecord(
                    f"not what Avro schema {self.schema.id} says: {error or type(error).__name__}"
                ) from None
            if source.tell() != len(frame.payload):
                raise BadRecord(f"{len(frame.payload) - source.tell()} bytes are left after the value")
            return found if shape is None else shape(found)

        return decode

    def encode(self, value: Any) -> bytes:
        """A value as bytes."""
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self.parsed, value)
        except Exception as error:  # noqa: BLE001
            raise BadRecord(f"does not fit Avro schema {self.schema.id}: {error or type(error).__name__}") from None
        return out.getvalue()

    @property
    def path(self) -> None:
        """A schema is a single type."""
        return


def _arrow(node: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(node, list):
        others = [each for each in node if each != "null"]
        if len(others) == 1:
            return _arrow(others[0], named, inside)
        return pa.struct([(f"member{n}", _arrow(each, named, inside)) for n, each in enumerate(others)])
    if isinstance(node, str):
        return _PLAIN[node] if node in _PLAIN else _arrow(named[node], named, inside)
    kind = node["type"]
    if kind in ("record", "error"):
        name = node["name"]
        if name in inside:
            raise ConfigError(f"Avro record {name} contains itself, and columns cannot")
        return pa.struct([(field["name"], _arrow(field["type"], named, (*inside, name))) for field in node["fields"]])
    if kind == "array":
        return pa.list_(_arrow(node["items"], named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(node["values"], named, inside))
    logical = node.get("logicalType")
    if logical == "decimal" and node["precision"] <= _DIGITS_MAX:
        return pa.decimal128(node["precision"], node.get("scale", 0))
    return _LOGICAL.get(logical) or (_PLAIN[kind] if kind in _PLAIN else _arrow(kind, named, inside))


def _shape(node: Any, named: Mapping[str, Any], depth: int = 0) -> Callable[[Any], Any] | None:
    """What turns fastavro's values into Arrow's, None where they are the same."""
    if depth > 100:
        raise ConfigError("an Avro schema that contains itself, and columns cannot")
    if isinstance(node, str):
        return None if node in _PLAIN else _shape(named[node], named, depth + 1)
    if isinstance(node, list):
        return _shape_union(node, named, depth)
    kind = node["type"]
    if kind in ("record", "error"):
        parts = {field["name"]: _shape(field["type"], named, depth + 1) for field in node["fields"]}
        work = {name: each for name, each in parts.items() if each is not None}
        if not work:
            return None
        return lambda value: {**value, **{name: each(value[name]) for name, each in work.items()}}
    if kind in ("array", "map"):
        inner = _shape(node["items" if kind == "array" else "values"], named, depth + 1)
        if kind == "map":
            return lambda value: [(key, inner(each) if inner else each) for key, each in value.items()]
        return None if inner is None else lambda value: [inner(each) for each in value]
    logical = node.get("logicalType")
    if logical == "uuid":
        return str
    if logical in ("time-millis", "time-micros"):
        unit = 1000 if logical == "time-millis" else 1
        return lambda value: _micros(value) // unit
    return None


def _shape_union(node: list[Any], named: Mapping[str, Any], depth: int) -> Callable[[Any], Any] | None:
    others = [each for each in node if each != "null"]
    shapes = [_shape(other, named, depth + 1) for other in others]
    if len(others) == 1:
        (inner,) = shapes
        return None if inner is None else lambda value: None if value is None else inner(value)
    tests = [_test(other, named) for other in others]

    def shape(value: Any) -> Any:
        if value is None:
            return None
        at = next((n for n, fits in enumerate(tests) if fits(value)), 0)
        inner = shapes[at]
        return {f"member{at}": value if inner is None else inner(value)}

    return shape


def _test(node: Any, named: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Whether a value came from this branch of a union; records tell by the names of their fields."""
    if isinstance(node, str) and node not in _PLAIN:
        return _test(named[node], named)
    kind = node if isinstance(node, str) else node["type"]
    logical = None if isinstance(node, str) else node.get("logicalType")
    if kind in ("record", "error"):
        names = {field["name"] for field in node["fields"]}
        return lambda value: isinstance(value, dict) and value.keys() == names
    wanted = _OF_LOGICAL.get(logical or "") or _OF_KIND.get(kind, object)
    return lambda value: type(value) is wanted


_OF_LOGICAL = {
    "date": dt.date,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "time-millis": dt.time,
    "time-micros": dt.time,
    **dict.fromkeys((name for name in _LOGICAL if "timestamp" in name), dt.datetime),
}
_OF_KIND = {
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
