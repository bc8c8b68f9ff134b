"""What deserializers have in common: the schema that a record names, and its decoder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from klamm.client.serde import LookupNeeded, RecordContext
from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, Schema
from klamm.registry.codecs.compilation import Decoder, SchemaCodec, compile_schema
from klamm.registry.framing import HEADERS, BadRecord, SchemaFrame, read_path, unframe
from klamm.registry.rules import DOMAIN, ENCODING, READ, RuleStep, plan_rules
from klamm.registry.serializers.reading_rules import Decode, RuledDecode, plan_migrations
from klamm.registry.serializers.settings import RegistryLike, read_settings
from klamm.registry.serializers.subjects import record_subject, topic_record_subject

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_COMPILED_MAX = 1000
_FAILED_S = 10.0
"""How long a schema that cannot be used is not requested again."""

Name = int | uuid.UUID
"""An id or a GUID."""


class _Failure(NamedTuple):
    """Why records of a schema cannot be decoded."""

    message: str
    until: float


class SchemaDeserializer:
    """Base class; `kind` is the schema type, None for any. Safe to share by threads, and by keys and values."""

    kind: ClassVar[str | None] = None

    def __init__(
        self,
        registry: RegistryLike,
        schema: str | None,
        from_dict: Callable[[Any], Any] | None,
        config: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._settings = read_settings(registry, config, keywords)
        self._from_dict = from_dict
        self._clock = clock
        self._lock = threading.Lock()
        self._decoders: dict[tuple[Name, str | None], RuledDecode | _Failure] = {}
        self._column_decoders: dict[tuple[str, str], Decoder] = {}
        """By topic and part: the type of a column stays the same."""
        self._readers: dict[str, SchemaCodec] = {}
        """Codecs of reader schemas by subject, with use.latest.version."""
        self._reader: SchemaCodec | None = None
        if schema is not None:
            try:
                self._reader = compile_schema(self._registry, Schema(None, None, self.kind or "AVRO", schema))
            except BadRecord as error:
                raise ConfigError(str(error.message).replace("schema None is", "this is")) from None

    @property
    def registry(self) -> Registry:
        """The client of the registry."""
        return self._registry

    # Calling

    def deserialize_record(self, context: RecordContext, data: bytes | None) -> Any:
        """Deserialize without waiting; LookupNeeded if the schema has to be read first."""
        if data is None:
            return None
        frame = unframe(data, header_of(context))
        decoder = self._find_decoder(context, frame.schema)
        if decoder.has_rules:
            subject = self._settings.strategies[context.part](context, decoder.full_name)
            value = decoder.read(frame, subject, context)
        else:
            value = decoder.decode(frame)
        return value if self._from_dict is None else self._from_dict(value)

    def deserialize(
        self, topic: str, data: bytes | None, part: str = "value", headers: Sequence[tuple[str, bytes | None]] = ()
    ) -> Any:
        """Deserialize a part of a record, and block for the registry."""
        context = RecordContext(topic, part, headers)
        while True:
            try:
                return self.deserialize_record(context, data)
            except LookupNeeded as needed:
                needed.look_up()

    async def deserialize_async(
        self, topic: str, data: bytes | None, part: str = "value", headers: Sequence[tuple[str, bytes | None]] = ()
    ) -> Any:
        """As `deserialize`, for an event loop."""
        context = RecordContext(topic, part, headers)
        while True:
            try:
                return self.deserialize_record(context, data)
            except LookupNeeded as needed:
                await asyncio.to_thread(needed.look_up)

    def __call__(self, data: bytes | None, context: Any) -> Any:
        """Deserialize as confluent-kafka's consumers call it, with its SerializationContext."""
        part = str(getattr(context.field, "value", context.field))
        return self.deserialize(context.topic, data, part, context.headers or ())

    # Columns

    def deserialize_column(
        self, context: RecordContext, values: pa.Array, headers: pa.Array | None
    ) -> tuple[pa.Array, dict[int, str]]:
        """Deserialize a column of records of one topic, and block for the registry; returns the errors by row.

        The type is that of the reader's schema, else of the newest one when a topic was first read: it stays the same,
        and records of other schemas are converted to it.
        """
        from klamm.registry.codecs.columns import build_column, decode_rows  # noqa: PLC0415 - pyarrow is an extra

        decoder = self._column_decoders.get((context.topic, context.part))
        if decoder is None:
            reader = self._column_reader(context, values, headers)
            if reader is None:  # nothing but nulls
                return values, {}
            decoder = self._column_decoders[context.topic, context.part] = Decoder(self._registry, reader)
        records, errors = decode_rows(decoder.decode, values, headers, HEADERS[context.part])
        column = build_column(records, errors, decoder.reader.arrow)
        return column, {row: error for row, error in enumerate(errors) if error is not None}

    def _column_reader(self, context: RecordContext, values: pa.Array, headers: pa.Array | None) -> SchemaCodec | None:
        """Return the schema that gives a column its type; None if no subject and no record tells."""
        if self._reader is not None:
            return self._reader
        first = self._first_readable(context, values, headers)
        schema = None if first is None else first[1]
        if self._is_by_topic(context):
            with contextlib.suppress(ConfigError):  # the registry has no such subject
                newest = self._registry.latest(self._settings.strategies[context.part](context, None))
                if schema is None or newest.kind == schema.kind:
                    schema = newest
        if schema is None:
            return None
        codec: Any = compile_schema(self._registry, schema)
        if first is not None and schema.kind == "PROTOBUF":
            codec = codec.with_path(read_path(first[0])[0])
        reader: SchemaCodec = codec
        return reader

    def _first_readable(
        self, context: RecordContext, values: pa.Array, headers: pa.Array | None
    ) -> tuple[SchemaFrame, Schema] | None:
        """Return the first record of a column that names a schema of the registry, of the right kind."""
        from klamm.registry.codecs.columns import last_headers  # noqa: PLC0415 - pyarrow is an extra

        for data, header in zip(
            values.to_pylist(), last_headers(headers, HEADERS[context.part], len(values)), strict=True
        ):
            with contextlib.suppress(BadRecord):
                if data is not None:
                    frame = unframe(data, header)
                    schema = self._registry.schema(frame.schema)
                    if self.kind in (None, schema.kind):
                        return frame, schema
        return None

    # Schemas

    def _find_decoder(self, context: RecordContext, name: Name) -> RuledDecode:
        subject = self._settings.strategies[context.part](context, None) if self._is_by_topic(context) else None
        key = (name, self._decoder_scope(subject))
        decoder = self._decoders.get(key)
        if isinstance(decoder, _Failure):
            if decoder.until > self._clock():
                raise BadRecord(decoder.message)
            decoder = None
        if decoder is None:
            raise LookupNeeded(functools.partial(self._load, key, subject))
        return decoder

    def _is_by_topic(self, context: RecordContext) -> bool:
        """Whether the subject is known before the record is: only then it can choose context and reader schema."""
        return self._settings.strategies[context.part] not in (record_subject, topic_record_subject)

    def _decoder_scope(self, subject: str | None) -> str | None:
        """Return what the decoder of an id depends on besides the id."""
        if self._settings.use_latest or (subject is not None and subject.startswith(":.")):
            return subject
        return None

    def _load(self, key: tuple[Name, str | None], subject: str | None) -> None:
        """Read and compile the schema of a record. A schema that cannot be used is remembered as that."""
        name, _ = key
        decoder: RuledDecode | _Failure
        try:
            decoder = self._make_decoder(self._read_schema(name, subject), subject)
        # A RegistryError passes: the record is not at fault.
        except BadRecord as error:
            message = error.message or "the record cannot be decoded"
            decoder = _Failure(self._explain(message, name), self._clock() + _FAILED_S)
        with self._lock:
            if len(self._decoders) >= _COMPILED_MAX:
                # More schemas than a topic ever has: bounds memory, and costs a recompilation.
                self._decoders.clear()
            self._decoders[key] = decoder

    def _explain(self, message: str, name: Name) -> str:
        urls = ", ".join(self._registry.settings.urls)
        if message == f"the registry has no schema {name}":
            return f"{message} ({urls}): the record was written with another registry, or the schema was deleted"
        return message

    def _read_schema(self, name: Name, subject: str | None) -> Schema:
        return self._registry.schema(name, subject)

    def _make_decoder(self, schema: Schema, subject: str | None) -> RuledDecode:
        """Return the decoder of records of a schema; BadRecord if it cannot be used, also for its rules."""
        if self.kind is not None and schema.kind != self.kind:
            raise BadRecord(f"schema {schema.id} is {schema.kind}, and this deserializer reads {self.kind}")
        executors = self._settings.executors
        reader = self._find_reader(subject)
        target, migrations = schema, tuple[RuleStep, ...]()
        if reader is not None and reader is not self._reader and subject is not None:
            target = reader.schema
            migrations = plan_migrations(self._registry, subject, schema, target, executors)
        encoding = plan_rules(schema, ENCODING, READ, executors)
        # The rules of values are those of the version that they are read as.
        domain = plan_rules(target, DOMAIN, READ, executors)
        writer = self._compile(schema)
        # Migration rules take values of the old schema, and return those of the new one.
        decode = self._decode_function(writer, None if migrations else reader)
        return RuledDecode(decode, writer, encoding, migrations + domain)

    def _compile(self, schema: Schema) -> SchemaCodec | None:
        return compile_schema(self._registry, schema)

    def _decode_function(self, writer: SchemaCodec | None, reader: SchemaCodec | None) -> Decode:
        assert writer is not None
        return writer.value_decoder(reader)

    def _find_reader(self, subject: str | None) -> SchemaCodec | None:
        """Return the reader's schema: the one that was given, or the newest with use.latest.version."""
        if self._reader is not None or not self._settings.use_latest or subject is None:
            return self._reader
        reader = self._readers.get(subject)
        if reader is None:
            reader = self._readers[subject] = compile_schema(self._registry, self._registry.latest(subject))
        return reader


def header_of(context: RecordContext) -> bytes | None:
    """Return the header that names the schema of a part; the last one counts, as in Headers.lastHeader of Java."""
    name = HEADERS[context.part]
    headers = context.headers.items() if isinstance(context.headers, Mapping) else context.headers
    for key, value in reversed(list(headers)) if headers else ():
        if key == name:
            data: bytes | None = value
            return data
    return None
