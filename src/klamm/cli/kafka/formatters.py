"""How kafka-console-consumer prints a record: Kafka's formatters, by the names of their classes. Pure.

A formatter makes of a record the bytes to write: a line, or nothing. The columns of the default one may be put through
Kafka's deserializers, which print what Java's `toString` makes of them.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.java_numbers import double_text, float_text
from klamm.cli.kafka.message_json import as_json, compact
from klamm.cli.kafka.options import Usage

if TYPE_CHECKING:
    from klamm.client.types import Record

Formatter = Callable[["Record"], bytes]
TextDeserializer = Callable[[bytes], str | bytes]
_FORMATTERS: Final = "org.apache.kafka.tools.consumer."
_SERIALIZATION: Final = "org.apache.kafka.common.serialization."


class Unprintable(Exception):
    """A record does not have the form that the formatter or a deserializer requires."""


# Deserializers


def _number(kind: str, form: str, text: Callable[[Any], str] = str) -> TextDeserializer:
    size = struct.calcsize(form)

    def show(data: bytes) -> str:
        if len(data) != size:
            raise Unprintable(f"Size of data received by {kind}Deserializer is not {size}")
        return text(struct.unpack(form, data)[0])

    return show


def _boolean(data: bytes) -> str:
    if len(data) != 1:
        raise Unprintable("Size of data received by BooleanDeserializer is not 1")
    if data not in (b"\0", b"\1"):
        raise Unprintable("Unexpected byte received by BooleanDeserializer: " + str(struct.unpack("b", data)[0]))
    return "true" if data == b"\1" else "false"


def _uuid(data: bytes) -> str:
    text = data.decode(errors="replace")
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise Unprintable(f"Error parsing data into UUID: Invalid UUID string: {text}") from None


def _escape(data: bytes) -> str:
    """What is printable as it is, the rest (and the backslash) by its number."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in data)


def _string(data: bytes) -> str:
    return data.decode(errors="replace")


def _byte_buffer(data: bytes) -> str:
    return f"java.nio.HeapByteBuffer[pos=0 lim={len(data)} cap={len(data)}]"


_DESERIALIZERS: Final[dict[str, TextDeserializer]] = {
    "String": _string,
    "Long": _number("Long", ">q"),
    "Integer": _number("Integer", ">i"),
    "Short": _number("Short", ">h"),
    "Double": _number("Double", ">d", double_text),
    "Float": _number("Float", ">f", float_text),
    "Boolean": _boolean,
    "UUID": _uuid,
    "Bytes": _escape,
    "ByteArray": bytes,
    "ByteBuffer": _byte_buffer,
}
"""By the class's name; Java prints the address of a byte array; here it is its bytes."""


def deserializer(name: str) -> TextDeserializer | None:
    """The deserializer of a class; None for one that is not known."""
    short = name.strip().removeprefix(_SERIALIZATION)
    return _DESERIALIZERS.get(short.removesuffix("Deserializer")) if short.endswith("Deserializer") else None


def unknown_deserializers(properties: Mapping[str, str]) -> list[str]:
    """Requested classes that do not exist here: Kafka prints an error for each, and the bytes as they are."""
    names = (properties.get(f"{part}.deserializer") for part in ("key", "value", "headers"))
    return [name for name in names if name is not None and deserializer(name) is None]


# Formatters


def default_formatter(properties: Mapping[str, str]) -> Formatter:
    """The requested columns in Kafka's order; without any, nothing at all."""

    def on(name: str, *, default: bool = False) -> bool:
        return properties.get(name, str(default)).strip().lower() == "true"

    separator = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    between = properties.get("headers.separator", ",").encode()
    null = properties.get("null.literal", "null").encode()
    with_time, with_partition, with_offset = on("print.timestamp"), on("print.partition"), on("print.offset")
    with_delivery, with_epoch, with_headers = on("print.delivery"), on("print.epoch"), on("print.headers")
    with_key, with_value = on("print.key"), on("print.value", default=True)
    of_key, of_value, of_headers = (
        deserializer(properties.get(f"{part}.deserializer", "")) for part in ("key", "value", "headers")
    )

    def format_field(data: bytes | None, by: TextDeserializer | None) -> bytes:
        # As in Kafka, null.literal goes through the deserializer too, which may fail on its length.
        raw = null if data is None else bytes(data)
        made = raw if by is None else by(raw)
        return made if isinstance(made, bytes) else made.encode()

    def line(record: Record) -> bytes:
        cells: list[bytes] = []
        if with_time:
            kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
            cells.append(f"{kind}:{record.timestamp}".encode() if record.timestamp >= 0 else b"NO_TIMESTAMP")
        if with_partition:
            cells.append(f"Partition:{record.partition}".encode())
        if with_offset:
            cells.append(f"Offset:{record.offset}".encode())
        if with_delivery:
            # Delivery counts belong to share consumers (KIP-932).
            cells.append(b"Delivery:NOT_PRESENT")
        if with_epoch:
            cells.append(f"Epoch:{record.leader_epoch if record.leader_epoch >= 0 else 'NOT_PRESENT'}".encode())
        if with_headers:
            pairs = [name.encode() + b":" + format_field(value, of_headers) for name, value in record.headers]
            cells.append(between.join(pairs) if pairs else b"NO_HEADERS")
        if with_key:
            cells.append(format_field(record.key, of_key))
        if with_value:
            cells.append(format_field(record.value, of_value))
        return separator.join(cells) + end if cells else b""

    return line


def _coordinator_formatter(
    keys: Mapping[int, type[Any]], values: Mapping[int, type[Any]], allowed: Collection[int]
) -> Formatter:
    """Records of an internal topic as JSON, those of some types; as Kafka's, one after the other on one line."""
    from klamm.model.errors import ProtocolError
    from klamm.protocol.codec import decode

    def text(record: Record) -> bytes:
        if record.key is None or len(record.key) < 2:
            return b""
        kind = int.from_bytes(record.key[:2], "big")
        # Formatters of one record type skip the others silently.
        if kind not in keys or kind not in allowed:
            return b""
        try:
            key = {"type": kind, "data": as_json(decode(keys[kind], 0, record.key, 2)[0], 0)}
            value = None
            if record.value is not None:
                version = int.from_bytes(record.value[:2], "big")
                value = {
                    "version": version,
                    "data": as_json(decode(values[kind], version, record.value, 2)[0], version),
                }
        except (ProtocolError, ValueError) as error:
            raise Unprintable(f"Could not read record at offset {record.offset} due to: {error}") from None
        return compact({"key": key, "value": value}).encode()

    return text


def _group_formatter(*allowed: int) -> Formatter:
    from klamm.protocol.messages.group_records import KEY_TYPES, VALUE_TYPES

    return _coordinator_formatter(KEY_TYPES, VALUE_TYPES, allowed)


def _transaction_formatter(_properties: Mapping[str, str]) -> Formatter:
    from klamm.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue

    return _coordinator_formatter({0: TransactionLogKey}, {0: TransactionLogValue}, (0,))


def _no_op_formatter(_properties: Mapping[str, str]) -> Formatter:
    def print_nothing(_record: Any) -> bytes:
        return b""

    return print_nothing


def _offsets_formatter(_properties: Mapping[str, str]) -> Formatter:
    return _group_formatter(0, 1)


def _group_metadata_formatter(_properties: Mapping[str, str]) -> Formatter:
    return _group_formatter(2)


_BY_NAME: Final[dict[str, Callable[[Mapping[str, str]], Formatter]]] = {
    "DefaultMessageFormatter": default_formatter,
    "LoggingMessageFormatter": default_formatter,  # what it logs besides is below the level Kafka's tools log at
    "NoOpMessageFormatter": _no_op_formatter,
    "OffsetsMessageFormatter": _offsets_formatter,
    "GroupMetadataMessageFormatter": _group_metadata_formatter,
    "TransactionLogMessageFormatter": _transaction_formatter,
}


def find_formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    """The formatter of a class; Usage, with the name alone as Kafka's sentence is, for one that is not known."""
    # Java loads any class by this name; here only those of Kafka exist.
    make = _BY_NAME.get(name.removeprefix(_FORMATTERS)) if name.startswith(_FORMATTERS) else None
    if make is None:
        raise Usage(f"{name}: no such formatter; there are {_FORMATTERS}{{{','.join(_BY_NAME)}}}")
    return make(properties)
