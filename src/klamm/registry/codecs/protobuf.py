"""Protobuf: a registry's files as descriptors, values as messages."""

from __future__ import annotations

import copy
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from klamm.model.errors import ConfigError
from klamm.registry.client import Schema
from klamm.registry.framing import BadRecord, SchemaFrame, read_path, write_path
from klamm.registry.schemas.parsed import InvalidSchemaError
from klamm.registry.schemas.protobuf.files import link_texts

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_F = FieldDescriptor
TIMESTAMP = "google.protobuf.Timestamp"


class ProtobufCodec:
    """A compiled file; a record names the message of the file that it is, the first one by default."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema], message: str | None = None) -> None:
        self.schema = schema
        try:
            # Some registries return the text of a file, others its descriptor.
            linked = link_texts(schema.text, {name: reference.text for name, reference in references.items()})
            self._pool = linked.pool
            self._file = linked.pool.FindFileByName(linked.proto.name)
        except InvalidSchemaError as error:
            raise BadRecord(f"schema {schema.id} is not a Protobuf file: {error}") from None
        self._classes: dict[tuple[int, ...], type[Message]] = {}
        self._path = (0,) if message is None else self._find(message)

    def _find(self, message: str) -> tuple[int, ...]:
        """Return the path of a message of this name, with or without its package."""
        package = f"{self._file.package}." if self._file.package else ""
        proto = descriptor_pb2.FileDescriptorProto()
        self._file.CopyToProto(proto)
        level: Sequence[descriptor_pb2.DescriptorProto] = proto.message_type
        path: list[int] = []
        for part in message.removeprefix(package).split("."):
            names = [descriptor.name for descriptor in level]
            if part not in names:
                raise ConfigError(f"Protobuf schema {self.schema.id} has no message {message}, only {', '.join(names)}")
            path.append(names.index(part))
            level = _messages(level[path[-1]].nested_type)
        return tuple(path)

    def _class(self, path: tuple[int, ...]) -> type[Message]:
        message_class = self._classes.get(path)
        if message_class is None:
            proto = descriptor_pb2.FileDescriptorProto()
            self._file.CopyToProto(proto)
            level: Sequence[descriptor_pb2.DescriptorProto] = proto.message_type
            names = []
            for index in path:
                if not 0 <= index < len(level):
                    raise BadRecord(f"Protobuf schema {self.schema.id} has no message {path}")
                names.append(level[index].name)
                level = _messages(level[index].nested_type)
            descriptor: Descriptor = self._file.message_types_by_name[names[0]]
            for name in names[1:]:
                descriptor = descriptor.nested_types_by_name[name]
            message_class = self._classes[path] = message_factory.GetMessageClass(descriptor)
        return message_class

    def with_path(self, path: tuple[int, ...]) -> ProtobufCodec:
        """Return the codec of another message of the same file."""
        self._class(path)  # raises for a path that the file does not have
        codec = copy.copy(self)
        codec._path = path  # noqa: SLF001 - of its own class
        return codec

    @property
    def numbers(self) -> dict[str, int]:
        """The field numbers of the message by name."""
        return {field.name: field.number for field in self._class(self._path).DESCRIPTOR.fields}

    @property
    def full_name(self) -> str | None:
        """The name for RecordNameStrategy: that of the message, with its package."""
        return str(self._class(self._path).DESCRIPTOR.full_name)

    @property
    def path(self) -> bytes:
        """The path of the message, as it is written before the payload."""
        return write_path(self._path)

    # Values

    def encode(self, value: Any) -> bytes:
        """Encode a message or a mapping of fields, without the path."""
        if isinstance(value, Message):
            return self._encode_message(value)
        message = self._class(self._path)()
        try:
            _fill(message, value)
            # Maps have no order; a replay of a batch has to write the same bytes.
            return bytes(message.SerializeToString(deterministic=True))
        except (TypeError, ValueError, KeyError, AttributeError, EncodeError) as error:
            raise BadRecord(f"does not fit Protobuf schema {self.schema.id}: {error}") from None

    encode_value = encode

    def _encode_message(self, message: Message) -> bytes:
        name, expected = message.DESCRIPTOR.full_name, self.full_name
        if name != expected:
            raise BadRecord(f"does not fit Protobuf schema {self.schema.id}: it is a {name}, expected {expected}")
        try:
            return bytes(message.SerializeToString())
        except EncodeError as error:  # a required field of proto2 is not set
            raise BadRecord(f"does not fit Protobuf schema {self.schema.id}: {error}") from None

    def value_decoder(self, reader: ProtobufCodec | None = None) -> Callable[[SchemaFrame], Message]:
        """Return a function that decodes records to messages of the schema that they name."""
        del reader  # a message keeps the fields of its own schema
        return self._decode

    def _decode(self, frame: SchemaFrame) -> Message:
        path, payload = read_path(frame)
        return parse_message(self._class(path), payload, f"schema {self.schema.id}")

    # JSON

    def from_json(self, value: Any, *, tagged: bool = False) -> bytes:
        """Encode a JSON value of Protobuf's JSON mapping; names of fields in either spelling."""
        del tagged
        message = self._class(self._path)()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool)
            return bytes(message.SerializeToString(deterministic=True))
        except (json_format.ParseError, EncodeError, TypeError, ValueError, AttributeError) as error:
            raise BadRecord(f"does not fit Protobuf schema {self.schema.id}: {error}") from None

    def to_json(self, frame: SchemaFrame, *, tagged: bool = False) -> Any:
        """Decode a record to Protobuf's JSON mapping, with fields that have default values.

        With `tagged` names are in camel case, as the mapping has them and REST proxies exchange them; else as declared.
        """
        try:
            return json_format.MessageToDict(
                self._decode(frame),
                always_print_fields_with_no_presence=True,
                preserving_proto_field_name=not tagged,
                descriptor_pool=self._pool,
            )
        except (json_format.SerializeToJsonError, TypeError, ValueError) as error:
            raise BadRecord(f"a message of Protobuf schema {self.schema.id} has no JSON form: {error}") from None

    # Columns

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        from klamm.registry.codecs.protobuf_columns import arrow_type  # noqa: PLC0415 - pyarrow is an extra

        return arrow_type(self._class(self._path).DESCRIPTOR)

    def decoder(self, reader: ProtobufCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records; fields that only the reader has are null."""
        from klamm.registry.codecs.protobuf_columns import to_column  # noqa: PLC0415 - pyarrow is an extra

        del reader  # pa.array picks the members of its type and ignores the others
        return functools.partial(_to_column, self._decode, to_column)


def _to_column(decode: Callable[[SchemaFrame], Any], convert: Callable[[Any], Any], frame: SchemaFrame) -> Any:
    return convert(decode(frame))


def parse_message(message_class: type[Message], payload: bytes, what: str) -> Message:
    """Return a message from its bytes; BadRecord when they are damaged."""
    message = message_class()
    try:
        message.ParseFromString(payload)
    except (DecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"not a message of Protobuf {what}: {error}") from None
    return message


def message_path(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the path of a message in its file.

    Generated messages of map fields are not counted, as in Java's serializer.
    """
    path: list[int] = []
    parent = descriptor.containing_type
    while parent is not None:
        siblings = [nested for nested in parent.nested_types if not nested.GetOptions().map_entry]
        path.insert(0, siblings.index(descriptor))
        descriptor, parent = parent, parent.containing_type
    names = list(descriptor.file.message_types_by_name)
    return (names.index(descriptor.name), *path)


def _messages(descriptors: Iterable[descriptor_pb2.DescriptorProto]) -> list[descriptor_pb2.DescriptorProto]:
    """Return the declared messages: map entries are generated messages, which a path does not count."""
    return [descriptor for descriptor in descriptors if not descriptor.options.map_entry]


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fill(message: Message, value: Any) -> None:
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        message.FromDatetime(moment)
        return
    fields = message.DESCRIPTOR.fields_by_name
    for name, content in value.items():
        if name not in fields:
            raise KeyError(f"there is no field {name}")
        if content is None:
            continue
        field, target = fields[name], getattr(message, name)
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, item in content.items():
                if inner.message_type is not None:
                    _fill(target[key], item)
                else:
                    target[key] = _to_wire(item, inner)
        elif field.is_repeated:
            for item in content:
                if field.message_type is not None:
                    _fill(target.add(), item)
                else:
                    target.append(_to_wire(item, field))
        elif field.message_type is not None:
            target.SetInParent()  # an empty message is not the same as a missing one
            _fill(target, content)
        else:
            setattr(message, name, _to_wire(content, field))


def _to_wire(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        if value not in field.enum_type.values_by_name:
            raise ValueError(f"{value} is none of enum {field.enum_type.name}")
        return field.enum_type.values_by_name[value].number
    if field.type == _F.TYPE_STRING and isinstance(value, (Decimal, dt.date)):
        return str(value) if isinstance(value, Decimal) else value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT) else int(value)
    return value
