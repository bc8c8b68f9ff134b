"""Bodies of v3 that produce: one record each, or a batch of at most ten."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Final

from klamm.rest.core.consumer_requests import parse_timestamp
from klamm.rest.core.fields import number_of, objects_of, text_of
from klamm.rest.core.media_types import EmbeddedFormat
from klamm.rest.core.refusals import bad_request, invalid_batch, invalid_payload

BATCH_MAX: Final = 10
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_HEADERS_MAX: Final = 1000
_STRATEGIES: Final = ("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")
_FORMATS: Final = {embedded.name: embedded for embedded in EmbeddedFormat}


@dataclass(frozen=True, slots=True)
class RecordData:
    """A key or a value; without a format it has the newest schema of its subject."""

    data: Any
    embedded: EmbeddedFormat | None
    subject: str | None = None
    strategy: str = "TOPIC_NAME"
    schema_id: int | None = None
    schema_version: int | None = None
    schema: str | None = None

    @property
    def needs_schema(self) -> bool:
        """Whether the registry is needed."""
        return self.embedded is None or self.embedded.needs_schema


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """A record to produce."""

    partition_id: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key: RecordData | None = None
    value: RecordData | None = None
    timestamp_ms: int | None = None


def parse_record(fields: dict[str, Any]) -> RecordRequest:
    """Parse one record. Fields of other names are ignored, as Kafka REST does."""
    if not fields:
        raise invalid_payload("Request body is empty. Data is required.")
    headers = fields.get("headers")
    timestamp = fields.get("timestamp")
    return RecordRequest(
        number_of(fields, "partition_id", None),
        () if not headers else _parse_headers(fields),
        _parse_data(fields, "key"),
        _parse_data(fields, "value"),
        None if timestamp is None else parse_timestamp(timestamp),
    )


def _parse_headers(fields: dict[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    headers = []
    for header in objects_of(fields, "headers", most=_HEADERS_MAX):
        value = text_of(header, "value", None)
        try:
            name = text_of(header, "name")
            name.encode()
            headers.append((name, None if value is None else base64.b64decode(value, validate=True)))
        except UnicodeEncodeError:
            raise bad_request("the name of a header has half of a surrogate pair.") from None
        except (binascii.Error, ValueError):
            raise bad_request(f"the value {value[:80]} of a header is not a base64 string.") from None
    return tuple(headers)


def _parse_data(fields: dict[str, Any], part: str) -> RecordData | None:
    given = fields.get(part)
    if given is None:
        return None
    if not isinstance(given, dict):
        raise bad_request(f"{part} is not an object with type and data")
    name = given.get("type")
    embedded = None
    if name is not None:
        embedded = _FORMATS.get(str(name).upper())
        if embedded is None:
            raise bad_request(f"type={str(name)[:80]} is not one of {', '.join(_FORMATS)}")
        if not embedded.needs_schema:
            if given.get("schema_id") is not None or given.get("schema") is not None:
                raise bad_request(f"{embedded.name} does not support schemas.")
            return RecordData(given.get("data"), embedded)
    strategy = str(given.get("subject_name_strategy") or "TOPIC_NAME").upper()
    if strategy not in _STRATEGIES:
        raise bad_request(f"subject_name_strategy must be one of {', '.join(_STRATEGIES)}")
    schema = text_of(given, "schema", None)
    if schema is not None and embedded is None:
        raise bad_request("a schema needs a type")
    return RecordData(
        given.get("data"),
        embedded,
        text_of(given, "subject", None),
        strategy,
        number_of(given, "schema_id", None),
        number_of(given, "schema_version", None, least=-1),
        schema,
    )


def parse_batch(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Parse a batch into ids and records that are not parsed yet, so that one of them may fail alone."""
    if not body:
        raise invalid_batch("Request body is empty. Data is required.")
    entries = objects_of(body, "entries")
    if not entries:
        raise invalid_batch("Empty batch.")
    if len(entries) > BATCH_MAX:
        raise invalid_batch("Too many entries in batch.")
    ids = [entry.get("id") for entry in entries]
    if not all(isinstance(entry_id, str) and _ENTRY_ID.fullmatch(entry_id) for entry_id in ids):
        raise invalid_batch("Batch entry identifier is not a valid string.")
    if len(set(ids)) < len(ids):
        raise invalid_batch("Batch entry IDs are not distinct.")
    return [
        (str(entry_id), {name: value for name, value in entry.items() if name != "id"})
        for entry_id, entry in zip(ids, entries, strict=True)
    ]
