"""GET and POST .../topics/{topic}/produce: one record from a form, or many as lines."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any, Final

from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.topics import TopicPages
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.record_views import dump_json, parse_headers
from klamm.console.core.roles import Action, masked_paths
from klamm.console.message_reader import read_one
from klamm.http.messages import HttpResponse
from klamm.model.units import pluralize

_LINES_MAX: Final = 10_000
_FIELDS: Final = ("key", "partition")


class ProducePages(PageGroup):
    """Writing records."""

    def add_routes(self) -> None:
        """Serve these pages."""
        produce = RouteRight(Action.PRODUCE, "topic")
        self.app.get("/c/{cluster}/topics/{topic}/produce", self.show_form, produce)
        self.app.post("/c/{cluster}/topics/{topic}/produce", self.produce, produce)

    async def show_form(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../produce?from=PARTITION/OFFSET: the form, with the values of a record as a template."""
        values: dict[str, Any] = {"key": "", "value": "", "headers": "", "partition": "", "mode": "one"}
        source = request.text("from")
        partition, _, offset = source.partition("/")
        if partition.isdecimal() and offset.isdecimal():
            request.require(Action.READ, request.values["topic"])
            topic = request.values["topic"]
            masked = masked_paths(self.parts.settings.masks, topic, request.visitor)
            record = await read_one(request.cluster, topic, int(partition), int(offset), masked)
            values["key"] = (record.key or b"").decode(errors="replace")
            values["value"] = (record.value or b"").decode(errors="replace")
            values["headers"] = "\n".join(
                f"{name}: {(value or b'').decode(errors='replace')}" for name, value in record.headers
            )
        return await self._form_page(request, values, "")

    async def produce(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../produce."""
        topic, mode = request.values["topic"], request.form("mode") or "one"
        values: dict[str, Any] = {name: request.form(name) for name in _FIELDS}
        values |= {"value": request.form_raw("value"), "headers": request.form_raw("headers"), "mode": mode}
        try:
            records = parse_lines(request.form_raw("value")) if mode == "lines" else [_parse_one(request)]
        except ValueError as error:
            return await self._form_page(request, values, str(error), 400)
        partition = request.form_number("partition")
        work = functools.partial(_send_all, request, topic, partition, records)
        done = f"Wrote {pluralize(len(records), 'record')} to {topic}."
        detail = {"records": len(records), "partition": partition}
        if not await self.app.change(request, "produce records", topic, work, done=done, detail=detail):
            return await self._form_page(request, values, "", 409)
        return redirect(self.path(request, "topics", topic, "messages"))

    async def _form_page(
        self, request: ConsoleRequest, values: dict[str, Any], failed: str, status: int = 200
    ) -> HttpResponse:
        topic = await TopicPages(self.app).find_topic(request)
        return self.app.page(
            request,
            "produce.html",
            status,
            title=topic.name,
            tab="produce",
            values=values,
            failed=failed,
            **TopicPages(self.app).describe(request, topic),
        )


NewRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Key, value, headers."""


def _parse_one(request: ConsoleRequest) -> NewRecord:
    key = request.form("key")
    value = None if request.form("tombstone") else request.form_raw("value").encode()
    if value is None and not key:
        raise ValueError("a record without a value deletes a key: write the key")
    if request.form("check_json") and value is not None:
        try:
            json.loads(value)
        except ValueError as error:
            raise ValueError(f"the value is not JSON: {error}") from None
    return key.encode() if key else None, value, parse_headers(request.form_raw("headers"))


def parse_lines(text: str) -> list[NewRecord]:
    """Parse one record a line: an object with `key`, `value` and `headers` as exports have it, or any other text."""
    records: list[NewRecord] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if number > _LINES_MAX:
            raise ValueError(f"at most {_LINES_MAX} lines at a time; `klamm produce` takes files of any length")
        records.append(_parse_line(line))
    if not records:
        raise ValueError("write at least one line")
    return records


def _parse_line(line: str) -> NewRecord:
    try:
        row = json.loads(line)
    except ValueError:
        return None, line.encode(), []
    if not isinstance(row, dict) or "value" not in row:
        return None, line.encode(), []
    headers = row.get("headers") or {}
    return (
        _to_bytes(row.get("key")),
        _to_bytes(row["value"]),
        [(str(name), _to_bytes(value) or b"") for name, value in headers.items()] if isinstance(headers, dict) else [],
    )


def _to_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    # What exports write for bytes that are no text.
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(str(value["base64"]), validate=True)
    return dump_json(value)


async def _send_all(request: ConsoleRequest, topic: str, partition: int | None, records: list[NewRecord]) -> None:
    producer = await request.cluster.producer()
    deliveries = [
        await producer.send(topic, value, key, partition=partition, headers=headers) for key, value, headers in records
    ]
    for delivery in deliveries:
        await delivery
