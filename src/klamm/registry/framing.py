"""The framing of schema registries: how a record names the schema it was written with. Pure.

In front of the payload: the byte 0, then the schema's id in four bytes. In a header, `__key_schema_id` or
`__value_schema_id`: the byte 1, then the sixteen bytes of the schema's GUID; the payload has no prefix then. Protobuf
adds the path of the message in its file, as indexes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KlammError

BY_ID: Final = 0
BY_GUID: Final = 1
HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_PREFIX = struct.Struct(">BI")
# Bounds the work for a count that a damaged record declares.
_DEPTH_MAX = 64


class BadRecord(KlammError):
    """Raised for a record that cannot be decoded, or a value that cannot be encoded, with its schema."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class SchemaFrame(NamedTuple):
    """A record's schema and payload; `indexes` are the bytes of the message path when they are in a header."""

    schema: int | uuid.UUID
    payload: bytes
    indexes: bytes | None = None


def unframe(data: bytes, header: bytes | None = None) -> SchemaFrame:
    """Split a record into schema and payload; a header wins over the prefix."""
    if header is not None:
        # Confluent's serializers write the GUID; an id in the header is allowed as well.
        if header[:1] == bytes([BY_GUID]) and len(header) >= 17:
            return SchemaFrame(uuid.UUID(bytes=bytes(header[1:17])), data, header[17:])
        if header[:1] == bytes([BY_ID]) and len(header) >= _PREFIX.size:
            return SchemaFrame(_PREFIX.unpack_from(header)[1], data, header[_PREFIX.size :])
        raise BadRecord(f"the schema header is {header[:17].hex() or 'empty'}, which names no schema")
    if len(data) < _PREFIX.size:
        raise BadRecord(f"{len(data)} bytes are too few to name a schema")
    magic, number = _PREFIX.unpack_from(data)
    if magic != BY_ID:
        raise BadRecord(f"the first byte is {magic}, not {BY_ID}: no schema is named")
    return SchemaFrame(number, data[_PREFIX.size :])


def prefix(number: int) -> bytes:
    """Return the prefix of a record of this schema."""
    return _PREFIX.pack(BY_ID, number)


def header(guid: uuid.UUID, path: Sequence[int] | None = None) -> bytes:
    """Return the value of the schema header of a record of this schema."""
    return bytes([BY_GUID]) + guid.bytes + (b"" if path is None else write_path(path))


def read_path(frame: SchemaFrame) -> tuple[tuple[int, ...], bytes]:
    """Return the path of a Protobuf message in its file, and the message's bytes."""
    source = frame.payload if frame.indexes is None else frame.indexes
    path, at = _path(source)
    return path, source[at:] if frame.indexes is None else frame.payload


def _path(data: bytes) -> tuple[tuple[int, ...], int]:
    count, at = _varint(data, 0)
    if count == 0:  # the first message of a file, the usual case, is written as a single 0
        return (0,), at
    if not 0 < count <= _DEPTH_MAX:
        raise BadRecord(f"the message path has {count} indexes, at most {_DEPTH_MAX} are allowed")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), at


def write_path(path: Sequence[int]) -> bytes:
    """Encode a path as `read_path` reads it."""
    if tuple(path) == (0,):
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(path), *path))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    # Zigzag varints as in Avro, at most five bytes for 32 bits.
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise BadRecord("the message path is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise BadRecord("the message path is a varint of more than five bytes")


def _zigzag(value: int) -> bytes:
    left = value << 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
