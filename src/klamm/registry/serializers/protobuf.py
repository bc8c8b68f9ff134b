"""Protobuf: values are messages, of generated classes or of classes made from the registry's schema."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import EncodeError, Message

from klamm.client.serde import RecordContext
from klamm.model.errors import ConfigError
from klamm.registry.client import Schema, UnknownSchema
from klamm.registry.codecs.compilation import SchemaCodec, compile_schema
from klamm.registry.codecs.protobuf import message_path, parse_message
from klamm.registry.framing import BadRecord, SchemaFrame, read_path, write_path
from klamm.registry.serializers import errors
from klamm.registry.serializers.reading import Name, SchemaDeserializer
from klamm.registry.serializers.reading_rules import Decode
from klamm.registry.serializers.settings import RegistryLike
from klamm.registry.serializers.writing import SchemaSerializer, ValueEncoder
from klamm.registry.store.content import SchemaReference

_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
"""Imports that need no reference: every registry and client has them."""


class ProtobufSerializer(SchemaSerializer):
    """Serializes messages of a generated class, or mappings of fields with a schema as text.

    serializer = ProtobufSerializer("http://127.0.0.1:8081", Order)

    The file of the class is registered with the files that it imports, each under its path as subject. With a `schema`
    (the text of a .proto file) instead of a class, `message` names the message, the first one by default; values are
    messages or mappings.
    """

    kind: ClassVar[str] = "PROTOBUF"

    def __init__(
        self,
        registry: RegistryLike,
        message_class: type[Message] | None = None,
        *,
        schema: str | None = None,
        message: str | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if message_class is not None and (schema is not None or message is not None):
            raise ConfigError("message_class has its schema: leave out schema and message")
        self._class = message_class
        self._message = message
        super().__init__(registry, schema, (), None, config, settings)

    def _needs_schema(self) -> bool:
        return self._class is None

    def _compile_own(self) -> None:
        assert self._given is not None
        try:
            self._own = compile_schema(self._registry, self._given, self._message)
        except BadRecord as error:
            raise ConfigError(str(error.message).replace("schema None is", "this is")) from None

    def _record_name(self, value: Any) -> str | None:
        if self._class is None:
            return super()._record_name(value)
        return str(self._class.DESCRIPTOR.full_name)

    def _own_schema(self, context: RecordContext, value: Any) -> Schema:
        if self._class is None:
            return super()._own_schema(context, value)
        file = self._class.DESCRIPTOR.file
        return Schema(None, None, self.kind, _file_text(file), self._register_imports(context, file))

    def _register_imports(self, context: RecordContext, file: FileDescriptor) -> tuple[SchemaReference, ...]:
        """Register the files that a file imports, unless only lookups are allowed; returns the references to them."""
        references = []
        for imported in file.dependencies:
            if imported.name.startswith(_BUILT_IN):
                continue
            inner = self._register_imports(context, imported)
            arguments = (imported.name, _file_text(imported), self.kind, inner)
            if self._settings.auto_register:
                self._registry.register(*arguments, normalize=self._settings.normalize)
            try:
                # Looked up even if it was just registered: only then old registries give the version.
                version = self._registry.look_up(*arguments, normalize=self._settings.normalize).version
            except UnknownSchema as error:
                raise errors.not_registered(context.topic, imported.name, error.error_code) from None
            references.append(SchemaReference(imported.name, imported.name, version or 1))
        return tuple(references)

    def _make_encoder(self, schema: Schema, value: Any) -> ValueEncoder:
        if self._class is not None:
            return _MessageEncoder(self._class)
        del value
        return compile_schema(self._registry, schema, self._message)


class _MessageEncoder:
    """Encodes messages of a generated class."""

    def __init__(self, message_class: type[Message]) -> None:
        self._class = message_class
        self.path = write_path(message_path(message_class.DESCRIPTOR))

    def encode_value(self, value: Any) -> bytes:
        """Encode a message."""
        if not isinstance(value, self._class):
            raise BadRecord(f"a {type(value).__name__} is not a message {self._class.DESCRIPTOR.full_name}")
        try:
            return bytes(value.SerializeToString())
        except EncodeError as error:  # a required field of proto2 is not set
            raise BadRecord(f"the message cannot be encoded: {error}") from None


def _file_text(file: FileDescriptor) -> str:
    return base64.b64encode(file.serialized_pb).decode()


class ProtobufDeserializer(SchemaDeserializer):
    """Deserializes messages: of a generated class if one is given, else of the schema that the record names.

    With a generated class the schema is only asked for its rules: fields that the class does not have are kept as
    unknown fields.
    """

    kind: ClassVar[str | None] = "PROTOBUF"

    def __init__(
        self,
        registry: RegistryLike,
        message_class: type[Message] | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(registry, None, from_dict, config, settings)
        self._class = message_class

    def _read_schema(self, name: Name, subject: str | None) -> Schema:
        try:
            return super()._read_schema(name, subject)
        except UnknownSchema:
            if self._class is None:
                raise
            # The class is enough to read a record. Only rules need the schema, and one that is not there has none.
            return Schema(None, None, "PROTOBUF", "")

    def _compile(self, schema: Schema) -> SchemaCodec | None:
        return None if self._class is not None else super()._compile(schema)

    def _decode_function(self, writer: SchemaCodec | None, reader: SchemaCodec | None) -> Decode:
        return self._decode_message if self._class is not None else super()._decode_function(writer, reader)

    def _decode_message(self, frame: SchemaFrame) -> Message:
        assert self._class is not None
        return parse_message(self._class, read_path(frame)[1], self._class.DESCRIPTOR.full_name)
