"""Keys and values of the produce form, written with a schema of the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from klamm.client.serde import RecordContext
from klamm.console.core.record_views import ShownRecord
from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, RegistryError, Schema
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import BadRecord, read_path, unframe
from klamm.registry.serializers.json_writing import JsonRecordWriter
from klamm.registry.serializers.reading import header_of

NEWEST: Final = "newest"
BY_ID: Final = "id:"
_DIGITS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class PartSchema:
    """The schema of a part, as the form names it: the newest or a version of the topic's subject, or an id."""

    part: str
    """key or value."""
    name: str
    """newest, the number of a version, or `id:` and a number."""
    message: str = ""
    """Of a Protobuf file; empty for its first one."""


class RecordEncoder:
    """Writes one part of records with one schema. Blocks for the registry, so it is made and called in threads."""

    def __init__(self, registry: Registry, topic: str, choice: PartSchema) -> None:
        self._part = choice.part
        subject = f"{topic}-{choice.part}"
        try:
            schema = _find_schema(registry, subject, choice.name)
            self._writer = JsonRecordWriter(registry, schema, choice.message or None)
        except (ConfigError, RegistryError, BadRecord) as error:
            raise ValueError(f"the schema of the {choice.part} cannot be used: {error}") from None

    @property
    def schema_id(self) -> int | None:
        """The id of the schema."""
        return self._writer.schema.id

    def encode_text(self, text: str) -> bytes:
        """Return the bytes of JSON; ValueError says what does not fit.

        A key that is text is shown without quotes, and is written so too.
        """
        try:
            value, failure = json.loads(text), ""
        except (ValueError, RecursionError) as error:
            value, failure = text, str(error)
        if self._part == "key" and isinstance(value, str):
            try:
                return self._writer.write(text)
            except BadRecord:
                if failure:
                    raise ValueError(f"the key is no JSON: {failure}") from None
        if failure:
            raise ValueError(f"the {self._part} is no JSON: {failure}")
        try:
            return self.encode(value)
        except ValueError:
            # Digits may be a key that is text.
            if self._part != "key":
                raise
            try:
                return self._writer.write(text)
            except BadRecord:
                pass
            raise

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; ValueError says what does not fit."""
        try:
            return self._writer.write(value)
        except BadRecord as error:
            raise ValueError(f"the {self._part} {error.message}") from None
        except (OverflowError, RecursionError) as error:
            raise ValueError(f"the {self._part} does not fit its schema: {error}") from None


def _find_schema(registry: Registry, subject: str, name: str) -> Schema:
    number = name.removeprefix(BY_ID)
    if name == NEWEST:
        return registry.latest(subject)
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX):
        raise ConfigError(f"{name[:30]!r} names no schema")
    return registry.schema(int(number)) if name.startswith(BY_ID) else registry.version(subject, int(number))


def find_message(registry: Registry, record: ShownRecord, part: str) -> str:
    """Return the name of the Protobuf message that a part of a record is, which has its own bytes; empty for others."""
    data = record.key if part == "key" else record.value
    frame = unframe(data or b"", header_of(RecordContext(record.topic, part, record.headers)))
    schema = registry.schema(frame.schema)
    if schema.kind != "PROTOBUF":
        return ""
    codec: Any = compile_schema(registry, schema)
    return str(codec.with_path(read_path(frame)[0]).full_name)
