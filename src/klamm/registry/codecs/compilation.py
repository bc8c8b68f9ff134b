"""The common interface of the three kinds of schemas, and the decoders that a process has compiled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, Schema
from klamm.registry.framing import BadRecord, SchemaFrame
from klamm.registry.rules import READ, refuse_rules

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_CODECS = {
    "AVRO": ("avro", "AvroCodec"),
    "JSON": ("json_schema", "JsonCodec"),
    "PROTOBUF": ("protobuf", "ProtobufCodec"),
}
_COMPILED_MAX = 1000


class SchemaCodec(Protocol):
    """A compiled schema."""

    schema: Schema

    @property
    def full_name(self) -> str | None:
        """The name that RecordNameStrategy uses as subject; None if the schema has none."""

    @property
    def path(self) -> bytes | None:
        """The bytes between the schema's id and the payload."""

    def encode_value(self, value: Any) -> bytes:
        """Encode a Python value: what `value_decoder` returns, for Protobuf also a mapping of fields."""

    def value_decoder(self, reader: Any = None) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records of this schema, for the schema of `reader` if there is one."""

    def from_json(self, value: Any, *, tagged: bool = False) -> bytes:
        """Encode a JSON value; `tagged` is the form that REST proxies exchange, else the one for people."""

    def to_json(self, frame: SchemaFrame, *, tagged: bool = False) -> Any:
        """Decode a record to a JSON value, in either form."""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""

    def decoder(self, reader: Any) -> Callable[[SchemaFrame], Any]:
        """Return a function that decodes records of this schema to the Arrow type of `reader`, of the same kind."""

    def encode(self, value: Any) -> bytes:
        """Encode a value of the Arrow type."""


def compile_schema(registry: Registry, schema: Schema, message: str | None = None) -> SchemaCodec:
    """Return the codec of a schema; ConfigError when the library for its kind is not installed."""
    if schema.kind not in _CODECS:
        raise BadRecord(f"schema {schema.id} is of the unknown kind {schema.kind}")
    module_name, name = _CODECS[schema.kind]
    try:
        # Imported on use: each kind needs a library of its own.
        codec_module = import_module(f"klamm.registry.codecs.{module_name}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[registry]'") from None
    arguments = {} if message is None else {"message": message}
    if arguments and schema.kind != "PROTOBUF":
        raise ConfigError(f"schema {schema.id} is {schema.kind}: only Protobuf has messages to choose from")
    codec: SchemaCodec = getattr(codec_module, name)(schema, registry.references(schema), **arguments)
    return codec


class Decoder:
    """Decodes records of any schema of a registry to one reader's schema. Each schema is compiled once."""

    def __init__(self, registry: Registry, reader: SchemaCodec) -> None:
        self._registry = registry
        self.reader = reader
        self._decoders: dict[int | uuid.UUID, Callable[[SchemaFrame], Any]] = {}

    def decode(self, frame: SchemaFrame) -> Any:
        """Decode a record; BadRecord when that fails."""
        decode = self._decoders.get(frame.schema)
        if decode is None:
            # Without a message: a Protobuf record names its own by the path.
            writer = compile_schema(self._registry, self._registry.schema(frame.schema))
            # Columns are read without executors.
            refuse_rules(writer.schema, READ)
            reader = self.reader
            if writer.schema.kind != reader.schema.kind:
                raise BadRecord(f"schema {frame.schema} is {writer.schema.kind}, expected {reader.schema.kind}")
            decode = writer.decoder(reader)
            if len(self._decoders) >= _COMPILED_MAX:
                # More schemas than a topic ever has: bounds memory, and costs a recompilation.
                self._decoders.clear()
            self._decoders[frame.schema] = decode
        return decode(frame)
