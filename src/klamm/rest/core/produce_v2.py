"""Bodies of v2 that produce: `{"records": [{"key", "value", "partition"}], "value_schema_id": ...}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from klamm.http.refusals import HttpRefusal
from klamm.rest.core.fields import dump_json, number_of, objects_of, refuse_unknown
from klamm.rest.core.media_types import EmbeddedFormat
from klamm.rest.core.refusals import invalid_field

_RECORD_FIELDS: Final = ("key", "value", "partition")


@dataclass(frozen=True, slots=True)
class SchemaSelector:
    """The schema of all keys or all values: an id of the registry, or a text that is registered."""

    schema_id: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ProduceBody:
    """Records with key, value and partition as they stand in the JSON."""

    records: list[tuple[Any, Any, int | None]]
    key_schema: SchemaSelector | None = None
    value_schema: SchemaSelector | None = None


def parse_produce(body: dict[str, Any], embedded: EmbeddedFormat, partition: int | None = None) -> ProduceBody:
    """Parse a body; `partition` is the one in the path, which all records go to."""
    elements = objects_of(body, "records")
    if not elements:
        raise invalid_field("records may not be empty")
    records = []
    has_keys = has_values = False
    for element in elements:
        if not element.keys() <= {"key", "value", "partition"}:
            refuse_unknown(element, _RECORD_FIELDS)
        key, value = element.get("key"), element.get("value")
        has_keys = has_keys or key is not None
        has_values = has_values or value is not None
        index = partition
        if "partition" in element:
            index = number_of(element, "partition", None)
            if partition is not None and index not in (None, partition):
                raise invalid_field(f"partition {index} of a record is not {partition}, the partition in the path")
        records.append((key, value, partition if index is None else index))
    if not embedded.needs_schema:
        return ProduceBody(records)
    key_schema, value_schema = _parse_schema(body, "key"), _parse_schema(body, "value")
    if has_keys and key_schema is None:
        raise HttpRefusal(42201, "Request includes keys but does not include key schema")
    if has_values and value_schema is None:
        raise HttpRefusal(42202, "Request includes values but does not include value schema")
    return ProduceBody(records, key_schema, value_schema)


def _parse_schema(body: dict[str, Any], part: str) -> SchemaSelector | None:
    schema_id = number_of(body, f"{part}_schema_id", None)
    if schema_id is not None:
        return SchemaSelector(schema_id)
    text = body.get(f"{part}_schema")
    if text is None:
        return None
    # A schema is JSON in a string; one that is an object is what was meant.
    return SchemaSelector(text=text if isinstance(text, str) else dump_json(text).decode())
