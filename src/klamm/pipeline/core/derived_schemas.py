"""Schemas made of columns: what is registered when rows are written and nobody wrote a schema for them. Pure.

Every column of a record may be null and is null where it is missing, so that columns can be added and dropped later.
Names are kept as they are; one that a kind of schema cannot have is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def derive_schema(kind: str, name: str, arrow: pa.DataType, numbers: Mapping[str, int] | None = None) -> str:
    """The schema of values of a type; `numbers` are those that fields of a Protobuf message have already."""
    if kind == "AVRO":
        return json.dumps(_avro(arrow, record_name(name), name))
    if kind == "JSON":
        found = _json(arrow, name)
        return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": record_name(name), **found})
    return _protobuf(arrow, record_name(name), numbers or {})


def record_name(name: str) -> str:
    """A name as a record may have it."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return found if _NAME.fullmatch(found) else f"_{found}"


def _named(name: str, kind: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"column {name} cannot be a field of {kind}: rename it, SELECT ... AS some_name")
    return name


def _refused(arrow: pa.DataType, path: str, kind: str) -> ConfigError:
    return ConfigError(f"{path} is {arrow}, which {kind} has no type for: cast it")


_AVRO: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_signed_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda arrow: pa.types.is_string(arrow) or pa.types.is_large_string(arrow), "string"),
    (lambda arrow: pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow), "bytes"),
)


def _avro(arrow: pa.DataType, name: str, path: str) -> Any:
    for fits, plain in _AVRO:
        if fits(arrow):
            return plain
    if pa.types.is_decimal(arrow):
        return {"type": "bytes", "logicalType": "decimal", "precision": arrow.precision, "scale": arrow.scale}
    if pa.types.is_date(arrow):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(arrow):
        return {"type": "long", "logicalType": "timestamp-micros" if arrow.tz else "local-timestamp-micros"}
    if pa.types.is_struct(arrow):
        fields = [
            {
                "name": _named(each.name, "Avro"),
                "type": ["null", _avro(each.type, f"{name}_{each.name}", f"{path}.{each.name}")],
                "default": None,
            }
            for each in arrow
        ]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return {"type": "array", "items": _or_null(arrow.value_field, name, path)}
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        return {"type": "map", "values": _or_null(arrow.item_field, name, path)}
    raise _refused(arrow, path, "Avro")


def _or_null(field: pa.Field, name: str, path: str) -> Any:
    inner = _avro(field.type, f"{name}_item", f"{path}.item")
    return ["null", inner] if field.nullable else inner


def _json(arrow: pa.DataType, path: str) -> dict[str, Any]:
    if pa.types.is_boolean(arrow):
        return {"type": "boolean"}
    if pa.types.is_integer(arrow):
        return {"type": "integer"}
    if pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        return {"type": "number"}
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return {"type": "string"}
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
        return {"type": "string", "contentEncoding": "base64"}
    if pa.types.is_date(arrow):
        return {"type": "string", "format": "date"}
    if pa.types.is_timestamp(arrow):
        return {"type": "string", "format": "date-time"} if arrow.tz else {"type": "string"}
    if pa.types.is_struct(arrow):
        parts = {each.name: _null(_json(each.type, f"{path}.{each.name}")) for each in arrow}
        return {"type": "object", "properties": parts}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return {"type": "array", "items": _null(_json(arrow.value_type, f"{path}.item"))}
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        return {"type": "object", "additionalProperties": _null(_json(arrow.item_type, f"{path}.item"))}
    raise _refused(arrow, path, "JSON Schema")


def _null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


_PROTOBUF: Final = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_int64, "int64"),
    (pa.types.is_signed_integer, "int32"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda arrow: pa.types.is_string(arrow) or pa.types.is_large_string(arrow), "string"),
    (lambda arrow: pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow), "bytes"),
    (lambda arrow: pa.types.is_decimal(arrow) or pa.types.is_date(arrow), "string"),
    (pa.types.is_timestamp, "google.protobuf.Timestamp"),
)


def _protobuf(arrow: pa.DataType, name: str, numbers: Mapping[str, int]) -> str:
    if not pa.types.is_struct(arrow):
        raise ConfigError("Protobuf has no values but messages")
    lines = _message(arrow, name, numbers, "")
    head = ['syntax = "proto3";']
    if any("google.protobuf.Timestamp" in line for line in lines):
        head.append('import "google/protobuf/timestamp.proto";')
    return "\n".join([*head, *lines]) + "\n"


def _message(arrow: pa.DataType, name: str, numbers: Mapping[str, int], pad: str) -> list[str]:
    """A message; fields that have a number keep it, and none is given away twice."""
    lines = [f"{pad}message {name} {{"]
    taken = max(numbers.values(), default=0)
    for field in arrow:
        each, kind = _named(field.name, "Protobuf"), field.type
        number = numbers.get(each)
        if number is None:
            taken = number = taken + 1 if taken + 1 not in range(19000, 20000) else 20000
        label = ""
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            label, kind = "repeated ", kind.value_type
        elif pa.types.is_map(kind):
            inner, more = _protobuf_type(kind.item_type, f"{each}_value", pad, field.name)
            key, _ = _protobuf_type(kind.key_type, "", pad, field.name)
            lines += [*more, f"{pad}  map<{key}, {inner}> {each} = {number};"]
            continue
        elif not pa.types.is_struct(kind):
            label = "optional "
        plain, more = _protobuf_type(kind, f"{each}_type", pad, field.name)
        lines += [*more, f"{pad}  {label}{plain} {each} = {number};"]
    return [*lines, f"{pad}}}"]


def _protobuf_type(arrow: pa.DataType, name: str, pad: str, path: str) -> tuple[str, list[str]]:
    for fits, plain in _PROTOBUF:
        if fits(arrow):
            return plain, []
    if pa.types.is_struct(arrow):
        own = record_name(name.title().replace("_", ""))
        return own, _message(arrow, own, {}, f"{pad}  ")
    raise _refused(arrow, path, "Protobuf")
