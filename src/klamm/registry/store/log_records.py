"""Keys and values of the topic `_schemas`, as Confluent's registry and Karapace write and read them.

Compaction compares keys byte by byte, so the order of properties in a key matters; the order here is Confluent's. A
null value deletes; Karapace writes an empty value instead.
"""

from __future__ import annotations

import base64
import json
import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.registry.store.content import SchemaContent, SchemaReference

if TYPE_CHECKING:
    from klamm.registry.store.state import SchemaVersion

SCHEMA: Final = "SCHEMA"
CONFIG: Final = "CONFIG"
MODE: Final = "MODE"
DELETE_SUBJECT: Final = "DELETE_SUBJECT"
CLEAR_SUBJECT: Final = "CLEAR_SUBJECT"
CONTEXT: Final = "CONTEXT"
ASSOCIATION: Final = "ASSOC"
NOOP: Final = "NOOP"
KNOWN: Final = frozenset({SCHEMA, CONFIG, MODE, DELETE_SUBJECT, CLEAR_SUBJECT, CONTEXT, ASSOCIATION, NOOP})
TENANT: Final = "default"
_RESOURCE_FIELDS: Final = ("resourceName", "resourceNamespace", "resourceType", "associationType")
INT_MAX: Final = (1 << 31) - 1
"""Of ids and versions: readers have four bytes for them, with a sign."""
_DIGITS_MAX: Final = 10
_PLAIN_KEY: Final = re.compile(
    rb'\{"keytype":"SCHEMA","subject":"([^"\\\x00-\x1f]*)","version":([1-9][0-9]{0,8}),"magic":1\}'
)
"""Nearly all keys: without it a start spends as much time on them as on the schemas."""
ID_FLOORS: Final = "idFloors"
"""In the value of NOOP: the largest id of each context from which schemas were deleted for good. Compaction removes
both the schema and its tombstone, and an id must not be given again. Other registries ignore values of NOOP."""


class ResourceKey(NamedTuple):
    """Which side of which resource a subject is associated with: the key or the value of a topic."""

    name: str
    namespace: str
    resource_type: str
    association_type: str


class LogKey(NamedTuple):
    """A key by content: the same for every order of its properties."""

    keytype: str
    subject: str | None = None
    version: int | None = None
    context: str | None = None
    resource: ResourceKey | None = None


class LogEntry(NamedTuple):
    """A record to write; a value of None deletes its key."""

    key: LogKey
    value: dict[str, Any] | None


class RegistryDecision(NamedTuple):
    """What a request leads to: records to write in one transaction, and the answer once they are replayed."""

    entries: tuple[LogEntry, ...]
    answer: Any


def parse_key(data: bytes | None) -> LogKey | None:
    """Parse a key; None for one that this registry does not use."""
    plain = _PLAIN_KEY.fullmatch(data or b"")
    if plain is not None:
        try:
            return LogKey(SCHEMA, plain[1].decode(), int(plain[2]))
        except UnicodeDecodeError:
            return None
    fields = _parse_object(data)
    if fields is None or not isinstance(fields.get("keytype"), str) or fields["keytype"] not in KNOWN:
        return None
    subject, version, context = fields.get("subject"), fields.get("version"), fields.get("context")
    if fields["keytype"] == SCHEMA and not (isinstance(subject, str) and _is_count(version) and version):
        return None
    if fields["keytype"] == CONTEXT and not isinstance(context, str):
        return None
    if not isinstance(subject, str | None):
        return None
    resource = None
    if fields["keytype"] == ASSOCIATION:
        names = [fields.get(name) for name in _RESOURCE_FIELDS]
        if subject is None or not all(isinstance(name, str) for name in names):
            return None
        resource = ResourceKey(*map(str, names))
    return LogKey(
        fields["keytype"],
        subject,
        version if fields["keytype"] == SCHEMA else None,
        context if fields["keytype"] == CONTEXT else None,
        resource,
    )


def parse_value(data: bytes | None) -> dict[str, Any] | None:
    """Parse a value; None deletes. ValueError for one that is not a JSON object."""
    if not data:
        return None
    fields = _parse_object(data)
    if fields is None:
        raise ValueError("the value is not a JSON object")
    return fields


def parse_id_floors(data: bytes | None) -> dict[str, int]:
    """Parse the value of NOOP; empty for that of other registries, which is null."""
    floors = (_parse_object(data) or {}).get(ID_FLOORS)
    if not isinstance(floors, dict):
        return {}
    return {context: floor for context, floor in floors.items() if _is_count(floor)}


def encode_key(key: LogKey) -> bytes:
    """Encode a key with the bytes that Confluent's registry writes."""
    if key.keytype == SCHEMA and key.subject is not None:
        subject = encode_basestring(key.subject)
        return f'{{"keytype":"SCHEMA","subject":{subject},"version":{key.version},"magic":1}}'.encode()
    fields: dict[str, Any] = {"keytype": key.keytype}
    if key.resource is not None:
        fields |= {"tenant": TENANT, **dict(zip(_RESOURCE_FIELDS, key.resource, strict=True))}
    if key.keytype == CONTEXT:
        fields |= {"tenant": TENANT, "context": key.context}
    elif key.subject is not None:
        fields["subject"] = key.subject
    if key.keytype == SCHEMA:
        fields["version"] = key.version
    fields["magic"] = 1 if key.keytype == SCHEMA else 0
    return encode_json(fields)


def encode_value(value: dict[str, Any] | None) -> bytes | None:
    """Encode a value."""
    return None if value is None else encode_json(value)


def encode_json(fields: Any) -> bytes:
    """Encode as compact JSON in UTF-8, without escapes that Java's encoder does not write."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def schema_entry(version: SchemaVersion) -> LogEntry:
    """Return the record of one version of a subject."""
    subject, content = str(version.subject), version.content
    value: dict[str, Any] = {"subject": subject, "version": version.version, "id": version.schema_id}
    value["md5"] = base64.b64encode(content.guid).decode()
    # Avro is the type of records without one, as they were written before there were others.
    if content.schema_type != "AVRO":
        value["schemaType"] = content.schema_type
    if content.references:
        value["references"] = [reference.to_json() for reference in content.references]
    if content.metadata is not None:
        value["metadata"] = content.metadata
    if content.rule_set is not None:
        value["ruleSet"] = content.rule_set
    value |= {"schema": content.text, "deleted": version.deleted}
    return LogEntry(LogKey(SCHEMA, subject, version.version), value)


def parse_content(value: dict[str, Any]) -> SchemaContent:
    """Parse the content of a SCHEMA record; ValueError when it has none."""
    text = value.get("schema")
    if not isinstance(text, str):
        raise ValueError("the record has no schema")  # noqa: TRY004 - a damaged record, not a programming error
    return SchemaContent(
        value.get("schemaType") or "AVRO",
        text,
        parse_references(value.get("references")),
        value.get("metadata"),
        value.get("ruleSet"),
    )


def parse_int(value: Any) -> int:
    """Parse a number of four bytes; ValueError for anything else."""
    # Some clients send a text of digits or a whole float; bool is an int of Python.
    is_number = (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
        or (isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdecimal())
    )
    if not is_number or abs(int(value)) > INT_MAX:
        raise ValueError(f"{str(value)[:40]} is not a whole number up to {INT_MAX}")
    return int(value)


def parse_references(references: Any) -> tuple[SchemaReference, ...]:
    """Parse the references of a record or a request; ValueError for a list of anything else."""
    if references is None:
        return ()
    try:
        return tuple(
            SchemaReference(str(reference["name"]), str(reference["subject"]), parse_int(reference["version"]))
            for reference in references
        )
    except (TypeError, KeyError, ValueError):
        raise ValueError("references are objects with name, subject and version") from None


def is_unicode(fields: Any, data: bytes) -> bool:
    """Whether all texts of a JSON document can be encoded: an escape may be half of a pair, which is no character."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return True
    try:
        encode_json(fields)
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX


def _parse_object(data: bytes | None) -> dict[str, Any] | None:
    data = data or b""
    try:
        # Decoded here: json.loads would first guess the encoding of bytes.
        fields = json.loads(data.decode())
        if not is_unicode(fields, data):
            return None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
