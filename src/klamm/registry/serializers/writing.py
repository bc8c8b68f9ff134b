"""What serializers have in common: the subject of a record, the id of its schema there, and the framing."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from klamm.client.serde import LookupNeeded, RecordContext
from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, RegistryError, RegistryUnreachable, Schema, UnknownSchema, subject_path
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import HEADERS, BadRecord, header, prefix
from klamm.registry.rules import DOMAIN, ENCODING, WRITE, RuleStep, plan_rules
from klamm.registry.serializers import errors
from klamm.registry.serializers.settings import HEADER, RegistryLike, read_settings
from klamm.registry.store.content import SchemaReference

_log = logging.getLogger(__name__)
_SUBJECTS_MAX = 1000
_STALE_S = 10.0
"""How long a newest schema that is too old is used on while the registry does not answer."""


class ValueEncoder(Protocol):
    """The part of a codec that a serializer needs."""

    @property
    def path(self) -> bytes | None:
        """The bytes between the schema's id and the payload."""

    def encode_value(self, value: Any) -> bytes:
        """Encode a value."""


class SchemaWriter(NamedTuple):
    """A schema of a subject, ready to write records."""

    encoder: ValueEncoder
    prefix: bytes
    header: bytes | None
    """None with framing in the prefix."""
    expires: float
    domain_rules: tuple[RuleStep, ...] = ()
    encoding_rules: tuple[RuleStep, ...] = ()

    def encode(self, context: RecordContext, subject: str, value: Any) -> bytes:
        """Execute the rules and encode a value."""
        for step in self.domain_rules:
            value = step.apply(value, subject, *context)
        payload: Any = self.encoder.encode_value(value)
        for step in self.encoding_rules:
            payload = step.apply(payload, subject, *context)
        return bytes(payload)


class SchemaSerializer:
    """Base class; `kind` is the schema type. Safe to share by threads, and by keys and values."""

    kind: ClassVar[str]

    def __init__(
        self,
        registry: RegistryLike,
        schema: str | None,
        references: Iterable[SchemaReference | tuple[str, str, int]],
        to_dict: Callable[[Any], Any] | None,
        config: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._settings = read_settings(registry, config, keywords)
        self._to_dict = to_dict
        self._clock = clock
        self._writers: dict[tuple[str, str], SchemaWriter] = {}
        self._own: Any = None
        """The codec of the schema that was given; None until its references are read."""
        self._given: Schema | None = None
        if schema is not None:
            listed = tuple(SchemaReference(*reference) for reference in references)
            self._given = Schema(None, None, self.kind, schema, listed)
            if not listed:
                self._compile_own()
        elif self._settings.auto_register and self._needs_schema():
            raise ConfigError("a serializer without a schema needs use.latest.version or use.schema.id")

    def _needs_schema(self) -> bool:
        return True

    @property
    def registry(self) -> Registry:
        """The client of the registry."""
        return self._registry

    # Calling

    def serialize_record(self, context: RecordContext, value: Any) -> bytes | None:
        """Serialize without waiting; LookupNeeded if the schema has to be registered or looked up first."""
        if value is None:
            return None
        if self._to_dict is not None:
            value = self._to_dict(value)
        subject = self._settings.strategies[context.part](context, self._record_name(value))
        writer = self._writers.get((subject, context.part))
        if writer is None or writer.expires <= self._clock():
            raise LookupNeeded(functools.partial(self._look_up, context, subject, value, writer))
        try:
            payload = writer.encode(context, subject, value)
        except BadRecord as error:
            raise BadRecord(f"subject {subject}: {error.message}") from None
        if writer.header is None:
            return writer.prefix + payload
        context.headers.append((HEADERS[context.part], writer.header))
        return payload

    def serialize(self, topic: str, value: Any, part: str = "value", headers: list[Any] | None = None) -> bytes | None:
        """Serialize a value for a topic, and block for the registry; a framing by header appends to `headers`."""
        context = RecordContext(topic, part, [] if headers is None else headers)
        self._check_headers(context, headers)
        while True:
            try:
                return self.serialize_record(context, value)
            except LookupNeeded as needed:
                needed.look_up()

    async def serialize_async(
        self, topic: str, value: Any, part: str = "value", headers: list[Any] | None = None
    ) -> bytes | None:
        """As `serialize`, for an event loop."""
        context = RecordContext(topic, part, [] if headers is None else headers)
        self._check_headers(context, headers)
        while True:
            try:
                return self.serialize_record(context, value)
            except LookupNeeded as needed:
                await asyncio.to_thread(needed.look_up)

    def __call__(self, value: Any, context: Any) -> bytes | None:
        """Serialize as confluent-kafka's producers call it, with its SerializationContext."""
        return self.serialize(
            context.topic, value, str(getattr(context.field, "value", context.field)), context.headers
        )

    def _check_headers(self, context: RecordContext, headers: list[Any] | None) -> None:
        if headers is None and self._settings.framings[context.part] == HEADER:
            raise ConfigError("schema.id.serializer=header needs a list of headers to append to")

    # Schemas

    def _record_name(self, value: Any) -> str | None:
        """Return the full name of a value's record; LookupNeeded as long as the references are not read."""
        del value
        if self._given is None:
            return None
        if self._own is None:
            raise LookupNeeded(self._compile_own)
        name: str | None = self._own.full_name
        return name

    def _compile_own(self) -> None:
        assert self._given is not None
        try:
            self._own = compile_schema(self._registry, self._given)
        except BadRecord as error:
            raise ConfigError(str(error.message).replace("schema None is", "this is")) from None

    def _look_up(self, context: RecordContext, subject: str, value: Any, old: SchemaWriter | None) -> None:
        try:
            schema = self._find_schema(context, subject, value)
        except RegistryUnreachable:
            if old is None:
                raise
            # The newest schema has expired, which is no reason to stop writing with it.
            _log.warning("the newest schema of subject %s was not refreshed: the registry does not answer", subject)
            self._writers[subject, context.part] = old._replace(expires=self._clock() + _STALE_S)
            return
        writer = self._make_writer(context, subject, schema, value)
        if len(self._writers) >= _SUBJECTS_MAX:
            self._writers.clear()
        self._writers[subject, context.part] = writer

    def _find_schema(self, context: RecordContext, subject: str, value: Any) -> Schema:
        settings, registry = self._settings, self._registry
        try:
            if settings.schema_id is not None:
                return registry.schema(settings.schema_id, subject)
            if settings.use_latest:
                return registry.latest(subject)
            if settings.latest_metadata is not None:
                return self._latest_with_metadata(subject, settings.latest_metadata)
        except (UnknownSchema, ConfigError):
            raise errors.no_subject(context.topic, subject) from None
        own = self._own_schema(context, value)
        method = registry.register if settings.auto_register else registry.look_up
        try:
            return method(subject, own.text, own.kind, own.references, normalize=settings.normalize)
        except UnknownSchema as error:
            raise errors.not_registered(context.topic, subject, error.error_code) from None
        except RegistryUnreachable:
            raise
        except RegistryError as error:
            raise errors.reject(context.topic, subject, error) from None

    def _latest_with_metadata(self, subject: str, metadata: Mapping[str, str]) -> Schema:
        pairs = [("key", key) for key in metadata] + [("value", value) for value in metadata.values()]
        path = f"{subject_path(subject, 'metadata')}?{urllib.parse.urlencode(pairs)}"
        return Schema.parse(self._registry.call("GET", path))

    def _own_schema(self, context: RecordContext, value: Any) -> Schema:
        """Return what is registered for a value."""
        del context, value
        assert self._given is not None
        return self._given

    def _make_encoder(self, schema: Schema, value: Any) -> ValueEncoder:
        """Return what encodes values of a schema of the registry."""
        del value
        if schema.kind != self.kind:
            raise ConfigError(f"schema {schema.id} is {schema.kind}, and this serializer writes {self.kind}")
        # Also if it is the schema that was given: errors then name its id.
        return compile_schema(self._registry, schema)

    def _make_writer(self, context: RecordContext, subject: str, schema: Schema, value: Any) -> SchemaWriter:
        encoder = self._make_encoder(schema, value)
        path = encoder.path or b""
        takes_newest = self._settings.use_latest or self._settings.latest_metadata is not None
        expires = self._clock() + self._registry.settings.latest_ttl_s if takes_newest else math.inf
        if schema.id is None:
            raise RegistryError(f"the registry gave the schema of subject {subject} no id")
        rules = [plan_rules(schema, phase, WRITE, self._settings.executors) for phase in (DOMAIN, ENCODING)]
        if self._settings.framings[context.part] != HEADER:
            return SchemaWriter(encoder, prefix(schema.id) + path, None, expires, *rules)
        # Registries before version 8 answer a registration with the id only.
        guid = schema.guid or self._registry.schema(schema.id, subject).guid
        if guid is None:
            raise ConfigError("the registry has no GUIDs, which headers need: use schema.id.serializer=prefix")
        return SchemaWriter(encoder, b"", header(guid) + path, expires, *rules)
