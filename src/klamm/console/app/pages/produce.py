"""GET and POST .../topics/{topic}/produce: one record from a form, or many as lines."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.topics import TopicPages
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.record_views import dump_json, parse_headers
from klamm.console.core.roles import Action, masked_paths
from klamm.console.message_reader import read_one
from klamm.console.record_encoder import BY_ID, NEWEST, PartSchema, RecordEncoder, find_message
from klamm.console.schema_client import TopicSubject
from klamm.http.messages import HttpResponse
from klamm.model.units import pluralize
from klamm.registry.framing import HEADERS

_LINES_MAX: Final = 10_000
_PARTS: Final = ("key", "value")
_FIELDS: Final = ("key", "partition", *(f"{part}_{name}" for part in _PARTS for name in ("schema", "message")))
Encoders = Mapping[str, RecordEncoder]
"""By part; a part without one is written as it is."""


class ProducePages(PageGroup):
    """Writing records."""

    def add_routes(self) -> None:
        """Serve these pages."""
        produce = RouteRight(Action.PRODUCE, "topic")
        self.app.get("/c/{cluster}/topics/{topic}/produce", self.show_form, produce)
        self.app.post("/c/{cluster}/topics/{topic}/produce", self.produce, produce)

    async def show_form(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../produce?from=PARTITION/OFFSET: the form, with the values of a record as a template."""
        values: dict[str, Any] = {**dict.fromkeys(_FIELDS, ""), "value": "", "headers": "", "mode": "one"}
        subjects = await self._list_subjects(request)
        # Text in a topic whose readers expect a schema stops them.
        values |= {f"{part}_schema": NEWEST for part, subject in subjects.items() if subject.versions}
        source = request.text("from")
        partition, _, offset = source.partition("/")
        if partition.isdecimal() and offset.isdecimal():
            request.require(Action.READ, request.values["topic"])
            values |= await self._copy_record(request, int(partition), int(offset))
        return await self._form_page(request, values, "")

    async def _copy_record(self, request: ConsoleRequest, partition: int, offset: int) -> dict[str, Any]:
        """Return the form's values for a record: JSON and the same schema for what names one."""
        topic, link = request.values["topic"], request.cluster
        masked = masked_paths(self.parts.settings.masks, topic, request.visitor)
        record = await read_one(link, topic, partition, offset, masked, link.decoder)
        notes = {part: getattr(record, f"{part}_schema") for part in _PARTS}
        decoded = {part: note for part, note in notes.items() if note is not None and not note.error and note.id}
        values: dict[str, Any] = {f"{part}_schema": f"{BY_ID}{note.id}" for part, note in decoded.items()}
        values |= {f"{part}_schema": "" for part in _PARTS if part not in decoded}
        if any(note.kind == "PROTOBUF" for note in decoded.values()) and not masked and link.schemas is not None:
            raw = await read_one(link, topic, partition, offset, masked)
            for part in decoded:
                message = await asyncio.to_thread(find_message, link.schemas.registry, raw, part)
                values[f"{part}_message"] = message
        # The bytes are written with the prefix: a header would name the schema of others.
        left_out = {HEADERS[part] for part in decoded}
        headers = [(name, value) for name, value in record.headers if name not in left_out]
        return values | {
            "key": (record.key or b"").decode(errors="replace"),
            "value": _indent(record.value) if "value" in decoded else (record.value or b"").decode(errors="replace"),
            "headers": "\n".join(f"{name}: {(value or b'').decode(errors='replace')}" for name, value in headers),
        }

    async def produce(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../produce."""
        topic, mode = request.values["topic"], request.form("mode") or "one"
        values: dict[str, Any] = {name: request.form(name) for name in _FIELDS}
        values |= {"value": request.form_raw("value"), "headers": request.form_raw("headers"), "mode": mode}
        try:
            encoders = await self._make_encoders(request)
            records = await asyncio.to_thread(_parse_form, request, encoders)
        except ValueError as error:
            return await self._form_page(request, values, str(error), 400)
        partition = request.form_number("partition")
        work = functools.partial(_send_all, request, topic, partition, records)
        done = f"Wrote {pluralize(len(records), 'record')} to {topic}."
        detail = {"records": len(records), "partition": partition}
        detail |= {f"{part} schema": encoder.schema_id for part, encoder in encoders.items()}
        if not await self.app.change(request, "produce records", topic, work, done=done, detail=detail):
            return await self._form_page(request, values, "", 409)
        return redirect(self.path(request, "topics", topic, "messages"))

    async def _make_encoders(self, request: ConsoleRequest) -> dict[str, RecordEncoder]:
        schemas = request.cluster.schemas
        encoders = {}
        for part in _PARTS:
            name = request.form(f"{part}_schema")
            if not name:
                continue
            if schemas is None:
                raise ValueError(f"{request.cluster.name} has no registry here")
            choice = PartSchema(part, name, request.form(f"{part}_message"))
            encoders[part] = await asyncio.to_thread(RecordEncoder, schemas.registry, request.values["topic"], choice)
        return encoders

    async def _list_subjects(self, request: ConsoleRequest) -> dict[str, TopicSubject]:
        """Return the subjects of the topic's keys and values; without versions where the registry has none."""
        schemas = request.cluster.schemas
        if schemas is None:
            return {}
        names = {part: f"{request.values['topic']}-{part}" for part in _PARTS}
        subjects = await asyncio.gather(*(schemas.describe_subject(name) for name in names.values()))
        return dict(zip(names, subjects, strict=True))

    async def _form_page(
        self, request: ConsoleRequest, values: dict[str, Any], failed: str, status: int = 200
    ) -> HttpResponse:
        topic = await TopicPages(self.app).find_topic(request)
        subjects = await self._list_subjects(request)
        return self.app.page(
            request,
            "produce.html",
            status,
            title=topic.name,
            tab="produce",
            values=values,
            failed=failed,
            subjects=subjects,
            choices={part: _list_choices(subject, values[f"{part}_schema"]) for part, subject in subjects.items()},
            **TopicPages(self.app).describe(request, topic),
        )


NewRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Key, value, headers."""


def _list_choices(subject: TopicSubject, chosen: str) -> dict[str, str]:
    """Return the ways to write a part: value and text of the options."""
    choices = {"": "text"}
    if subject.versions:
        choices[NEWEST] = f"newest of {subject.name}"
        choices |= {str(number): f"{subject.name} v{number}" for number in reversed(subject.versions)}
    if chosen and chosen not in choices:
        choices[chosen] = f"schema {chosen.removeprefix(BY_ID)}"
    return choices


def _indent(data: bytes | None) -> str:
    return "" if data is None else dump_json(json.loads(data), indent=2).decode()


def _parse_form(request: ConsoleRequest, encoders: Encoders) -> list[NewRecord]:
    if request.form("mode") == "lines":
        return parse_lines(request.form_raw("value"), encoders)
    return [_parse_one(request, encoders)]


def _parse_one(request: ConsoleRequest, encoders: Encoders) -> NewRecord:
    key, text = request.form("key"), request.form_raw("value")
    is_tombstone = bool(request.form("tombstone"))
    if is_tombstone and not key:
        raise ValueError("a record without a value deletes a key: write the key")
    if request.form("check_json") and not is_tombstone:
        try:
            json.loads(text)
        except ValueError as error:
            raise ValueError(f"the value is not JSON: {error}") from None
    return (
        _encode_text(key, encoders.get("key")) if key else None,
        None if is_tombstone else _encode_text(text, encoders.get("value")),
        parse_headers(request.form_raw("headers")),
    )


def _encode_text(text: str, encoder: RecordEncoder | None) -> bytes:
    return text.encode() if encoder is None else encoder.encode_text(text)


def parse_lines(text: str, encoders: Encoders = MappingProxyType({})) -> list[NewRecord]:
    """Parse one record a line: an object with `key`, `value` and `headers` as exports have it, or any other text."""
    records: list[NewRecord] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if number > _LINES_MAX:
            raise ValueError(f"at most {_LINES_MAX} lines at a time; `klamm produce` takes files of any length")
        try:
            records.append(_parse_line(line, encoders))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not records:
        raise ValueError("write at least one line")
    return records


def _parse_line(line: str, encoders: Encoders) -> NewRecord:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or "value" not in row:
        return None, _encode_text(line, encoders.get("value")), []
    headers = row.get("headers") or {}
    return (
        _encode_item(row.get("key"), encoders.get("key")),
        _encode_item(row["value"], encoders.get("value")),
        [(str(name), _to_bytes(value) or b"") for name, value in headers.items()] if isinstance(headers, dict) else [],
    )


def _encode_item(value: Any, encoder: RecordEncoder | None) -> bytes | None:
    if encoder is None or value is None or _is_base64(value):
        return _to_bytes(value)
    # Exports have decoded values as the text of their JSON.
    return encoder.encode_text(value) if isinstance(value, str) else encoder.encode(value)


def _to_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if _is_base64(value):
        return base64.b64decode(str(value["base64"]), validate=True)
    return dump_json(value)


def _is_base64(value: Any) -> bool:
    """Whether a value is what exports write for bytes that are no text."""
    return isinstance(value, dict) and set(value) == {"base64"}


async def _send_all(request: ConsoleRequest, topic: str, partition: int | None, records: list[NewRecord]) -> None:
    producer = await request.cluster.producer()
    deliveries = [
        await producer.send(topic, value, key, partition=partition, headers=headers) for key, value, headers in records
    ]
    for delivery in deliveries:
        await delivery
