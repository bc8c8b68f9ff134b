"""Client of a schema registry's REST interface; schemas are cached by process.

Blocking, because Spark's tasks are; nothing here runs on an event loop.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.pipeline.core.registry_framing import BadRecord

KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
# Limits on what an answer of the registry can make this process allocate or request.
_RESPONSE_BYTES_MAX = 16 << 20
_ATTEMPTS_MAX = 4
_TIMEOUT_S = 30.0
_CACHED_MAX = 10_000
_UNKNOWN_CACHED_S = 10.0
_REFERENCES_MAX = 500
_SETTINGS = ("schema.registry.url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")


class RegistryError(KlammError):
    """Raised when the registry fails or rejects a request. The record is not at fault, so the task is retried."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class UnknownSchema(BadRecord):
    """Raised when the registry does not have the requested schema."""


class Reference(NamedTuple):
    """A reference from one schema to another."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as the registry has it."""

    id: int | None
    guid: uuid.UUID | None
    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Schema:
        """Parse a response; registries omit the type of Avro schemas."""
        try:
            references = tuple(
                Reference(reference["name"], reference["subject"], int(reference["version"]))
                for reference in answer.get("references") or ()
            )
            guid = answer.get("guid")
            kind = answer.get("schemaType") or "AVRO"
            parsed_guid = uuid.UUID(guid) if guid else None
            return cls(answer.get("id"), parsed_guid, kind, answer["schema"], references)
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"the registry's response is not a schema: {error!r}") from None


class RegistrySettings(NamedTuple):
    """Addresses and credentials of a registry."""

    urls: tuple[str, ...]
    basic: str | None = None
    token: str | None = None
    ca: str | None = None


def parse_settings(registry: str | Mapping[str, str]) -> RegistrySettings:
    """Parse a URL, or the settings that Confluent's serializers take."""
    options = {"schema.registry.url": registry} if isinstance(registry, str) else dict(registry)
    for name in options:
        if name not in _SETTINGS:
            raise ConfigError(f"{name} is not a registry setting; there are {', '.join(_SETTINGS)}")
    addresses = options.get("schema.registry.url", "").split(",")
    urls = tuple(address.strip().rstrip("/") for address in addresses if address.strip())
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ConfigError("schema.registry.url names the registry: http://host:8081")
    return RegistrySettings(
        urls, options.get("basic.auth.user.info"), options.get("bearer.auth.token"), options.get("ssl.ca.location")
    )


class Registry:
    """One registry with a cache; tests pass their own `clock` and `pause`."""

    def __init__(
        self,
        settings: RegistrySettings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pause = pause
        self._schemas: dict[int | uuid.UUID | tuple[str, int], Schema] = {}
        self._unknown: dict[int | uuid.UUID, float] = {}
        self._tls = ssl.create_default_context(cafile=settings.ca)

    def schema(self, name: int | uuid.UUID) -> Schema:
        """Return the schema of an id or GUID; UnknownSchema, which is cached for some seconds, when there is none."""
        schema = self._schemas.get(name)
        if schema is not None:
            return schema
        since = self._unknown.get(name)
        if since is not None and self._clock() - since < _UNKNOWN_CACHED_S:
            raise UnknownSchema(f"the registry has no schema {name}")
        path = f"/schemas/guids/{name}" if isinstance(name, uuid.UUID) else f"/schemas/ids/{name}"
        try:
            schema = Schema.parse(self._request(path, **_SERIALIZED))
        except UnknownSchema:
            # Cached for a short time: a topic of bad records must not flood the registry with requests.
            _cache(self._unknown, name, self._clock())
            raise UnknownSchema(f"the registry has no schema {name}") from None
        # Without an expiry: the schema of an id never changes.
        _cache(self._schemas, name, schema)
        return schema

    def latest(self, subject: str) -> Schema:
        """Return the newest schema of a subject; not cached."""
        quoted = urllib.parse.quote(subject, safe="")
        try:
            return Schema.parse(self._request(f"/subjects/{quoted}/versions/latest", **_SERIALIZED))
        except UnknownSchema:
            raise ConfigError(f"the registry has no subject {subject}") from None

    def register(self, subject: str, text: str, kind: str) -> Schema:
        """Register a schema as the newest of a subject; registering the same schema again changes nothing."""
        if kind not in KINDS:
            raise ConfigError(f"{kind} is not a schema type; there are {', '.join(KINDS)}")
        quoted = urllib.parse.quote(subject, safe="")
        body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        answer = self._request(f"/subjects/{quoted}/versions", body)
        return Schema.parse({"schemaType": kind, "schema": text, **answer})

    def references(self, schema: Schema) -> dict[str, Schema]:
        """Return the schemas that a schema refers to, directly and indirectly, the innermost first."""
        references: dict[str, Schema] = {}
        self._collect(schema, references)
        return references

    def _collect(self, schema: Schema, references: dict[str, Schema]) -> None:
        for reference in schema.references:
            if reference.name in references:
                continue
            if len(references) >= _REFERENCES_MAX:
                raise RegistryError(f"a schema refers to more than {_REFERENCES_MAX} others")
            key = (reference.subject, reference.version)
            referenced = self._schemas.get(key)
            if referenced is None:
                quoted = urllib.parse.quote(reference.subject, safe="")
                referenced = Schema.parse(
                    self._request(f"/subjects/{quoted}/versions/{reference.version}", **_SERIALIZED)
                )
                _cache(self._schemas, key, referenced)
            references[reference.name] = referenced  # entered before its own references, so that a cycle ends
            self._collect(referenced, references)
            # Moved behind its own references: Avro and Protobuf need the innermost first.
            references[reference.name] = references.pop(reference.name)

    def _request(self, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        reason = ""
        # All requests are idempotent, registration included, so one whose answer was lost is repeated.
        for attempt in range(_ATTEMPTS_MAX):
            if attempt:
                self._pause(0.2 * 2**attempt)
            # Any of the addresses may answer: the next one is tried without a pause.
            for url in self._settings.urls:
                address = f"{url}{path}?{urllib.parse.urlencode(query)}" if query else f"{url}{path}"
                try:
                    return self._send(address, body)
                except urllib.error.HTTPError as error:
                    with error:
                        message = _error_message(error)
                    if error.code == 404:
                        raise UnknownSchema(message) from None
                    # Other client errors do not go away by trying again.
                    if error.code not in (408, 429) and error.code < 500:
                        raise RegistryError(f"the registry rejects {path}: {error.code} {message}") from None
                    reason = f"{error.code} {message}"
                except OSError as error:
                    reason = str(error)
        raise RegistryError(f"the registry at {', '.join(self._settings.urls)} does not answer {path}: {reason}")

    def _send(self, url: str, body: Any) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data)  # noqa: S310 - parse_settings() has checked the scheme
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if data is not None:
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if self._settings.basic is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(self._settings.basic.encode()).decode())
        elif self._settings.token is not None:
            request.add_header("Authorization", f"Bearer {self._settings.token}")
        tls = self._tls if url.startswith("https:") else None
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as response:  # noqa: S310
            content = response.read(_RESPONSE_BYTES_MAX + 1)
        if len(content) > _RESPONSE_BYTES_MAX:
            raise RegistryError(f"the registry's response is longer than {_RESPONSE_BYTES_MAX} bytes")
        try:
            parsed = json.loads(content)
        except ValueError:
            raise RegistryError(f"the registry's response is not JSON: {content[:80]!r}") from None
        if not isinstance(parsed, dict):
            raise RegistryError(f"the registry's response is not a JSON object: {content[:80]!r}")
        return parsed


_SERIALIZED: Final = {"format": "serialized"}
"""Requests Protobuf schemas as compiled descriptors; ignored for other kinds, and by registries without support."""


def _cache(cache: dict[Any, Any], name: Any, value: Any) -> None:
    if len(cache) >= _CACHED_MAX:
        del cache[next(iter(cache))]  # a dict is in order of insertion: the oldest goes
    cache[name] = value


def _error_message(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, ValueError):
        body = json.loads(error.read(_RESPONSE_BYTES_MAX))
        if isinstance(body, dict):
            return str(body.get("message", ""))
    return str(error.reason)


_registries: dict[RegistrySettings, Registry] = {}


def shared_registry(settings: RegistrySettings) -> Registry:
    """Return the process's client of a registry, so that batches share its cache."""
    registry = _registries.get(settings)
    if registry is None:
        registry = _registries[settings] = Registry(settings)
    return registry
