"""Avro schemas as Arrow types, and fastavro's values as Arrow takes them."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError

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


def arrow_type(node: Any, named: Mapping[str, Any], inside: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a schema; a union of several types is a struct with one member set, as in from_avro."""
    if isinstance(node, list):
        branches = [branch for branch in node if branch != "null"]
        if len(branches) == 1:
            return arrow_type(branches[0], named, inside)
        # The names of Spark's from_avro, so that queries need no change.
        return pa.struct([(f"member{n}", arrow_type(branch, named, inside)) for n, branch in enumerate(branches)])
    if isinstance(node, str):
        return _PRIMITIVES[node] if node in _PRIMITIVES else arrow_type(named[node], named, inside)
    kind = node["type"]
    if kind in ("record", "error"):
        name = node["name"]
        if name in inside:
            raise ConfigError(f"Avro record {name} is recursive, which columns cannot be")
        return pa.struct(
            [(field["name"], arrow_type(field["type"], named, (*inside, name))) for field in node["fields"]]
        )
    if kind == "array":
        return pa.list_(arrow_type(node["items"], named, inside))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(node["values"], named, inside))
    logical = node.get("logicalType")
    if logical == "decimal" and node["precision"] <= _DIGITS_MAX:
        return pa.decimal128(node["precision"], node.get("scale", 0))
    return _LOGICAL.get(logical) or (_PRIMITIVES[kind] if kind in _PRIMITIVES else arrow_type(kind, named, inside))


def reshaper(node: Any, named: Mapping[str, Any], depth: int = 0) -> Callable[[Any], Any] | None:
    """Return a function that turns fastavro's values into Arrow's; None where they are the same."""
    # Named types refer to each other by name, so a recursive schema would never end.
    if depth > 100:
        raise ConfigError("the Avro schema is recursive, which columns cannot be")
    if isinstance(node, str):
        return None if node in _PRIMITIVES else reshaper(named[node], named, depth + 1)
    if isinstance(node, list):
        return _union_reshaper(node, named, depth)
    kind = node["type"]
    if kind in ("record", "error"):
        parts = {field["name"]: reshaper(field["type"], named, depth + 1) for field in node["fields"]}
        reshaped = {name: part for name, part in parts.items() if part is not None}
        return functools.partial(_reshape_record, reshaped) if reshaped else None
    if kind in ("array", "map"):
        inner = reshaper(node["items" if kind == "array" else "values"], named, depth + 1)
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
    shapes = [reshaper(branch, named, depth + 1) for branch in branches]
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
