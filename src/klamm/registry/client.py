"""Client of any registry with Confluent's HTTP interface; schemas are cached by process.

`Registry` is blocking, because Spark's tasks and the command line are, and may be used from several threads;
`AsyncRegistry` is the same for an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from http.client import HTTPMessage
from typing import IO, Any, Final, NamedTuple

from klamm.client.errors import KafkaError, RetriableError
from klamm.model.errors import ConfigError, ErrorCode
from klamm.registry.client_settings import RegistrySettings, parse_settings
from klamm.registry.framing import BadRecord
from klamm.registry.rules import RuleSet
from klamm.registry.store.content import SchemaReference

__all__ = [
    "AsyncRegistry",
    "Registry",
    "RegistryError",
    "RegistrySettings",
    "RegistryUnreachable",
    "Schema",
    "UnknownSchema",
    "parse_settings",
    "shared_registry",
    "subject_path",
]

KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
# Limits on what an answer of the registry can make this process allocate or request.
_RESPONSE_BYTES_MAX = 16 << 20
_UNKNOWN_CACHED_S = 10.0
_REFERENCES_MAX = 500
_PAUSE_S, _PAUSE_S_MAX = 0.4, 5.0


class RegistryError(KafkaError):
    """Raised when the registry fails or rejects a request. The record is not at fault, so the task is retried."""

    def __init__(self, message: str, status: int | None = None, error_code: int | None = None) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        self.status = status
        """The status of the HTTP answer; None if there was none."""
        self.error_code = error_code
        """The registry's own error code, such as 42201."""


class RegistryUnreachable(RegistryError, RetriableError):
    """Raised when no address of the registry answers; the same call may succeed later."""


class UnknownSchema(BadRecord):
    """Raised when the registry does not have the requested schema."""

    error_code: int | None = None
    """The registry's own error code, such as 40403."""


class Schema(NamedTuple):
    """A schema as the registry has it."""

    id: int | None
    guid: uuid.UUID | None
    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    version: int | None = None
    """The version in the subject by which it was requested."""
    rules: RuleSet | None = None
    """What clients have to do to values; None if there are no rules."""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Schema:
        """Parse a response; registries omit the type of Avro schemas."""
        try:
            references = tuple(
                SchemaReference(reference["name"], reference["subject"], int(reference["version"]))
                for reference in answer.get("references") or ()
            )
            guid = answer.get("guid")
            kind = answer.get("schemaType") or "AVRO"
            parsed_guid = uuid.UUID(guid) if guid else None
            rules = RuleSet.parse(answer.get("ruleSet"))
            return cls(answer.get("id"), parsed_guid, kind, answer["schema"], references, answer.get("version"), rules)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"the registry's response is not a schema: {error!r}") from None


class Registry:
    """One registry with a cache; tests pass their own `clock` and `pause`."""

    def __init__(
        self,
        settings: RegistrySettings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._schemas: dict[Hashable, Schema] = {}
        self._unknown: dict[Hashable, float] = {}
        self._requested: dict[Hashable, Future[Schema]] = {}
        self._opener = urllib.request.build_opener(
            _OwnRedirects, urllib.request.HTTPSHandler(context=settings.tls_context())
        )

    def schema(self, name: int | uuid.UUID, subject: str | None = None) -> Schema:
        """Return the schema of an id or GUID; UnknownSchema, which is cached for some seconds, when there is none.

        Ids are counted by context: a `subject` such as `:.team:orders` chooses the context of the id.
        """
        schema = self.cached_schema(name, subject)
        if schema is not None:
            return schema
        return self._request_once(_schema_key(name, subject), functools.partial(self._fetch_schema, name, subject))

    def cached_schema(self, name: int | uuid.UUID, subject: str | None = None) -> Schema | None:
        """Return the schema of an id or GUID without a request; None if that is needed, UnknownSchema if it failed."""
        key = _schema_key(name, subject)
        schema = self._schemas.get(key)
        if schema is None:
            since = self._unknown.get(key)
            if since is not None and self._clock() - since < _UNKNOWN_CACHED_S:
                raise UnknownSchema(f"the registry has no schema {name}")
        return schema

    def _fetch_schema(self, name: int | uuid.UUID, subject: str | None) -> Schema:
        path = f"/schemas/guids/{name}" if isinstance(name, uuid.UUID) else f"/schemas/ids/{name}"
        context = {} if _context(subject) is None else {"subject": subject or ""}
        key = _schema_key(name, subject)
        try:
            schema = Schema.parse(
                {"id": name if isinstance(name, int) else None, **self._request(path, **_SERIALIZED, **context)}
            )
        except UnknownSchema:
            # Cached for a short time: a topic of bad records must not flood the registry with requests.
            self._cache(self._unknown, key, self._clock())
            raise UnknownSchema(f"the registry has no schema {name}") from None
        # Without an expiry: the schema of an id never changes.
        self._cache(self._schemas, key, schema)
        return schema

    def _request_once(self, key: Hashable, request: Callable[[], Schema]) -> Schema:
        """Call `request`, unless another thread does so for the same key: then return what it gets."""
        with self._lock:
            future = self._requested.get(key)
            is_first = future is None
            if future is None:
                future = self._requested[key] = Future()
        if not is_first:
            return future.result()
        try:
            future.set_result(request())
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._requested[key]
        return future.result()

    def latest(self, subject: str) -> Schema:
        """Return the newest schema of a subject; not cached."""
        try:
            return Schema.parse(self._request(subject_path(subject, "versions", "latest"), **_SERIALIZED))
        except UnknownSchema:
            raise ConfigError(f"the registry has no subject {subject}") from None

    def version(self, subject: str, number: int) -> Schema:
        """Return a version of a subject, also a soft-deleted one; cached, for it never changes its meaning."""
        schema = self._schemas.get((subject, number))
        if schema is None:
            schema = self._request_once((subject, number), functools.partial(self._fetch_version, subject, number))
        return schema

    def _fetch_version(self, subject: str, number: int) -> Schema:
        path = subject_path(subject, "versions", str(number))
        # Deleted ones as well: records that use them are still there.
        schema = Schema.parse(self._request(path, **_SERIALIZED, deleted="true"))
        if number > 0:  # -1 is the latest
            self._cache(self._schemas, (subject, number), schema)
        return schema

    def register(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: Iterable[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> Schema:
        """Register a schema as the newest of a subject; registering the same schema again changes nothing."""
        body = _schema_body(text, kind, references)
        answer = self._request(subject_path(subject, "versions"), body, **_normalize_query(normalize))
        return Schema.parse({**body, **answer, "schema": text})

    def look_up(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: Iterable[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> Schema:
        """Return id and version that a schema has in a subject; UnknownSchema if it is not there."""
        body = _schema_body(text, kind, references)
        answer = self._request(subject_path(subject), body, **_normalize_query(normalize), deleted="false")
        return Schema.parse({**body, **answer, "schema": text})

    def find_version(self, subject: str, schema: Schema) -> int:
        """Return the version that the schema of an id has in a subject, not cached; UnknownSchema if it has none."""
        context = {} if _context(subject) is None else {"subject": subject}
        with contextlib.suppress(UnknownSchema):
            uses = self.call("GET", f"/schemas/ids/{schema.id}/versions", **context)
            for use in uses if isinstance(uses, list) else ():
                if isinstance(use, dict) and use.get("subject") == subject and isinstance(use.get("version"), int):
                    return int(use["version"])
        # By its content: the subject may be an alias of another one, or have the schema by another id.
        return self.look_up(subject, schema.text, schema.kind, schema.references).version or 0

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Send any request and return its JSON; UnknownSchema for a 404, RegistryError for other refusals.

        A request whose answer was lost is repeated, so it has to be idempotent.
        """
        return self._attempt(path, body, query, method)

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
            referenced = self.version(reference.subject, reference.version)
            references[reference.name] = referenced  # entered before its own references, so that a cycle ends
            self._collect(referenced, references)
            # Moved behind its own references: Avro and Protobuf need the innermost first.
            references[reference.name] = references.pop(reference.name)

    def _cache(self, cache: dict[Hashable, Any], key: Hashable, value: Any) -> None:
        with self._lock:
            if len(cache) >= self.settings.cache_capacity:
                del cache[next(iter(cache))]  # a dict is in order of insertion: the oldest goes
            cache[key] = value

    def _request(self, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        parsed = self._attempt(path, body, query)
        if not isinstance(parsed, dict):
            raise RegistryError(f"the registry's response is not a JSON object: {str(parsed)[:80]}")
        return parsed

    def _attempt(self, path: str, body: Any, query: Mapping[str, str], method: str | None = None) -> Any:
        reason = ""
        # All requests are idempotent, registration included, so one whose answer was lost is repeated.
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self._pause(min(_PAUSE_S * 2 ** (attempt - 1), _PAUSE_S_MAX))
            # Any of the addresses may answer: the next one is tried without a pause.
            for url in self.settings.urls:
                address = f"{url}{path}?{urllib.parse.urlencode(query)}" if query else f"{url}{path}"
                try:
                    return self._send(address, body, method)
                except urllib.error.HTTPError as error:
                    with error:
                        error_code, message = _read_error(error)
                    if error.code == 404:
                        unknown = UnknownSchema(message)
                        unknown.error_code = error_code
                        raise unknown from None
                    # Other client errors do not go away by trying again.
                    if error.code not in (408, 429) and error.code < 500:
                        rejected = f"the registry rejects {path}: {error.code} {message}"
                        raise RegistryError(rejected, error.code, error_code) from None
                    reason = f"{error.code} {message}"
                except OSError as error:
                    reason = str(error)
        raise RegistryUnreachable(f"the registry at {', '.join(self.settings.urls)} does not answer {path}: {reason}")

    def _send(self, url: str, body: Any, method: str | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)  # noqa: S310 - parse_settings() checks the scheme
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        # Otherwise old registries refuse a request with a field that is newer than they are.
        request.add_header("Confluent-Accept-Unknown-Properties", "true")
        if data is not None:
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        authorization = self.settings.authorization()
        if authorization is not None:
            request.add_header("Authorization", authorization)
        with self._opener.open(request, timeout=self.settings.timeout_s) as response:
            content = response.read(_RESPONSE_BYTES_MAX + 1)
        if len(content) > _RESPONSE_BYTES_MAX:
            raise RegistryError(f"the registry's response is longer than {_RESPONSE_BYTES_MAX} bytes")
        try:
            return json.loads(content or b"null")
        except ValueError:
            raise RegistryError(f"the registry's response is not JSON: {content[:80]!r}") from None


class _OwnRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the same scheme, host and port: urllib would send the credentials to any other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request; RegistryError for another address."""
        if urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            raise RegistryError(f"the registry redirects to {newurl}: name that address if it is right", code)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def subject_path(subject: str, *more: str) -> str:
    """Return a path below /subjects; a subject may contain any character. UnknownSchema for `.` and `..`."""
    # Encoding does not help: servers and proxies resolve %2E%2E as well, so the request would be another one.
    if subject in (".", ".."):
        raise UnknownSchema(f"there is no subject {subject}")
    return "/".join(("/subjects", urllib.parse.quote(subject, safe=""), *more))


_SERIALIZED: Final = {"format": "serialized"}
"""Requests Protobuf schemas as compiled descriptors; ignored for other kinds, and by registries without support."""


def _schema_body(text: str, kind: str, references: Iterable[SchemaReference]) -> dict[str, Any]:
    if kind not in KINDS:
        raise ConfigError(f"{kind} is not a schema type; there are {', '.join(KINDS)}")
    body: dict[str, Any] = {"schema": text}
    if kind != "AVRO":
        body["schemaType"] = kind
    listed = [reference.to_json() for reference in references]
    return {**body, "references": listed} if listed else body


def _normalize_query(normalize: bool) -> dict[str, str]:
    return {"normalize": "true"} if normalize else {}


def _context(subject: str | None) -> str | None:
    """Return the context of a subject such as `:.team:orders`; None for the default one."""
    if subject is None or not subject.startswith(":."):
        return None
    return subject[1:].partition(":")[0]


def _schema_key(name: int | uuid.UUID, subject: str | None) -> Hashable:
    return name, _context(subject)


def _read_error(error: urllib.error.HTTPError) -> tuple[int | None, str]:
    with contextlib.suppress(OSError, ValueError):
        body = json.loads(error.read(_RESPONSE_BYTES_MAX))
        if isinstance(body, dict):
            code = body.get("error_code")
            return code if isinstance(code, int) else None, str(body.get("message", ""))
    return None, str(error.reason)


class AsyncRegistry:
    """A registry for an event loop: what is cached is returned at once, requests run in threads."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    async def schema(self, name: int | uuid.UUID, subject: str | None = None) -> Schema:
        """As `Registry.schema`."""
        schema = self.registry.cached_schema(name, subject)
        return schema if schema is not None else await asyncio.to_thread(self.registry.schema, name, subject)

    async def latest(self, subject: str) -> Schema:
        """As `Registry.latest`."""
        return await asyncio.to_thread(self.registry.latest, subject)

    async def version(self, subject: str, number: int) -> Schema:
        """As `Registry.version`."""
        return await asyncio.to_thread(self.registry.version, subject, number)

    async def register(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: Iterable[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> Schema:
        """As `Registry.register`."""
        return await asyncio.to_thread(self.registry.register, subject, text, kind, references, normalize=normalize)

    async def look_up(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: Iterable[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> Schema:
        """As `Registry.look_up`."""
        return await asyncio.to_thread(self.registry.look_up, subject, text, kind, references, normalize=normalize)

    async def find_version(self, subject: str, schema: Schema) -> int:
        """As `Registry.find_version`."""
        return await asyncio.to_thread(self.registry.find_version, subject, schema)

    async def references(self, schema: Schema) -> dict[str, Schema]:
        """As `Registry.references`."""
        return {} if not schema.references else await asyncio.to_thread(self.registry.references, schema)

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """As `Registry.call`."""
        return await asyncio.to_thread(self.registry.call, method, path, body, **query)


_registries: dict[RegistrySettings, Registry] = {}
_registries_lock = threading.Lock()


def shared_registry(settings: RegistrySettings) -> Registry:
    """Return the process's client of a registry, so that batches share its cache."""
    with _registries_lock:
        registry = _registries.get(settings)
        if registry is None:
            registry = _registries[settings] = Registry(settings)
        return registry
