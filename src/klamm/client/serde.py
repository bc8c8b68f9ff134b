"""Serializers and deserializers: the values of `key.serializer` and the like.

A serializer is a function of the value, or an object with `serialize(topic, value)` (a deserializer: `deserialize`);
the words bytes, str and json name the usual ones. None stays None: a null key is no key, a null value is a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from klamm.client.errors import SerializationError
from klamm.model.errors import ConfigError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SupportsSerialize(Protocol):
    """A serializer that is an object, such as one of a schema registry's client."""

    def serialize(self, topic: str, value: Any, /) -> bytes | None:
        """The bytes of a value."""


class SupportsDeserialize(Protocol[T_co]):
    """A deserializer that is an object."""

    def deserialize(self, topic: str, data: bytes, /) -> T_co:
        """The value of bytes."""


Serializer = Callable[[Any], bytes | None] | SupportsSerialize | str
"""Values of key.serializer and value.serializer; the words are bytes, str and json."""
Deserializer = Callable[[bytes], T] | SupportsDeserialize[T]
"""Values of key.deserializer and value.deserializer, besides the words bytes, str and json."""

Serialize = Callable[[str, Any], bytes | None]
Deserialize = Callable[[str, bytes | None], Any]


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
    return _wrapped(given, name, "serialize", _SERIALIZERS)


def deserializer(given: Any, name: str) -> Deserialize | None:
    """The function for the setting `name`; None leaves bytes as they are."""
    return _wrapped(given, name, "deserialize", _DESERIALIZERS)


def _wrapped(given: Any, name: str, method: str, known: dict[str, Any]) -> Callable[[str, Any], Any] | None:
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
        return _guarded(_without_topic(function), name)
    # Before `callable`: serializers of schema registries are often both.
    if hasattr(given, method):
        return _guarded(getattr(given, method), name)
    if callable(given):
        return _guarded(_without_topic(given), name)
    raise ConfigError(f"{name}={given!r} is neither a function nor has it a method {method}")


def _without_topic(function: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    def call(_topic: str, value: Any) -> Any:
        return function(value)

    return call


def _guarded(function: Callable[[str, Any], Any], name: str) -> Callable[[str, Any], Any]:
    """None stays None; an exception becomes a SerializationError that names the setting."""

    def call(topic: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return function(topic, value)
        except Exception as error:
            raise SerializationError(f"{name} failed for a record of {topic}: {error}") from error

    return call
