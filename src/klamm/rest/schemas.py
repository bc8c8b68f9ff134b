"""Keys and values with a schema of the registry, between JSON and bytes."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any, Final

from klamm.client.types import Record
from klamm.http.refusals import HttpRefusal
from klamm.model.errors import ConfigError
from klamm.registry.client import AsyncRegistry, Registry, RegistryError, RegistryUnreachable, Schema, UnknownSchema
from klamm.registry.codecs.compilation import SchemaCodec, compile_schema
from klamm.registry.framing import HEADERS, BadRecord, prefix, unframe
from klamm.registry.rules import READ, WRITE, RuleNotServed, refuse_rules
from klamm.rest.core.fields import dump_json
from klamm.rest.core.media_types import EmbeddedFormat
from klamm.rest.core.produce_v2 import ProduceBody, SchemaSelector
from klamm.rest.core.produce_v3 import RecordData
from klamm.rest.core.refusals import (
    bad_request,
    conversion_failed,
    invalid_schema,
    schema_forbidden,
    serialization_failed,
)

_CACHED_MAX: Final = 1000
_INVALID_SCHEMA: Final = 42201
"""The registry's code for a text that is no schema."""
_NEWEST_CACHED_S: Final = 10.0
"""A new version of a subject is used after so long at the latest."""
_FORMATS: Final = {embedded.schema_type: embedded for embedded in EmbeddedFormat if embedded.needs_schema}


class RecordSchemas:
    """Finds, registers and compiles schemas; codecs and registered texts are cached."""

    def __init__(self, registry: Registry | None) -> None:
        self._registry = None if registry is None else AsyncRegistry(registry)
        self._codecs: dict[Schema, SchemaCodec] = {}
        """Not by id: contexts give the same id to different schemas."""
        self._registered: dict[tuple[str, str, str], Schema] = {}
        self._by_id: dict[tuple[str, int], Schema] = {}
        """By subject and id: schemas that the subject has, with their version in it."""
        self._newest: dict[str, tuple[Schema, float]] = {}
        """By subject, with the time it was fetched."""

    def require(self) -> AsyncRegistry:
        """Return the registry; refuses formats that need one without it."""
        if self._registry is None:
            raise invalid_schema("the proxy has no schema registry; start it with --registry-url")
        return self._registry

    # v2

    async def encode_records(
        self, topic: str, embedded: EmbeddedFormat, body: ProduceBody
    ) -> tuple[list[tuple[bytes | None, bytes | None, int | None]], dict[str, int | None]]:
        """Return the bytes of all records, and the ids of the schemas."""
        key_codec = await self._choose(f"{topic}-key", embedded, body.key_schema)
        value_codec = await self._choose(f"{topic}-value", embedded, body.value_schema)
        encoded = [(_encode(key_codec, key), _encode(value_codec, value), index) for key, value, index in body.records]
        return encoded, {
            "key_schema_id": None if key_codec is None else key_codec.schema.id,
            "value_schema_id": None if value_codec is None else value_codec.schema.id,
        }

    async def _choose(
        self, subject: str, embedded: EmbeddedFormat, choice: SchemaSelector | None
    ) -> SchemaCodec | None:
        if choice is None:
            return None
        self.require()
        try:
            if choice.schema_id is not None:
                schema = await self._schema_of_subject(subject, choice.schema_id)
            else:
                assert choice.text is not None
                schema = await self._register(subject, choice.text, embedded.schema_type)
            _refuse_to_write(schema)
            return await self._compile(schema, embedded)
        except (UnknownSchema, ConfigError, RegistryError) as error:
            raise _refuse_schema(error, f"subject = {subject}") from None

    # v3

    async def encode_data(self, topic: str, part: str, data: RecordData) -> tuple[bytes | None, dict[str, Any]]:
        """Return the bytes of a key or value, and what the answer says of it."""
        try:
            schema, subject = await self._find(topic, part, data)
            _refuse_to_write(schema)
            codec = await self._compile(schema, data.embedded)
        except (UnknownSchema, ConfigError, RegistryError) as error:
            raise _refuse_schema(error, f"subject = {data.subject or f'{topic}-{part}'}") from None
        except BadRecord as error:
            raise invalid_schema(str(error)) from None
        encoded = _encode(codec, data.data)
        fields: dict[str, Any] = {
            "type": _FORMATS[schema.kind].name,
            "size": 0 if encoded is None else len(encoded),
            "subject": subject,
            "schema_id": schema.id,
        }
        if schema.version is not None:
            fields["schema_version"] = schema.version
        return encoded, fields

    async def _find(self, topic: str, part: str, data: RecordData) -> tuple[Schema, str]:
        """Return the schema that a record names, and its subject."""
        registry = self.require()
        subject = data.subject
        if subject is None and data.strategy == "TOPIC_NAME":
            subject = f"{topic}-{part}"
        if data.schema is not None:
            assert data.embedded is not None
            kind = data.embedded.schema_type
            if subject is None:
                draft = await asyncio.to_thread(
                    compile_schema, registry.registry, Schema(None, None, kind, data.schema)
                )
                subject = _record_subject(topic, data.strategy, draft)
            return await self._register(subject, data.schema, kind), subject
        if data.schema_id is not None:
            if subject is None:
                schema = await registry.schema(data.schema_id)
                subject = _record_subject(topic, data.strategy, await self._compile(schema, data.embedded))
            return await self._schema_of_subject(subject, data.schema_id), subject
        if subject is None:
            raise bad_request(f"Cannot use schema_subject_strategy={data.strategy} without schema_id or schema.")
        if data.schema_version is not None and data.schema_version > 0:
            try:
                return await registry.version(subject, data.schema_version), subject
            except UnknownSchema:
                reason = f"Schema does not exist for subject: {subject}, version: {data.schema_version}"
                raise bad_request(reason) from None
        return await self._latest(subject), subject

    async def _schema_of_subject(self, subject: str, schema_id: int) -> Schema:
        """Return the schema of an id, which the subject must have: its levels hold for the topic."""
        schema = self._by_id.get((subject, schema_id))
        if schema is None:
            registry = self.require()
            schema = await registry.schema(schema_id, subject)
            schema = schema._replace(version=await registry.find_version(subject, schema))
            if len(self._by_id) >= _CACHED_MAX:
                self._by_id.clear()
            self._by_id[subject, schema_id] = schema
        return schema

    async def _latest(self, subject: str) -> Schema:
        schema, fetched_s = self._newest.get(subject, (None, 0.0))
        now_s = time.monotonic()
        if schema is None or now_s - fetched_s > _NEWEST_CACHED_S:
            schema = await self.require().latest(subject)
            if len(self._newest) >= _CACHED_MAX:
                self._newest.clear()
            self._newest[subject] = schema, now_s
        return schema

    async def _register(self, subject: str, text: str, kind: str) -> Schema:
        schema = self._registered.get((subject, text, kind))
        if schema is None:
            schema = await self.require().register(subject, text, kind)
            if len(self._registered) >= _CACHED_MAX:
                self._registered.clear()  # bounds memory, and costs a request that changes nothing
            self._registered[subject, text, kind] = schema
        return schema

    async def _compile(self, schema: Schema, embedded: EmbeddedFormat | None) -> SchemaCodec:
        if embedded is not None and schema.kind != embedded.schema_type:
            raise invalid_schema(f"schema {schema.id} is {schema.kind}, not {embedded.schema_type}")
        codec = self._codecs.get(schema)
        if codec is None:
            try:
                # In a thread: it parses the schema, and requests those that it refers to.
                codec = await asyncio.to_thread(compile_schema, self.require().registry, schema)
            except BadRecord as error:
                raise invalid_schema(str(error)) from None
            if len(self._codecs) >= _CACHED_MAX:
                self._codecs.clear()
            self._codecs[schema] = codec
        return codec

    # Reading

    async def print_record(self, record: Record[Any, Any], embedded: EmbeddedFormat) -> tuple[str, str]:
        """Return the JSON texts of key and value."""
        headers = dict(record.headers)
        return (
            await self._print(record.key, headers.get(HEADERS["key"]), embedded),
            await self._print(record.value, headers.get(HEADERS["value"]), embedded),
        )

    async def _print(self, data: bytes | None, header: bytes | None, embedded: EmbeddedFormat) -> str:
        if data is None:
            return "null"
        try:
            frame = unframe(data, header)
            schema = await self.require().schema(frame.schema)
            refuse_rules(schema, READ)
            codec = await self._compile(schema, embedded)
            return dump_json(codec.to_json(frame, tagged=True)).decode()
        except (BadRecord, ConfigError) as error:
            raise conversion_failed(str(error)) from None


def _refuse_to_write(schema: Schema) -> None:
    """Refuse a schema whose rules a client would have to execute: an encrypted field would be written in clear text."""
    try:
        refuse_rules(schema, WRITE)
    except RuleNotServed as error:
        raise serialization_failed(str(error)) from None


def _encode(codec: SchemaCodec | None, value: Any) -> bytes | None:
    if codec is None or value is None:
        return None
    try:
        payload = codec.from_json(value, tagged=True)
    except BadRecord as error:
        raise conversion_failed(str(error)) from None
    schema_id = codec.schema.id
    assert schema_id is not None
    return prefix(schema_id) + (codec.path or b"") + payload


def _record_subject(topic: str, strategy: str, codec: SchemaCodec) -> str:
    name = codec.full_name
    if not name:
        raise invalid_schema(f"it has no name, which subject_name_strategy={strategy} needs")
    return name if strategy == "RECORD_NAME" else f"{topic}-{name}"


def _refuse_schema(error: Exception, subject: str) -> Exception:
    # An unreachable registry may come back: 50003, by the application.
    if isinstance(error, HttpRefusal | RegistryUnreachable):
        return error
    if isinstance(error, RegistryError) and error.error_code == _INVALID_SCHEMA:
        return invalid_schema(str(error))
    if isinstance(error, RegistryError) and error.status == HTTPStatus.FORBIDDEN:
        return schema_forbidden(str(error))
    return serialization_failed(f"{subject}: {error}")
