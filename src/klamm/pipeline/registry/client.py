"""A registry over its REST interface: each schema is asked for once per process, and answers are kept.

Blocking, because tasks of Spark are; nothing here runs on an event loop.
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
_ANSWER_BYTES = 16 << 20
_TRIES = 4
_TIMEOUT_S = 30.0
_KEPT = 10_000
_UNKNOWN_FOR_S = 10.0
_REFERENCES_MAX = 500
_NAMES = ("schema.registry.url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")


class RegistryError(KlammError):
    """The registry did not answer, or refused: not the record's fault, so the task fails and is tried again."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, words)


class UnknownSchema(BadRecord):
    """The registry does not know the schema that was asked for."""


class Reference(NamedTuple):
    """Another schema that a schema names."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """As the registry has it."""

    id: int | None
    guid: uuid.UUID | None
    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Schema:
        """From an answer; Avro is not said, being the oldest."""
        try:
            references = tuple(
                Reference(each["name"], each["subject"], int(each["version"])) for each in found.get("references") or ()
            )
            guid = found.get("guid")
            kind = found.get("schemaType") or "AVRO"
            known = uuid.UUID(guid) if guid else None
            return cls(found.get("id"), known, kind, found["schema"], references)
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"the registry's answer is no schema: {error!r}") from None


class Settings(NamedTuple):
    """Where a registry is and who asks."""

    urls: tuple[str, ...]
    basic: str | None = None
    token: str | None = None
    ca: str | None = None


def parse_settings(registry: str | Mapping[str, str]) -> Settings:
    """From a URL, or from the settings that serializers take."""
    given = {"schema.registry.url": registry} if isinstance(registry, str) else dict(registry)
    for name in given:
        if name not in _NAMES:
            raise ConfigError(f"{name} is no setting of a registry; there are {', '.join(_NAMES)}")
    urls = tuple(each.strip().rstrip("/") for each in given.get("schema.registry.url", "").split(",") if each.strip())
    if not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ConfigError("schema.registry.url names the registry: http://host:8081")
    return Settings(
        urls, given.get("basic.auth.user.info"), given.get("bearer.auth.token"), given.get("ssl.ca.location")
    )


class Registry:
    """One registry, asked from one process; `clock` and `pause` are those of the machine unless told otherwise."""

    def __init__(
        self,
        where: Settings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._where = where
        self._clock = clock
        self._pause = pause
        self._schemas: dict[int | uuid.UUID | tuple[str, int], Schema] = {}
        self._unknown: dict[int | uuid.UUID, float] = {}
        self._tls = ssl.create_default_context(cafile=where.ca)

    def schema(self, name: int | uuid.UUID) -> Schema:
        """The schema of an id or GUID; Unknown when there is none, which is believed for some seconds."""
        found = self._schemas.get(name)
        if found is not None:
            return found
        since = self._unknown.get(name)
        if since is not None and self._clock() - since < _UNKNOWN_FOR_S:
            raise UnknownSchema(f"the registry has no schema {name}")
        path = f"/schemas/guids/{name}" if isinstance(name, uuid.UUID) else f"/schemas/ids/{name}"
        try:
            found = Schema.parse(self._ask(path, **_SERIALIZED))
        except UnknownSchema:
            _keep(self._unknown, name, self._clock())
            raise UnknownSchema(f"the registry has no schema {name}") from None
        _keep(self._schemas, name, found)
        return found

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject, now."""
        quoted = urllib.parse.quote(subject, safe="")
        try:
            return Schema.parse(self._ask(f"/subjects/{quoted}/versions/latest", **_SERIALIZED))
        except UnknownSchema:
            raise ConfigError(f"the registry has no subject {subject}") from None

    def register(self, subject: str, text: str, kind: str) -> Schema:
        """Make a schema the newest of a subject; the same one again is the same one."""
        if kind not in KINDS:
            raise ConfigError(f"{kind} is no kind of schema; there are {', '.join(KINDS)}")
        quoted = urllib.parse.quote(subject, safe="")
        asked = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        found = self._ask(f"/subjects/{quoted}/versions", asked)
        return Schema.parse({"schemaType": kind, "schema": text, **found})

    def references(self, schema: Schema) -> dict[str, Schema]:
        """What a schema names, and what that names, the innermost first."""
        found: dict[str, Schema] = {}
        self._collect(schema, found)
        return found

    def _collect(self, schema: Schema, found: dict[str, Schema]) -> None:
        for reference in schema.references:
            if reference.name in found:
                continue
            if len(found) >= _REFERENCES_MAX:
                raise RegistryError(f"a schema refers to more than {_REFERENCES_MAX} others")
            key = (reference.subject, reference.version)
            other = self._schemas.get(key)
            if other is None:
                quoted = urllib.parse.quote(reference.subject, safe="")
                other = Schema.parse(self._ask(f"/subjects/{quoted}/versions/{reference.version}", **_SERIALIZED))
                _keep(self._schemas, key, other)
            found[reference.name] = other  # a circle ends here
            self._collect(other, found)
            found[reference.name] = found.pop(reference.name)

    def _ask(self, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        words = ""
        for turn in range(_TRIES):
            if turn:
                self._pause(0.2 * 2**turn)
            for url in self._where.urls:
                whole = f"{url}{path}?{urllib.parse.urlencode(query)}" if query else f"{url}{path}"
                try:
                    return self._once(whole, body)
                except urllib.error.HTTPError as error:
                    with error:
                        told = _told(error)
                    if error.code == 404:
                        raise UnknownSchema(told) from None
                    if error.code not in (408, 429) and error.code < 500:
                        raise RegistryError(f"the registry refuses {path}: {error.code} {told}") from None
                    words = f"{error.code} {told}"
                except OSError as error:
                    words = str(error)
        raise RegistryError(f"the registry at {', '.join(self._where.urls)} does not answer {path}: {words}")

    def _once(self, url: str, body: Any) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(url, data)  # noqa: S310 - settings() has looked at the scheme
        asked.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if data is not None:
            asked.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if self._where.basic is not None:
            asked.add_header("Authorization", "Basic " + base64.b64encode(self._where.basic.encode()).decode())
        elif self._where.token is not None:
            asked.add_header("Authorization", f"Bearer {self._where.token}")
        tls = self._tls if url.startswith("https:") else None
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S, context=tls) as answer:  # noqa: S310
            found = answer.read(_ANSWER_BYTES + 1)
        if len(found) > _ANSWER_BYTES:
            raise RegistryError(f"the registry's answer is longer than {_ANSWER_BYTES} bytes")
        try:
            parsed = json.loads(found)
        except ValueError:
            raise RegistryError(f"the registry's answer is no JSON: {found[:80]!r}") from None
        if not isinstance(parsed, dict):
            raise RegistryError(f"the registry's answer is no object: {found[:80]!r}")
        return parsed


_SERIALIZED: Final = {"format": "serialized"}
"""Protobuf as a compiled file, from registries that can; other kinds, and other registries, pass over it."""


def _keep(shelf: dict[Any, Any], name: Any, value: Any) -> None:
    if len(shelf) >= _KEPT:
        del shelf[next(iter(shelf))]
    shelf[name] = value


def _told(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(error.read(_ANSWER_BYTES))
        if isinstance(found, dict):
            return str(found.get("message", ""))
    return str(error.reason)


_registries: dict[Settings, Registry] = {}


def shared_registry(where: Settings) -> Registry:
    """The registry of this process: what one batch has asked, the next one knows."""
    found = _registries.get(where)
    if found is None:
        found = _registries[where] = Registry(where)
    return found
