"""Encoding of metadata records: three unsigned varints (frame version, type id, record version), then the body."""

from typing import Any, get_args

from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.metadata_records import MetadataRecord
from klamm.protocol.schema import declaration
from klamm.protocol.varint import decode_uvarint, encode_uvarint

FRAME_VERSION = 1

RECORD_TYPES: dict[int, type[Any]] = {declaration(cls).api_key: cls for cls in get_args(MetadataRecord)}
"""Every record type by its id."""


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Encode `record`; by default in the newest version of metadata.version 30."""
    schema = declaration(type(record))
    if RECORD_TYPES.get(schema.api_key) is not type(record):
        raise LocalProtocolError(f"{schema.name} is not a metadata record")
    if version is None:
        # metadata.version 30 allows the newest version of every record.
        version = schema.versions[1]
    frame = encode_uvarint(FRAME_VERSION) + encode_uvarint(schema.api_key) + encode_uvarint(version)
    return frame + encode(record, version)


def decode_record(value: bytes | bytearray | memoryview) -> MetadataRecord:
    """Decode a record; RemoteProtocolError when Kafka 4.3 does not write such a record."""
    return decode_versioned_record(value)[0]


def decode_versioned_record(value: bytes | bytearray | memoryview) -> tuple[MetadataRecord, int]:
    """Decode a record, with the version it was written in."""
    try:
        frame_version, offset = decode_uvarint(value, 0)
        if frame_version != FRAME_VERSION:
            raise RemoteProtocolError(f"metadata record frame version {frame_version}, expected {FRAME_VERSION}")
        type_id, offset = decode_uvarint(value, offset)
        version, offset = decode_uvarint(value, offset)
    except IndexError as error:
        raise RemoteProtocolError("metadata record ends inside its frame") from error
    cls = RECORD_TYPES.get(type_id)
    if cls is None:
        raise RemoteProtocolError(f"metadata record type {type_id} is unknown")
    low, high = declaration(cls).versions
    if not low <= version <= high:
        raise RemoteProtocolError(f"{cls.__name__} v{version} is unknown, known are {low} to {high}")
    record, end = decode(cls, version, value, offset)
    # Unknown trailing bytes would be lost in a snapshot.
    if end != len(value):
        raise RemoteProtocolError(f"{cls.__name__} v{version} is followed by {len(value) - end} bytes too many")
    return record, version
