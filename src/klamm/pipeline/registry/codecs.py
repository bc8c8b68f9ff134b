"""One face for the three kinds of schemas, and what a process has compiled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import BadRecord, Frame
from klamm.pipeline.registry.client import Registry, Schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_HOMES = {
    "AVRO": ("avro", "AvroCodec"),
    "JSON": ("json_schema", "JsonCodec"),
    "PROTOBUF": ("protobuf", "ProtobufCodec"),
}
_COMPILED_MAX = 1000


class Codec(Protocol):
    """A compiled schema."""

    schema: Schema

    @property
    def arrow(self) -> pa.DataType:
        """The type of its values."""

    @property
    def path(self) -> bytes | None:
        """What stands between the schema's id and the payload."""

    def decoder(self, reader: Any) -> Callable[[Frame], Any]:
        """Read what this schema wrote as `reader` says; the two are of one kind."""

    def encode(self, value: Any) -> bytes:
        """A value as bytes."""


def compile_schema(registry: Registry, schema: Schema, message: str | None = None) -> Codec:
    """The codec of a schema; ConfigError when the library for its kind is missing."""
    if schema.kind not in _HOMES:
        raise BadRecord(f"schema {schema.id} is of the unknown kind {schema.kind}")
    module, name = _HOMES[schema.kind]
    try:
        home = import_module(f"klamm.pipeline.registry.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'klamm[registry]'") from None
    more = {} if message is None else {"message": message}
    if more and schema.kind != "PROTOBUF":
        raise ConfigError(f"schema {schema.id} is {schema.kind}: only Protobuf has messages to choose from")
    found: Codec = getattr(home, name)(schema, registry.references(schema), **more)
    return found


class Decoder:
    """Records of any schema of a registry, as one reader's schema says. Each schema is compiled once."""

    def __init__(self, registry: Registry, reader: Codec) -> None:
        self._registry = registry
        self._reader = reader
        self._decoders: dict[int | uuid.UUID, Callable[[Frame], Any]] = {}

    def decode(self, frame: Frame) -> Any:
        """BadRecord when it cannot be read."""
        found = self._decoders.get(frame.schema)
        if found is None:
            writer = compile_schema(self._registry, self._registry.schema(frame.schema))
            reader = self._reader
            if writer.schema.kind != reader.schema.kind:
                raise BadRecord(f"schema {frame.schema} is {writer.schema.kind}, expected was {reader.schema.kind}")
            found = writer.decoder(reader)
            if len(self._decoders) >= _COMPILED_MAX:
                self._decoders.clear()
            self._decoders[frame.schema] = found
        return found(frame)
