"""JSON Schemas as Arrow types, and JSON values as Arrow takes them.

What a struct cannot hold (a choice of types, an object without named properties) becomes a column of JSON text.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import functools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.registry.schemas.json_schema.documents import JsonNode

_PRIMITIVES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_DEPTH_MAX = 40


def arrow_type(node: JsonNode, depth: int = 0) -> pa.DataType:
    """Return the type of a schema."""
    if depth > _DEPTH_MAX:
        raise ConfigError("the JSON Schema is recursive, which columns cannot be")
    node = _follow(node)
    schema = node.value
    kind = _type_name(schema)
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind == "object" and schema.get("properties"):
        return pa.struct(
            [(name, arrow_type(node.part(part), depth + 1)) for name, part in schema["properties"].items()]
        )
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return pa.map_(pa.string(), arrow_type(node.part(schema["additionalProperties"]), depth + 1))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(arrow_type(node.part(schema["items"]), depth + 1))
    choices = _choices(schema)
    # A choice of null and one type is a nullable column of that type.
    return arrow_type(node.part(choices[0]), depth + 1) if len(choices) == 1 else pa.string()


def _follow(node: JsonNode) -> JsonNode:
    """Return the schema that a $ref points to."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(node.value, dict) or "$ref" not in node.value:
            return node
        for address, target in node.references():
            if target is None:
                raise ConfigError(f"the JSON Schema refers to {address}, which is not among its references")
            node = target
            break
    raise ConfigError("a $ref of the JSON Schema refers to itself")


def _choices(schema: Any) -> list[Any]:
    branches = (schema.get("oneOf") or schema.get("anyOf") or ()) if isinstance(schema, dict) else ()
    return [choice for choice in branches if _type_name(choice) != "null"]


def prune(value: Any, node: JsonNode) -> Any:
    """Return a value of a column without the nulls that stand for absent properties."""
    node = _follow(node)
    schema = node.value
    if not isinstance(schema, dict):
        return value
    choices = _choices(schema)
    if len(choices) == 1:
        return prune(value, node.part(choices[0]))
    if isinstance(value, dict):
        inner, required = schema.get("properties") or {}, schema.get("required") or ()
        return {
            name: prune(item, node.part(inner.get(name, True)))
            for name, item in value.items()
            if item is not None or name in required
        }
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(item, node.part(schema["items"])) for item in value]
    return value


def _type_name(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    kind = node.get("type")
    if isinstance(kind, list):
        names = [name for name in kind if name != "null"]
        return names[0] if len(names) == 1 else None
    if kind is None and "properties" in node:
        return "object"
    if kind is None and node.get("enum") and all(isinstance(value, str) for value in node["enum"]):
        return "string"
    return kind if isinstance(kind, str) else None


Convert = Callable[[Any], Any]


def column_converter(arrow: pa.DataType) -> Convert | None:
    """Return a function that makes of a JSON value what its column's type takes; None if it takes all as they are."""
    if pa.types.is_struct(arrow):
        return functools.partial(_convert_object, [(field.name, column_converter(field.type)) for field in arrow])
    if pa.types.is_map(arrow):
        return functools.partial(_convert_map, column_converter(arrow.item_type))
    if pa.types.is_list(arrow):
        return functools.partial(_convert_list, column_converter(arrow.value_type))
    if pa.types.is_string(arrow):
        return _to_text
    return _to_integer if pa.types.is_integer(arrow) else None


def _convert_object(parts: list[tuple[str, Convert | None]], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    columns = {}
    for name, convert in parts:
        item = value.get(name)
        columns[name] = item if item is None or convert is None else convert(item)
    return columns


def _convert_map(convert: Convert | None, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # Arrow takes a map as a list of pairs.
    return [(name, item if item is None or convert is None else convert(item)) for name, item in value.items()]


def _convert_list(convert: Convert | None, value: Any) -> Any:
    if convert is None or not isinstance(value, list):
        return value
    return [None if item is None else convert(item) for item in value]


def _to_text(value: Any) -> Any:
    return value if type(value) is str else json.dumps(value, separators=(",", ":"))


def _to_integer(value: Any) -> Any:
    # 1.0 is an integer in JSON Schema.
    return int(value) if type(value) is float and value.is_integer() else value


def encode_scalar(value: Any) -> Any:
    """Return the JSON of a scalar that JSON does not have."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}")
