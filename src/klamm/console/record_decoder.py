"""Keys and values that name a schema of the registry, as JSON. What cannot be decoded stays as it is, with the reason.

Bytes are written by others and schemas by others still: nothing of them may fail a page, and a page makes only so many
requests to the registry.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from klamm.client.serde import RecordContext
from klamm.client.types import Record
from klamm.console.core.avro_limits import AvroLimits, find_limits
from klamm.console.core.record_views import SchemaNote, ShownRecord
from klamm.model.errors import ConfigError
from klamm.model.units import format_size
from klamm.registry.client import Registry, RegistryError, Schema
from klamm.registry.framing import BY_ID, HEADERS, BadRecord, unframe
from klamm.registry.serializers.any_schema import RegistryDeserializer
from klamm.registry.serializers.reading import header_of
from klamm.telemetry import get_logger

_log = get_logger("console")

DECODED_BYTES_MAX: Final = 1 << 20
LOOKUPS_MAX: Final = 50
"""Schemas that one reading requests: in a topic of random bytes nearly every record names another one."""
_DOWN_S: Final = 10.0
"""How long a registry that did not answer is left alone; without this each record would wait for it."""
_PREFIX_BYTES: Final = 5
_ERROR_CHARS_MAX: Final = 300
_LIMITS_MAX: Final = 1000

HeaderPairs = Sequence[tuple[str, bytes | None]]
BytesRecord = Record[bytes | None, bytes | None]


class LookupBudget:
    """How many schemas a reading may still request."""

    def __init__(self, count: int = LOOKUPS_MAX) -> None:
        self._left = count

    def take(self) -> bool:
        """Use one; False when none is left."""
        self._left -= 1
        return self._left >= 0


class RecordDecoder:
    """Decodes records with one registry. Blocks for it, so it is called in threads; several may call at once."""

    def __init__(self, registry: Registry, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._deserializer = RegistryDeserializer(registry, as_json=True)
        self._clock_s = clock_s
        self._down_until_s = 0.0
        self._down_reason = ""
        self._limits: dict[Schema, AvroLimits] = {}

    def decode_all(self, records: Iterable[BytesRecord], budget: LookupBudget) -> list[ShownRecord]:
        """Return the records with JSON in place of what has a schema; never fails."""
        return [self.decode(record, budget) for record in records]

    def decode(self, record: BytesRecord, budget: LookupBudget) -> ShownRecord:
        """Return one record."""
        key, key_schema = self._decode_part(record, "key", record.key, budget)
        value, value_schema = self._decode_part(record, "value", record.value, budget)
        return ShownRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            key,
            value,
            tuple(record.headers or ()),
            key_schema,
            value_schema,
        )

    def _decode_part(
        self, record: BytesRecord, part: str, data: bytes | None, budget: LookupBudget
    ) -> tuple[bytes | None, SchemaNote | None]:
        headers: HeaderPairs = record.headers or ()
        if data is None or not names_schema(data, part, headers):
            return data, None
        context = RecordContext(record.topic, part, headers)
        try:
            name = unframe(data, header_of(context)).schema
        except BadRecord:
            return data, None
        schema: Schema | None = None
        try:
            if len(data) > DECODED_BYTES_MAX:
                raise BadRecord(f"it is larger than {format_size(DECODED_BYTES_MAX)}")
            schema = self._find_schema(name, budget)
            self._check_bounds(schema, len(data))
            value = self._deserializer.deserialize(record.topic, data, part, headers)
            return to_text(value, part), _make_note(name, schema, len(data))
        except BadRecord as error:
            reason = error.message or "it is not a value of its schema"
        except RegistryError as error:
            reason = self._pause_lookups(error)
        except ConfigError as error:  # the library of its kind is not installed
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a codec raises for these bytes, the page shows them
            # At debug: every record of a topic may fail in the same way.
            _log.debug("record not decoded", topic=record.topic, offset=record.offset, part=part, error=repr(error))
            reason = type(error).__name__
        return data, _make_note(name, schema, len(data), reason)

    def _find_schema(self, name: int | uuid.UUID, budget: LookupBudget) -> Schema:
        schema = self._registry.cached_schema(name)
        if schema is not None:
            return schema
        if self._clock_s() < self._down_until_s:
            raise BadRecord(self._down_reason)
        if not budget.take():
            raise BadRecord(f"the records of this page name more than {LOOKUPS_MAX} schemas")
        return self._registry.schema(name)

    def _check_bounds(self, schema: Schema, size: int) -> None:
        if schema.kind != "AVRO":
            return
        limits = self._limits.get(schema)
        if limits is None:
            references = self._registry.references(schema)
            limits = find_limits(schema.text, [reference.text for reference in references.values()])
            if len(self._limits) >= _LIMITS_MAX:
                self._limits.clear()
            self._limits[schema] = limits
        refusal = limits.refuse(size)
        if refusal:
            raise BadRecord(refusal)

    def _pause_lookups(self, error: RegistryError) -> str:
        self._down_reason = error.message or "the registry does not answer"
        self._down_until_s = self._clock_s() + _DOWN_S
        return self._down_reason


def names_schema(data: bytes, part: str, headers: HeaderPairs) -> bool:
    """Whether bytes may name a schema: by Confluent's prefix, or by a header."""
    if len(data) > _PREFIX_BYTES and data[0] == BY_ID:
        return True
    return any(name == HEADERS[part] for name, _ in headers)


def to_text(value: Any, part: str) -> bytes:
    """Return a decoded value as filters read it; a key that is text stays bare, so that it can be searched for."""
    if part == "key" and isinstance(value, str):
        return value.encode(errors="replace")
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _make_note(name: int | uuid.UUID, schema: Schema | None, size: int, error: str = "") -> SchemaNote:
    number = name if isinstance(name, int) else None if schema is None else schema.id
    return SchemaNote(str(name), size, number, "" if schema is None else schema.kind, error[:_ERROR_CHARS_MAX])
