"""Wire messages in the JSON that Kafka's tools print: its own field names, its rules for what is left out. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

from klamm.model.ids import uuid_to_str
from klamm.protocol.schema import Array, WireField, declaration, uuid


class NotThatJson(ValueError):
    """A file holds no JSON, or other JSON than it should: Kafka's sentence about it."""


def list_objects(text: str, key: str) -> list[dict[str, Any]]:
    """The objects in the array that a file has under a key."""
    try:
        whole = json.loads(text)
    except ValueError:
        raise NotThatJson("The input string is not a valid JSON") from None
    if not isinstance(whole, dict):
        raise NotThatJson(f"Expected JSON object, received {compact(whole)}")
    if key not in whole:
        raise NotThatJson(f'No such field exists: "{key}"')
    if not isinstance(whole[key], list):
        raise NotThatJson(f"Expected JSON array, received {compact(whole[key])}")
    for item in whole[key]:
        if not isinstance(item, dict):
            raise NotThatJson(f"Expected JSON object, received {compact(item)}")
    return list(whole[key])


def compact(value: Any) -> str:
    """JSON as Kafka prints it: without spaces, every letter as it is."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def as_json(message: Any, version: int) -> dict[str, Any]:
    """The fields a message of this version has; a tagged one only when it is not its default."""
    return {
        camel(field.name): _value(getattr(message, field.name), field.type, version)
        for field in declaration(type(message)).fields
        # As the generated JSON converters of Kafka: tagged fields only when they differ from their default.
        if field.lives_in(version) and not _silent(field, getattr(message, field.name))
    }


def _silent(field: WireField, value: Any) -> bool:
    return field.tag is not None and value == field.make_default()


def _value(value: Any, kind: Any, version: int) -> Any:
    if value is None:
        return None
    # By the declared type: a UUID and plain bytes are both bytes in Python.
    if kind is uuid:
        return uuid_to_str(value)
    if isinstance(kind, Array):
        return [_value(item, kind.element, version) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if hasattr(type(value), "__wire__"):
        return as_json(value, version)
    return value


def camel(name: str) -> str:
    """`topic_id` as Java writes it: topicId."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def format_upper_snake(name: str) -> str:
    """`RegisterBrokerRecord` as Java writes constants: REGISTER_BROKER_RECORD."""
    return "".join(f"_{letter}" if letter.isupper() and at else letter for at, letter in enumerate(name)).upper()
