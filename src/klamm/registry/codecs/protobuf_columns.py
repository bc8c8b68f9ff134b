"""Protobuf messages as Arrow structs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from klamm.model.errors import ConfigError
from klamm.registry.codecs.protobuf import TIMESTAMP, is_map

_F = FieldDescriptor
_PRIMITIVES = {
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_INT64: pa.int64(),
    _F.TYPE_SINT64: pa.int64(),
    _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0),
    _F.TYPE_INT32: pa.int32(),
    _F.TYPE_SINT32: pa.int32(),
    _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_UINT32: pa.int64(),
    _F.TYPE_FIXED32: pa.int64(),
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
    _F.TYPE_ENUM: pa.string(),
}
_UNSIGNED_64 = (_F.TYPE_UINT64, _F.TYPE_FIXED64)


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_scalar_type(key, inside), _scalar_type(value, inside))
    single = _scalar_type(field, inside)
    return pa.list_(single) if field.is_repeated else single


def _scalar_type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _PRIMITIVES[field.type]
    if field.message_type.full_name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    return arrow_type(field.message_type, inside)


def arrow_type(message: Descriptor, inside: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a message."""
    if message.full_name in inside:
        raise ConfigError(f"Protobuf message {message.full_name} is recursive, which columns cannot be")
    return pa.struct([(field.name, _type(field, (*inside, message.full_name))) for field in message.fields])


def to_column(message: Message) -> Any:
    """Return a message as its column takes it; fields without a value are null."""
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        return message.seconds * 1_000_000 + message.nanos // 1000
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            key, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            values[field.name] = [(_scalar(name, key), _scalar(value[name], inner)) for name in value]
        elif field.is_repeated:
            values[field.name] = [_scalar(item, field) for item in value]
        # Fields of proto3 without `optional` have no presence: their default value is a value.
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _scalar(value, field)
    return values


def _scalar(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return to_column(value)
    if field.enum_type is not None:
        enum_value = field.enum_type.values_by_number.get(value)
        # An enum value of a newer schema: proto3 keeps its number.
        return str(value) if enum_value is None else enum_value.name
    # Spark has no unsigned 64-bit type.
    return Decimal(value) if field.type in _UNSIGNED_64 else value
