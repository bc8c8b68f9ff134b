"""Protobuf: a registry's files as descriptors, messages as structs.

Some registries return compiled descriptors; the source that others return is compiled by protoc of grpcio-tools.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import BadRecord, SchemaFrame, read_path, write_path
from klamm.pipeline.registry.client import Schema

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
_TIMESTAMP = "google.protobuf.Timestamp"
# A schema in a registry has no file name; imports name only its references.
_MAIN = "klamm_main.proto"


class ProtobufCodec:
    """A compiled file; a record names the message of the file that it is, the first one by default."""

    def __init__(self, schema: Schema, references: Mapping[str, Schema], message: str | None = None) -> None:
        self.schema = schema
        try:
            # A pool per schema: versions of a message have the same name, and the default pool refuses that.
            pool = descriptor_pool.DescriptorPool()
            for file in _files(schema, references):
                pool.AddSerializedFile(file.SerializeToString())
            self._file = pool.FindFileByName(_MAIN)
        except (TypeError, KeyError, ValueError, DecodeError) as error:
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

    @property
    def numbers(self) -> dict[str, int]:
        """The field numbers of the message by name."""
        return {field.name: field.number for field in self._class(self._path).DESCRIPTOR.fields}

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        return _struct(self._class(self._path).DESCRIPTOR, ())

    def decoder(self, reader: ProtobufCodec) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records; fields that only the reader has are null."""
        del reader  # pa.array picks the members of its type and ignores the others

        def decode(frame: SchemaFrame) -> Any:
            path, payload = read_path(frame)
            message = self._class(path)()
            try:
                message.ParseFromString(payload)
            except (DecodeError, UnicodeDecodeError) as error:
                raise BadRecord(f"not a message of Protobuf schema {self.schema.id}: {error}") from None
            return _value(message)

        return decode

    def encode(self, value: Any) -> bytes:
        """Encode a value, without the path."""
        message = self._class(self._path)()
        try:
            _fill(message, value)
            # Maps have no order; a replay of a batch has to write the same bytes.
            return bytes(message.SerializeToString(deterministic=True))
        except (TypeError, ValueError, KeyError, AttributeError, EncodeError) as error:
            raise BadRecord(f"does not fit Protobuf schema {self.schema.id}: {error}") from None

    @property
    def path(self) -> bytes:
        """The path of the message, as it is written before the payload."""
        return write_path(self._path)


def _files(schema: Schema, references: Mapping[str, Schema]) -> Iterable[descriptor_pb2.FileDescriptorProto]:
    """Return compiled files, each after those it imports, as a descriptor pool needs them."""
    sources = {**{name: reference.text for name, reference in references.items()}, _MAIN: schema.text}
    compiled = (
        {name: _decode_file(name, text) for name, text in sources.items()}
        if _is_descriptor(schema.text)
        else _run_protoc(sources)
    )
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        file = compiled.get(name) or _well_known_file(name)
        for dependency in file.dependency:
            add(dependency)
        ordered[name] = file

    add(_MAIN)
    return ordered.values()


def _messages(descriptors: Iterable[descriptor_pb2.DescriptorProto]) -> list[descriptor_pb2.DescriptorProto]:
    """Return the declared messages: map entries are generated messages, which a path does not count."""
    return [descriptor for descriptor in descriptors if not descriptor.options.map_entry]


def _is_descriptor(text: str) -> bool:
    try:
        descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return False
    return True


def _decode_file(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    # Imports use the names of the references, which may differ from those the file was compiled with.
    file.name = name
    return file


def _run_protoc(sources: Mapping[str, str]) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    import grpc_tools  # noqa: PLC0415 - only for registries that do not compile
    from grpc_tools import protoc  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="klamm-proto-") as folder:
        root = Path(folder).resolve()
        for name, text in sources.items():
            path = (root / name).resolve()
            if root not in path.parents:
                raise ValueError(f"{name} lies outside of the folder")  # a reference's name comes from the registry
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        out = root / "out.pb"
        includes = str(Path(grpc_tools.__file__).parent / "_proto")
        if protoc.main(
            ["protoc", f"-I{root}", f"-I{includes}", f"--descriptor_set_out={out}", "--include_imports", *sources]
        ):
            raise ValueError("protoc cannot compile it")
        descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return {file.name: file for file in descriptor_set.file}


def _well_known_file(name: str) -> descriptor_pb2.FileDescriptorProto:
    import importlib  # noqa: PLC0415

    if name.startswith("google/protobuf/"):
        importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = descriptor_pb2.FileDescriptorProto()
    descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
    return file


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_scalar_type(key, inside), _scalar_type(value, inside))
    single = _scalar_type(field, inside)
    return pa.list_(single) if _is_repeated(field) else single


def _scalar_type(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _PRIMITIVES[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    return _struct(field.message_type, inside)


def _struct(message: Descriptor, inside: tuple[str, ...]) -> pa.DataType:
    if message.full_name in inside:
        raise ConfigError(f"Protobuf message {message.full_name} is recursive, which columns cannot be")
    return pa.struct([(field.name, _type(field, (*inside, message.full_name))) for field in message.fields])


def _value(message: Message) -> Any:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        return message.seconds * 1_000_000 + message.nanos // 1000
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            key, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            values[field.name] = [(_scalar(name, key), _scalar(value[name], inner)) for name in value]
        elif _is_repeated(field):
            values[field.name] = [_scalar(item, field) for item in value]
        # Fields of proto3 without `optional` have no presence: their default value is a value.
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _scalar(value, field)
    return values


def _scalar(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _value(value)
    if field.enum_type is not None:
        enum_value = field.enum_type.values_by_number.get(value)
        # An enum value of a newer schema: proto3 keeps its number.
        return str(value) if enum_value is None else enum_value.name
    # Spark has no unsigned 64-bit type.
    return Decimal(value) if field.type in _UNSIGNED_64 else value


def _fill(message: Message, value: Any) -> None:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
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
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, item in content.items():
                if inner.message_type is not None:
                    _fill(target[key], item)
                else:
                    target[key] = _to_wire(item, inner)
        elif _is_repeated(field):
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
