"""A record as the messages page shows it: what its bytes are, as text, as a tree of JSON, as hex."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.client.filter.record_view import RecordLike

PREVIEW_CHARS: Final = 240
TEXT_CHARS_MAX: Final = 64 << 10
HEX_BYTES_MAX: Final = 4096
HIDDEN: Final = b"****"
ABORTED: Final = "aborted"
UNDECIDED: Final = "not committed"
"""Of an open transaction, or behind one: readers of committed records do not get it yet."""
_MAGIC: Final = 0
_KINDS: Final = {"AVRO": "avro", "JSON": "jsonschema", "PROTOBUF": "protobuf"}


@dataclass(frozen=True, slots=True)
class SchemaNote:
    """The schema that a key or value names, and what came of decoding it."""

    name: str
    """The id, or the GUID of a header."""
    size: int
    """Of the bytes before they were decoded."""
    id: int | None = None
    kind: str = ""
    """AVRO, JSON or PROTOBUF; empty when the schema was not read."""
    error: str = ""
    """Why it is not decoded; empty when it is."""


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject, which has the schema of an id."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as filters and pages see it: JSON in place of what has a schema, without hidden fields."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key_schema: SchemaNote | None = None
    value_schema: SchemaNote | None = None
    transaction: str = ""
    """ABORTED or UNDECIDED; empty when it is committed, of no transaction, or was not checked."""


@dataclass(frozen=True, slots=True)
class ValueView:
    """Bytes of a key, value or header."""

    kind: str
    """null, empty, json, text, binary, or the format of its schema: avro, protobuf, jsonschema."""
    text: str
    """On one line, cut for the table."""
    full: str
    """JSON is indented; binary data is a hex dump."""
    size: int
    schema_id: int | None = None
    cut: bool = False
    """Whether `full` ends before the bytes do."""
    schema: SchemaNote | None = None
    subject: SubjectVersion | None = None

    @property
    def is_editable(self) -> bool:
        """Whether a form can hold it: text, or JSON that is written with its schema again; other bytes are lost."""
        if self.schema is not None:
            return not self.schema.error and self.schema.id is not None
        return self.kind in ("json", "text", "null", "empty")


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: ValueView
    value: ValueView
    headers: tuple[tuple[str, ValueView], ...]
    transaction: str = ""


def view_record(record: RecordLike, subjects: Mapping[int, SubjectVersion] | None = None) -> RecordRow:
    """Return a record for the page; `subjects` by the ids of schemas."""
    names = subjects or {}
    return RecordRow(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        _view_part(record.key, getattr(record, "key_schema", None), names),
        _view_part(record.value, getattr(record, "value_schema", None), names),
        tuple((name, view_value(value)) for name, value in record.headers or ()),
        getattr(record, "transaction", ""),
    )


def _view_part(data: bytes | None, note: SchemaNote | None, subjects: Mapping[int, SubjectVersion]) -> ValueView:
    view = view_value(data)
    if note is None:
        return view
    subject = None if note.id is None else subjects.get(note.id)
    kind = _KINDS.get(note.kind, view.kind) if not note.error else view.kind
    return replace(view, kind=kind, size=note.size, schema_id=note.id, schema=note, subject=subject)


def view_value(data: bytes | None) -> ValueView:
    """Return what bytes are: JSON if they parse, text if they are UTF-8 without control characters, else binary."""
    if data is None:
        return ValueView("null", "null", "null", 0)
    if not data:
        return ValueView("empty", "", "", 0)
    raw = bytes(data)
    text = decode_text(raw)
    parsed, is_json = parse_json(text)
    # A single number or word is JSON too, but is shown as it was written.
    if is_json and isinstance(parsed, dict | list):
        line = dump_json(parsed).decode()
        full = dump_json(parsed, indent=2).decode()
        return ValueView("json", _cut(line), full[:TEXT_CHARS_MAX], len(raw), cut=len(full) > TEXT_CHARS_MAX)
    if text is not None:
        line = " ".join(text.split())
        return ValueView("text", _cut(line), text[:TEXT_CHARS_MAX], len(raw), cut=len(text) > TEXT_CHARS_MAX)
    # Confluent's framing: a zero byte and the id of the schema.
    schema_id = int.from_bytes(raw[1:5], "big") if raw[0] == _MAGIC and len(raw) > 5 else None
    return ValueView(
        "binary", _cut(raw[:80].hex(" ")), dump_hex(raw[:HEX_BYTES_MAX]), len(raw), schema_id, len(raw) > HEX_BYTES_MAX
    )


def decode_text(raw: bytes) -> str | None:
    """Return the text of UTF-8 bytes; None for other bytes, and for text with control characters."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return None if any(ord(char) < 32 and char not in "\t\r\n" for char in text) else text


def parse_json(text: str | None) -> tuple[Any, bool]:
    """Return the JSON value of a text and whether it is one."""
    if text is None:
        return None, False
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False


def dump_json(value: Any, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8; a lone surrogate, which UTF-8 does not have, stays the escape that JSON writes for it."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode(errors="backslashreplace")


def dump_hex(raw: bytes) -> str:
    """Return lines of offset, sixteen bytes and their printable characters, as hexdump -C writes them."""
    lines = []
    for begin in range(0, len(raw), 16):
        row = raw[begin : begin + 16]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{begin:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{printable}|")
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"


def parse_headers(lines: str) -> list[tuple[str, bytes]]:
    """Parse `name: value` lines of the produce form; ValueError for a line without a colon."""
    headers = []
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"header in line {number}: write name: value")
        headers.append((name.strip(), value.strip().encode()))
    return headers


def mask_value(data: bytes | None, paths: Sequence[Sequence[str]]) -> bytes | None:
    """Return the bytes of a value without the fields at these paths; what is not JSON is hidden whole.

    Records are masked before filters run: an expression over a hidden field would tell it bit by bit.
    """
    if data is None or not paths:
        return data
    parsed, is_json = parse_json(decode_text(bytes(data)))
    return _mask_json(parsed, paths) if is_json else HIDDEN


def mask_key(data: bytes | None, paths: Sequence[Sequence[str]]) -> bytes | None:
    """Return the bytes of a key without the fields at these paths; text that is no object stays, bytes are hidden."""
    if data is None or not paths:
        return data
    return mask_text(data, paths) if decode_text(bytes(data)) is not None else HIDDEN


def mask_header(name: str, data: bytes | None, paths: Sequence[Sequence[str]]) -> bytes | None:
    """Return the bytes of a header: hidden if its name is a masked one, without the masked fields of an object."""
    if data is None or not paths:
        return data
    # A header is a field at the top; its name may have dots.
    if any(tuple(path) in (("*",), ("**", name)) or ".".join(path) == name for path in paths):
        return HIDDEN
    return mask_text(data, paths)


def mask_text(data: bytes, paths: Sequence[Sequence[str]]) -> bytes:
    """Return bytes without the fields at these paths if they are an object or a list of JSON; else as they are."""
    parsed, is_json = parse_json(decode_text(bytes(data)))
    return _mask_json(parsed, paths) if is_json and isinstance(parsed, dict | list) else data


def _mask_json(parsed: Any, paths: Sequence[Sequence[str]]) -> bytes:
    try:
        for path in paths:
            parsed = _mask_path(parsed, path)
        return dump_json(parsed)
    except RecursionError:  # of values that are nested deeper than Python calls may be
        return HIDDEN


def _mask_path(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return HIDDEN.decode()
    if isinstance(value, list):
        return [_mask_path(item, path) for item in value]
    if isinstance(value, Mapping):
        if path[0] == "**":
            # Any number of names, also none: the rest of the path here, and the whole path in each field.
            here = _mask_path(value, path[1:])
            return {name: _mask_path(item, path) for name, item in here.items()} if isinstance(here, dict) else here
        # `*` is one name: ("*", "password") masks the password of each object in the value, and not one at the top.
        return {name: _mask_path(item, path[1:]) if path[0] in ("*", name) else item for name, item in value.items()}
    return value
