"""Derives a schema from columns, for the registry, when a statement writes rows without naming a schema. Pure.

Every field is nullable with the default null, so that columns can be added and dropped later. Names stay as they are; a
name that a kind of schema does not allow is an error.
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
    """Return the schema of an Arrow type; `numbers` are the field numbers of an existing Protobuf message."""
    if kind == "AVRO":
        return json.dumps(_avro(arrow, record_name(name), name))
    if kind == "JSON":
        schema = _json(arrow, name)
        return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": record_name(name), **schema})
    return _protobuf(arrow, record_name(name), numbers or {})


def record_name(name: str) -> str:
    """Return a name with characters that Avro and Protobuf do not allow replaced."""
    replaced = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return replaced if _NAME.fullmatch(replaced) else f"_{replaced}"


def _check_field_name(name: str, kind: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"column {name} cannot be a field of {kind}: rename it, SELECT ... AS some_name")
    return name


def _type_error(arrow: pa.DataType, path: str, kind: str) -> ConfigError:
    return ConfigError(f"{path} is {arrow}, which {kind} has no type for: cast it")


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow))


def _is_written_as_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(arrow) or pa.types.is_date(arrow))


# The first match counts: int64 is a signed integer as well, and Avro's int has 32 bits.
_AVRO: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_signed_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (_is_text, "string"),
    (_is_bytes, "bytes"),
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
                "name": _check_field_name(field.name, "Avro"),
                # Null comes first: an Avro default has to be of the union's first type.
                "type": ["null", _avro(field.type, f"{name}_{field.name}", f"{path}.{field.name}")],
                "default": None,
            }
            for field in arrow
        ]
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return {"type": "array", "items": _nullable_item(arrow.value_field, name, path)}
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        return {"type": "map", "values": _nullable_item(arrow.item_field, name, path)}
    raise _type_error(arrow, path, "Avro")


def _nullable_item(field: pa.Field, name: str, path: str) -> Any:
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
        # A date-time of RFC 3339 has an offset from UTC; a timestamp without a zone has none.
        return {"type": "string", "format": "date-time"} if arrow.tz else {"type": "string"}
    if pa.types.is_struct(arrow):
        parts = {field.name: _make_nullable(_json(field.type, f"{path}.{field.name}")) for field in arrow}
        return {"type": "object", "properties": parts}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return {"type": "array", "items": _make_nullable(_json(arrow.value_type, f"{path}.item"))}
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        return {"type": "object", "additionalProperties": _make_nullable(_json(arrow.item_type, f"{path}.item"))}
    raise _type_error(arrow, path, "JSON Schema")


def _make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


_PROTOBUF: Final = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_int64, "int64"),
    (pa.types.is_signed_integer, "int32"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (_is_text, "string"),
    (_is_bytes, "bytes"),
    (_is_written_as_text, "string"),
    (pa.types.is_timestamp, "google.protobuf.Timestamp"),
)


def _protobuf(arrow: pa.DataType, name: str, numbers: Mapping[str, int]) -> str:
    if not pa.types.is_struct(arrow):
        raise ConfigError("a Protobuf value is a message: write several columns, or another format")
    lines = _message(arrow, name, numbers, "")
    head = ['syntax = "proto3";']
    if any("google.protobuf.Timestamp" in line for line in lines):
        head.append('import "google/protobuf/timestamp.proto";')
    return "\n".join([*head, *lines]) + "\n"


def _message(arrow: pa.DataType, name: str, numbers: Mapping[str, int], pad: str) -> list[str]:
    """Return the lines of a message; fields that have a number keep it, and no number is used twice."""
    lines = [f"{pad}message {name} {{"]
    taken = max(numbers.values(), default=0)
    for field in arrow:
        column, kind = _check_field_name(field.name, "Protobuf"), field.type
        number = numbers.get(column)
        if number is None:
            # 19000 to 19999 are reserved by Protobuf.
            taken = number = taken + 1 if taken + 1 not in range(19000, 20000) else 20000
        label = ""
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            label, kind = "repeated ", kind.value_type
        elif pa.types.is_map(kind):
            inner, more = _protobuf_type(kind.item_type, f"{column}_value", pad, field.name)
            key, _ = _protobuf_type(kind.key_type, "", pad, field.name)
            # A map field takes neither `optional` nor `repeated`.
            lines += [*more, f"{pad}  map<{key}, {inner}> {column} = {number};"]
            continue
        elif not pa.types.is_struct(kind):
            # Gives a scalar presence, so that null is not the same as 0; messages have presence anyway.
            label = "optional "
        plain, more = _protobuf_type(kind, f"{column}_type", pad, field.name)
        lines += [*more, f"{pad}  {label}{plain} {column} = {number};"]
    return [*lines, f"{pad}}}"]


def _protobuf_type(arrow: pa.DataType, name: str, pad: str, path: str) -> tuple[str, list[str]]:
    for fits, plain in _PROTOBUF:
        if fits(arrow):
            return plain, []
    if pa.types.is_struct(arrow):
        own = record_name(name.title().replace("_", ""))
        # Fields of a nested message are numbered in their order: a field that is inserted or dropped in the middle
        # renumbers those after it.
        return own, _message(arrow, own, {}, f"{pad}  ")
    raise _type_error(arrow, path, "Protobuf")
