"""GET .../topics/{topic}/messages, its live view, and one record; POST .../resend."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from klamm.client.filter import FilterError, compile_filter
from klamm.console.app.application import ConsoleApp, RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.topics import TopicPages
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.commands import consume_command, kcat_command
from klamm.console.core.record_views import RecordRow, ShownRecord, view_record
from klamm.console.core.roles import Action, Visitor, masked_paths
from klamm.console.message_reader import (
    RECORDS_MAX,
    ReadRequest,
    ReadResult,
    TailEvent,
    follow_records,
    read_one,
    read_records,
)
from klamm.console.read_request import READ_COMMITTED, READ_UNCOMMITTED
from klamm.console.transaction_marks import MarkedRecords, count_undecided, mark_transactions
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.units import parse_time_ms, pluralize

STARTS: Final = {"last": "Newest", "earliest": "Oldest", "offset": "From offset", "time": "From time"}
LIMITS: Final = (25, 50, 100, 250, RECORDS_MAX)
_RESEND_MAX: Final = 500
LIVE_MS_MAX: Final = 3_600_000
"""A header of a proxy, and roles of a provider, are read anew with a request only."""
_FOLLOWERS_MAX: Final = 100
_FOLLOWERS_PER_VISITOR_MAX: Final = 10
"""One browser with many tabs, or one script, must not take the live views of all others."""
_READ_FIELDS: Final = ("start", "partition", "offset", "time", "limit", "where", "key", "isolation")
ISOLATIONS: Final = (READ_COMMITTED, READ_UNCOMMITTED)
"""The first one is the default: an aborted record was never written for programs that use transactions."""


class MessagePages(PageGroup):
    """Reading records."""

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        self._followers: Counter[str] = Counter()
        """Live views that are open, by visitor; each has a consumer of its own."""

    def add_routes(self) -> None:
        """Serve these pages."""
        read = RouteRight(Action.READ, "topic")
        self.app.get("/c/{cluster}/topics/{topic}/messages", self.show_messages, read)
        self.app.get("/c/{cluster}/topics/{topic}/messages/export", self.export, read)
        self.app.get_stream("/c/{cluster}/topics/{topic}/messages/live", self.follow, read)
        self.app.get("/c/{cluster}/topics/{topic}/messages/{partition}/{offset}", self.show_record, read)
        self.app.post("/c/{cluster}/topics/{topic}/resend", self.resend, read)

    async def show_messages(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../messages?start=&partition=&offset=&time=&limit=&where=&key=, with `before` or `resume` of a link."""
        topic = await TopicPages(self.app).find_topic(request)
        failed, result = "", ReadResult()
        undecided, warnings = 0, list[str]()
        reading = ReadRequest(topic.name, isolation=ISOLATIONS[0])
        if not topic.partitions:
            failed = "The topic has no partitions yet."
        else:
            try:
                reading = await self._parse(request, topic.name)
                result = await read_records(request.cluster, reading)
                if reading.isolation == READ_COMMITTED:
                    undecided = await count_undecided(request.cluster, topic.name, result.partitions)
                else:
                    marked = await mark_transactions(request.cluster, topic.name, result.records)
                    result.records = marked.records
                    warnings += _warn_of_unchecked(marked)
            except (FilterError, ValueError) as error:
                failed = str(error)
        return self.app.page(
            request,
            "messages.html",
            400 if failed and topic.partitions else 200,
            title=topic.name,
            tab="messages",
            reading=reading,
            result=result,
            rows=await view_records(request, topic.name, result.records),
            failed=failed,
            starts=STARTS,
            limits=LIMITS,
            isolations=ISOLATIONS,
            form={name: request.text(name) for name in ("start", "partition", "offset", "time", "where", "key")},
            next_link=_next_link(request, reading, result),
            warnings=[*warnings, *([] if reading.where is None else reading.where.misses.sentences())],
            undecided=undecided,
            undecided_link=_query(request, _READ_FIELDS, isolation=READ_UNCOMMITTED),
            command=self._command(request, reading),
            masked=bool(reading.masked),
            raw=request.text("raw") == "1",
            raw_link=_query(request, _READ_FIELDS, **({} if request.text("raw") == "1" else {"raw": "1"})),
            live_query=_query(request, ("partition", "where", "key", "isolation", "raw")),
            export_query=_query(request, (*_READ_FIELDS, "raw")),
            **TopicPages(self.app).describe(request, topic),
        )

    async def _parse(self, request: ConsoleRequest, topic: str) -> ReadRequest:
        text = request.text
        start = text("start") or "last"
        if text("resume"):
            start = "resume"
        elif start not in STARTS:
            raise ValueError(f"there is no start {start!r}")
        limit = request.number("limit", 50)
        where, key = text("where").strip(), text("key")
        partition = text("partition")
        if partition and not (partition.isascii() and partition.isdecimal() and len(partition) < 9):
            raise ValueError(f"{partition!r} is no partition")
        offset = text("offset").strip()
        if start == "offset" and not (offset.isascii() and offset.isdecimal() and len(offset) < 19):
            raise ValueError("write the offset to begin at")
        if start == "time" and not text("time"):
            raise ValueError("write the time to begin at, such as 2h ago or 2026-05-01T12:00:00Z")
        isolation = text("isolation") or ISOLATIONS[0]
        if isolation not in ISOLATIONS:
            raise ValueError(f"there is no isolation {isolation!r}")
        schemas = request.cluster.schemas
        return ReadRequest(
            topic,
            start,
            int(partition) if partition else None,
            int(offset) if offset.isdecimal() else 0,
            parse_time_ms(text("time"), self.parts.now_ms()) if start == "time" else 0,
            min(max(limit, 1), RECORDS_MAX),
            compile_filter(where) if where else None,
            key.encode() if key else None,
            _parse_positions(text("resume") or text("before")),
            masked_paths(self.parts.settings.masks, topic, request.visitor),
            None if text("raw") == "1" else request.cluster.decoder,
            bool(key) and schemas is not None and await schemas.has_subject(f"{topic}-key"),
            isolation,
        )

    def _command(self, request: ConsoleRequest, reading: ReadRequest) -> str:
        target = request.cluster.cluster.command_target
        starts = {"offset": str(reading.offset), "earliest": "earliest", "time": request.text("time")}
        is_last = reading.start == "last"
        return consume_command(
            target,
            reading.topic,
            partition=reading.partition,
            start=starts.get(reading.start, ""),
            last=reading.limit if is_last else None,
            count=None if is_last else reading.limit,
            where=request.text("where").strip(),
            key=request.text("key"),
            committed=reading.isolation == READ_COMMITTED,
        )

    async def export(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../messages/export: the same records as JSON lines, as `klamm consume -o jsonl` writes them."""
        topic = request.values["topic"]
        try:
            result = await read_records(request.cluster, await self._parse(request, topic))
        except (FilterError, ValueError) as error:
            raise HttpRefusal(400, str(error)) from None
        lines = "".join(json.dumps(_export_row(record), ensure_ascii=False) + "\n" for record in result.records)
        disposition = ("content-disposition", 'attachment; filename="records.jsonl"')
        return HttpResponse(200, lines.encode(), "application/x-ndjson", (disposition,))

    async def follow(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../messages/live: server-sent events, each with the rows of new records."""
        try:
            reading = await self._parse(request, request.values["topic"])
        except (FilterError, ValueError) as error:
            raise HttpRefusal(400, str(error)) from None
        # Without logins all visitors have one name.
        visitor = request.visitor.name if self.parts.settings.needs_login else request.peer
        if self._followers[visitor] >= _FOLLOWERS_PER_VISITOR_MAX:
            raise HttpRefusal(429, f"{visitor} has {_FOLLOWERS_PER_VISITOR_MAX} open live views; close one")
        if self._followers.total() >= _FOLLOWERS_MAX:
            raise HttpRefusal(503, f"{_FOLLOWERS_MAX} live views are open; close one")
        # Here and not in the stream, which begins later: requests that come at once would all pass the check.
        self._followers[visitor] += 1
        request.when_answered.append(functools.partial(self._end_live_view, visitor))
        return HttpResponse(
            200,
            b"",
            "text/event-stream",
            # A proxy that collects the answer would turn a live view into a late one.
            (("x-accel-buffering", "no"),),
            self._events(request, follow_records(request.cluster, reading)),
        )

    def _end_live_view(self, visitor: str) -> None:
        self._followers[visitor] -= 1
        if not self._followers[visitor]:
            del self._followers[visitor]

    async def _events(self, request: ConsoleRequest, tail: AsyncGenerator[TailEvent, None]) -> AsyncIterator[bytes]:
        yield b"retry: 2000\n\n"
        visitor, until_ms = request.visitor, self.parts.now_ms() + LIVE_MS_MAX
        # Closed with the connection: its consumer must not wait for the garbage collector.
        async with contextlib.aclosing(tail):
            async for event in tail:
                # Each event anew, at least each second: the rights of the request are those of its beginning.
                ending = self._find_ending(request, visitor, until_ms)
                if ending:
                    yield f"event: end\ndata: {json.dumps(ending)}\n\n".encode()
                    return
                yield f"data: {json.dumps(await self._render_event(request, event))}\n\n".encode()

    def _find_ending(self, request: ConsoleRequest, visitor: Visitor, until_ms: int) -> str:
        """Return why a live view ends; empty when it goes on."""
        session = request.session
        if session is None or session.visitor != visitor or not self.parts.sessions.holds(session):
            return "The session has ended; load the page again."
        if not request.may(Action.READ, request.values["topic"]):
            return "The right to read this topic has ended."
        if self.parts.now_ms() >= until_ms:
            return f"A live view ends after {LIVE_MS_MAX // 60_000} minutes. Start it again."
        return ""

    async def _render_event(self, request: ConsoleRequest, event: TailEvent) -> dict[str, Any]:
        html = ""
        if event.records:
            newest_first = list(reversed(event.records))
            values: dict[str, Any] = {
                "rows": await view_records(request, request.values["topic"], newest_first),
                "base": self.path(request),
                "may_resend": False,
            }
            html = self.app.renderer.render("message_rows.html", values)
        return {"html": html, "count": len(event.records), "left_out": event.left_out, "scanned": event.scanned}

    async def show_record(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../messages/{partition}/{offset}: one record with everything."""
        topic = await TopicPages(self.app).find_topic(request)
        partition, offset = request.values["partition"], request.values["offset"]
        if not (partition.isdecimal() and offset.isdecimal()):
            raise HttpRefusal(404, "A record is named by the numbers of its partition and offset")
        masked = masked_paths(self.parts.settings.masks, topic.name, request.visitor)
        raw = request.text("raw") == "1"
        decoder = None if raw else request.cluster.decoder
        record = await read_one(request.cluster, topic.name, int(partition), int(offset), masked, decoder)
        marked = await mark_transactions(request.cluster, topic.name, [record])
        (row,) = await view_records(request, topic.name, marked.records)
        target = request.cluster.cluster.command_target
        return self.app.page(
            request,
            "message.html",
            title=f"{topic.name} {partition}/{offset}",
            tab="messages",
            row=row,
            raw=raw,
            masked=bool(masked),
            commands=[
                consume_command(target, topic.name, partition=int(partition), start=offset, count=1),
                kcat_command(target, topic.name, int(partition), int(offset)),
            ],
            **TopicPages(self.app).describe(request, topic),
        )

    async def resend(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../resend: write chosen records again, to this or another topic, with their keys and headers."""
        topic = request.values["topic"]
        target = request.form("target") or topic
        request.require(Action.PRODUCE, target)
        if masked_paths(self.parts.settings.masks, topic, request.visitor):
            raise HttpRefusal(403, f"Records of {topic} are masked for you; they cannot be sent again")
        places = [_parse_place(text) for text in request.form_list("record")]
        if not places:
            raise HttpRefusal(400, "Choose at least one record")
        if len(places) > _RESEND_MAX:
            raise HttpRefusal(400, f"At most {_RESEND_MAX} records at a time")
        records = [await read_one(request.cluster, topic, partition, offset, ()) for partition, offset in places]
        work = functools.partial(_send_all, request, target, records)
        detail = {"from": topic, "records": [f"{partition}/{offset}" for partition, offset in places]}
        done = f"Sent {pluralize(len(records), 'record')} to {target}."
        await self.app.change(request, "resend records", target, work, done=done, detail=detail)
        return redirect(self.path(request, "topics", target, "messages"))


async def view_records(request: ConsoleRequest, topic: str, records: Sequence[ShownRecord]) -> list[RecordRow]:
    """Return records as rows, with the subjects of their schemas."""
    notes = [note for record in records for note in (record.key_schema, record.value_schema) if note is not None]
    # Of schemas that were read: an id that the registry does not have is in no subject.
    ids = {note.id for note in notes if note.id is not None and note.kind}
    schemas = request.cluster.schemas
    subjects = {} if schemas is None or not ids else await schemas.find_subjects(ids, topic)
    return [view_record(record, subjects) for record in records]


async def _send_all(request: ConsoleRequest, target: str, records: list[ShownRecord]) -> None:
    producer = await request.cluster.producer()
    deliveries = [
        await producer.send(target, record.value, record.key, headers=list(record.headers)) for record in records
    ]
    for delivery in deliveries:
        await delivery


def _parse_positions(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `0:120,3:77`, where an earlier page stopped."""
    positions = []
    for part in text.split(",") if text else ():
        partition, _, offset = part.partition(":")
        if not (partition.isdecimal() and offset.isdecimal() and len(part) < 30):
            raise ValueError("the link to the next records is damaged")
        positions.append((int(partition), int(offset)))
    return tuple(positions)


def _parse_place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 30):
        raise HttpRefusal(400, f"{text[:30]!r} names no record; write PARTITION/OFFSET")
    return int(partition), int(offset)


def _query(request: ConsoleRequest, names: tuple[str, ...], **more: str) -> str:
    values = {**{name: request.text(name) for name in names if request.text(name)}, **more}
    return f"?{urlencode(values)}" if values else ""


def _next_link(request: ConsoleRequest, reading: ReadRequest, result: ReadResult) -> str:
    """The link that goes on where this page stopped; empty when everything was read."""
    if not result.positions:
        return ""
    places = ",".join(f"{partition}:{offset}" for partition, offset in sorted(result.positions.items()))
    return _query(request, (*_READ_FIELDS, "raw"), **{"before" if reading.start == "last" else "resume": places})


def _warn_of_unchecked(marked: MarkedRecords) -> list[str]:
    if not marked.unchecked:
        return []
    return [f"There was no time to check {pluralize(marked.unchecked, 'record')} for aborted transactions."]


def _export_row(record: ShownRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _export_value(record.key),
        "value": _export_value(record.value),
        "headers": {name: _export_value(value) for name, value in record.headers},
    }


def _export_value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
