"""Records of internal topics as plain values: keys and values decoded by their message declarations.

Bytes that are text become text; others become `hex:...`. Uuids print as Kafka prints them.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from klamm.model.errors import CorruptBatch, RemoteProtocolError
from klamm.model.ids import uuid_to_str
from klamm.protocol.codec import decode
from klamm.protocol.messages import control_records as quorum_records
from klamm.protocol.messages.group_records import KEY_TYPES, VALUE_TYPES
from klamm.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from klamm.protocol.schema import Array, declaration, uuid
from klamm.records.batch import DecodedRecord
from klamm.records.control import ControlType, parse_control_key

Decoded = dict[str, Any]
FieldsDecoder = Callable[[bytes | None, bytes | None], Decoded]
"""From a record's key and value to plain values."""

_INT16 = Struct(">h")
CONTROL_VALUES: dict[int, type[Any]] = {
    declaration(cls).api_key: cls
    for cls in (
        quorum_records.LeaderChangeMessage,
        quorum_records.SnapshotHeaderRecord,
        quorum_records.SnapshotFooterRecord,
        quorum_records.KRaftVersionRecord,
        quorum_records.VotersRecord,
    )
}
"""The values of raft's control records, by control type."""


def format_bytes(data: bytes | bytearray | memoryview | None) -> str | None:
    """Bytes as text where they are text, as `hex:` and their digits where not."""
    if data is None:
        return None
    raw = bytes(data)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"hex:{raw.hex()}"
    return text if all(c.isprintable() or c in "\n\t" for c in text) else f"hex:{raw.hex()}"


def plain(message: Any) -> Decoded:
    """A message as a dictionary of plain values."""
    return {f.name: _plain(getattr(message, f.name), f.type) for f in declaration(type(message)).fields}


def _plain(value: Any, type_: Any) -> Any:
    if value is None:
        return None
    if type_ is uuid:
        return uuid_to_str(value)
    if isinstance(type_, Array):
        return [_plain(element, type_.element) for element in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return format_bytes(value)
    if hasattr(type(value), "__wire__"):
        return plain(value)
    return value


def decode_plain(key: bytes | None, value: bytes | None) -> Decoded:
    """A record of an ordinary topic."""
    return {"key": format_bytes(key), "value": format_bytes(value)}


def decode_group(key: bytes | None, value: bytes | None) -> Decoded:
    """A record of `__consumer_offsets`."""
    return _decode_keyed(key, value, KEY_TYPES, VALUE_TYPES)


def decode_transaction(key: bytes | None, value: bytes | None) -> Decoded:
    """A record of `__transaction_state`."""
    return _decode_keyed(key, value, {0: TransactionLogKey}, {0: TransactionLogValue})


def decode_control(record: DecodedRecord) -> Decoded:
    """A control record of any log."""
    _, kind = parse_control_key(record.key)
    name = ControlType(kind).name if kind in list(ControlType) else str(kind)
    value = record.value or b""
    cls = CONTROL_VALUES.get(kind)
    if cls is None:
        fields = dict(zip(("version", "coordinator_epoch"), Struct(">hi").unpack_from(value), strict=True))
        return {"control": name, **fields} if len(value) >= 6 else {"control": name, "value": format_bytes(value)}
    # Of a newer version, the fields that the newest known one has are decoded.
    version = min(_INT16.unpack_from(value)[0], declaration(cls).versions[1])
    return {"control": name, **plain(decode(cls, version, value)[0])}


def decoder_of(topic: str, metadata: FieldsDecoder | None = None) -> FieldsDecoder:
    """How the records of a topic are read; `metadata` reads those of the quorum's log."""
    if topic == "__consumer_offsets":
        return decode_group
    if topic == "__transaction_state":
        return decode_transaction
    if topic == "__cluster_metadata" and metadata is not None:
        return metadata
    return decode_plain


def _decode_keyed(
    key: bytes | None, value: bytes | None, keys: dict[int, type[Any]], values: dict[int, type[Any]]
) -> Decoded:
    """A key that begins with its type and a value that begins with its version; what cannot be read stays bytes."""
    try:
        if key is None or len(key) < 2:
            raise RemoteProtocolError("no type")
        (kind,) = _INT16.unpack_from(key)
        if kind not in keys:
            raise RemoteProtocolError(f"unknown type {kind}")
        fields = {"type": keys[kind].__name__.removesuffix("Key"), "key": plain(decode(keys[kind], 0, key, 2)[0])}
        if value is None:
            return {**fields, "value": None}
        # Keys have one version for ever, since compaction compares their bytes; values carry theirs.
        (version,) = _INT16.unpack_from(value)
        return {**fields, "version": version, "value": plain(decode(values[kind], version, value, 2)[0])}
    except (RemoteProtocolError, CorruptBatch, LookupError, ValueError, ArithmeticError):
        return decode_plain(key, value)
