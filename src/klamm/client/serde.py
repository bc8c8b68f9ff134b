"""Serializers and deserializers: the values of `key.serializer` and the like.

A serializer is a function of the value, or an object with `serialize(topic, value)` (a deserializer: `deserialize`);
the words bytes, str and json name the usual ones. None stays None: a null key is no key, a null value is a tombstone.

One that needs more than the topic has `serialize_record(context, value)` (`deserialize_record`): the context also says
whether it is the key, and has the headers. If it must wait, for a schema say, it raises LookupNeeded: the client waits
without blocking its event loop, and calls again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from klamm.client.errors import SerializationError
from klamm.client.types import Headers
from klamm.model.errors import ConfigError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


_LOOKUPS_MAX = 20
"""Lookups for one record; more means that they do not help."""


class RecordContext(NamedTuple):
    """What a serializer or deserializer may have to know of a record."""

    topic: str
    part: str
    """key or value."""
    headers: Any = ()
    """A deserializer gets the pairs of the record, a serializer a list to which it may append pairs."""


class LookupNeeded(Exception):
    """Raised by a serializer or deserializer that has to wait; `look_up` blocks, and then it is called again."""

    def __init__(self, look_up: Callable[[], object]) -> None:
        super().__init__("a lookup is needed")
        self.look_up = look_up


class SupportsSerialize(Protocol):
    """A serializer that is an object, such as one of a schema registry's client."""

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        """The bytes of a value."""


class SupportsDeserialize(Protocol[T_co]):
    """A deserializer that is an object."""

    def deserialize(self, topic: str, data: bytes, /) -> T_co:
        """The value of bytes."""


class SupportsColumns(Protocol):
    """A deserializer that also reads whole columns, for `poll_arrow` and `read_topic`."""

    def deserialize_column(self, context: RecordContext, values: Any, headers: Any) -> tuple[Any, Mapping[int, str]]:
        """Return the typed column of an Arrow column of bytes, and the errors of rows that cannot be read.

        `headers` is the column of headers. May block; all rows are of one topic.
        """


Serializer = Callable[[Any], bytes | None] | SupportsSerialize | str
"""Values of key.serializer and value.serializer; the words are bytes, str and json."""
Deserializer = Callable[[bytes], T] | SupportsDeserialize[T]
"""Values of key.deserializer and value.deserializer, besides the words bytes, str and json."""

Serialize = Callable[..., bytes | None]
"""(topic, value, list for headers) -> bytes"""
Deserialize = Callable[..., Any]
"""(topic, bytes, headers) -> value"""


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(memoryview(value))


def _text_bytes(value: Any) -> bytes:
    return str(value).encode()


_SERIALIZERS: dict[str, Callable[[Any], bytes]] = {
    "bytes": _as_bytes,
    "str": _text_bytes,
    "json": _json_bytes,
}
_DESERIALIZERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": bytes.decode,
    "json": json.loads,
}


def serializer(given: Any, name: str) -> Serialize | None:
    """The function for the setting `name`; None leaves values as they are."""
    return _wrap(given, name, "serialize", _SERIALIZERS)


def deserializer(given: Any, name: str) -> Deserialize | None:
    """The function for the setting `name`; None leaves bytes as they are."""
    return _wrap(given, name, "deserialize", _DESERIALIZERS)


def _wrap(given: Any, name: str, method: str, known: dict[str, Any]) -> Callable[..., Any] | None:
    # No function at all for bytes: the send and poll loops test for None, which is cheaper than a call per record.
    if given is None or given is bytes:
        return None
    # The type itself would turn b"x" into "b'x'".
    if given is str:
        given = "str"
    if isinstance(given, str):
        if given not in known:
            raise ConfigError(f"{name}={given} is not known: write {', '.join(known)} or give a function")
        function = known[given]
        return _guard(_of_value(function), name)
    # Before `callable`: serializers of schema registries are often both.
    if hasattr(given, f"{method}_record"):
        return _guard(_with_context(getattr(given, f"{method}_record"), name.partition(".")[0]), name)
    if hasattr(given, method):
        return _guard(_with_topic(getattr(given, method)), name)
    if callable(given):
        return _guard(_of_value(given), name)
    raise ConfigError(f"{name}={given!r} is neither a function nor has it a method {method}")


def _of_value(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(_topic: str, value: Any, _headers: Any) -> Any:
        return function(value)

    return call


def _with_topic(function: Callable[[str, Any], Any]) -> Callable[..., Any]:
    def call(topic: str, value: Any, _headers: Any) -> Any:
        return function(topic, value)

    return call


def _with_context(function: Callable[[RecordContext, Any], Any], part: str) -> Callable[..., Any]:
    def call(topic: str, value: Any, headers: Any) -> Any:
        return function(RecordContext(topic, part, headers), value)

    return call


def _guard(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """None stays None; an exception becomes a SerializationError that names the setting."""

    def call(topic: str, value: Any, headers: Any = ()) -> Any:
        if value is None:
            return None
        try:
            return function(topic, value, headers)
        except LookupNeeded:
            raise
        except Exception as error:
            raise SerializationError(f"{name} failed for a record of {topic}: {error}") from error

    return call


class RecordSerializers:
    """The serializers of a producer, applied to the parts of a record; (value, key, headers) are returned."""

    def __init__(self, key: Serialize | None, value: Serialize | None) -> None:
        self._key = key
        self._value = value

    def __call__(
        self, topic: str, value: Any, key: Any, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers | None]:
        """Serialize without waiting; LookupNeeded if that is not possible."""
        added: list[tuple[str, bytes | None]] = []
        if self._key is not None:
            key = self._key(topic, key, added)
        if self._value is not None:
            value = self._value(topic, value, added)
        if added:
            pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
            headers = [*pairs, *added]
        return value, key, headers

    def wait(
        self, topic: str, value: Any, key: Any, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers | None]:
        """Serialize, and block for lookups."""
        for _ in range(_LOOKUPS_MAX):
            try:
                return self(topic, value, key, headers)
            except LookupNeeded as needed:
                needed.look_up()
        raise _unhelpful_lookups(topic)

    async def wait_async(
        self, topic: str, value: Any, key: Any, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None, Headers | None]:
        """Serialize; lookups run in a thread."""
        for _ in range(_LOOKUPS_MAX):
            try:
                return self(topic, value, key, headers)
            except LookupNeeded as needed:
                await asyncio.to_thread(needed.look_up)
        raise _unhelpful_lookups(topic)


def _unhelpful_lookups(topic: str) -> SerializationError:
    return SerializationError(f"a record of {topic} needs more than {_LOOKUPS_MAX} lookups")
