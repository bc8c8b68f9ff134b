"""Requests and responses, whose bodies are whole or a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

from klamm.http.refusals import HttpRefusal
from klamm.security.core.principal import ANONYMOUS, Principal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = "application/json"
_NUMBER_MAX: Final = (1 << 31) - 1


class BodyStream:
    """The chunks of a body as they arrive. HttpRefusal 400 when the client disconnects before its end."""

    def __init__(self, receive: Receive, *, empty: bool, idle_s: float) -> None:
        self._receive = receive
        self.idle_s = idle_s
        """Without a chunk for so long, reading raises TimeoutError."""
        self.ended = empty
        """Whether all chunks were read."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.ended:
            async with asyncio.timeout(self.idle_s):
                message = await self._receive()
            if message["type"] == "http.disconnect":
                raise HttpRefusal(400, "the client closed the connection")
            self.ended = not message.get("more_body", False)
            chunk: bytes = message.get("body", b"")
            if chunk:
                yield chunk

    async def read(self, bytes_max: int) -> bytes:
        """Return the rest of the body; HttpRefusal 413 when it is longer than `bytes_max`."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in self:
            size += len(chunk)
            if size > bytes_max:
                raise too_long(bytes_max)
            chunks.append(chunk)
        return b"".join(chunks)

    async def wait_disconnect(self) -> None:
        """Return when the client has closed the connection; only after the end of the body."""
        assert self.ended
        while (await self._receive())["type"] != "http.disconnect":
            pass


def too_long(bytes_max: int) -> HttpRefusal:
    """Return the refusal of a body."""
    return HttpRefusal(413, f"the body is longer than {bytes_max} bytes")


@dataclass(slots=True)
class HttpRequest:
    """A request; values of the path are decoded segment by segment. Names of headers are in lower case."""

    method: str
    target: str
    """Path and query as they were sent."""
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""
    """Empty on a route that streams."""
    values: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    principal: Principal = ANONYMOUS
    stream: BodyStream | None = None
    """Of a route that streams."""
    when_answered: list[Callable[[], None]] = field(default_factory=list)
    """Called when the response is sent, streams to their end, or the client has gone."""

    def flag(self, name: str) -> bool:
        """Return a boolean of the query; False without it."""
        return self.text(name).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        """Return a text of the query."""
        values = self.query.get(name)
        return values[0] if values else default

    def number(self, name: str, default: int) -> int:
        """Return a number of the query, within int32 and not below -1."""
        text = self.text(name)
        if not text:
            return default
        try:
            return max(min(int(text), _NUMBER_MAX), -1)
        except ValueError:
            raise HttpRefusal(400, f"the parameter {name}={text} is not a number") from None

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty one without a body."""
        if not self.body:
            return {}
        try:
            body = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise HttpRefusal(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise HttpRefusal(400, "the body is not a JSON object")
        return body


@dataclass(slots=True)
class HttpResponse:
    """A response; an empty `content_type` is replaced by that of the application, or the one that was negotiated."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    chunks: AsyncIterator[bytes] | None = None
    """Sent one by one instead of `body`; closed when the client disconnects."""


class Answered(Exception):
    """Ends an endpoint with a response, from whatever depth."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.response = response


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """Return a response with a JSON body."""
    try:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON has only as an escape.
        body = json.dumps(value, separators=(",", ":")).encode()
    return HttpResponse(status, body)


def parse_query(text: bytes) -> dict[str, list[str]]:
    """Parse a query; a parameter without a value counts as given."""
    return parse_qs(text.decode("latin-1"), keep_blank_values=True) if text else {}


async def send_response(response: HttpResponse, send: Send, *, with_body: bool, body: BodyStream | None = None) -> None:
    """Send a response; a stream ends early when the client disconnects, which `body` tells once it is read."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    if response.status != 204:
        headers.append((b"content-type", response.content_type.encode("latin-1")))
        if response.chunks is None:
            headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.chunks is not None and with_body:
        await _send_chunks(response.chunks, send, body)
    await send({"type": "http.response.body", "body": response.body if with_body else b""})


async def _send_chunks(chunks: AsyncIterator[bytes], send: Send, body: BodyStream | None) -> None:
    sending = asyncio.create_task(_send_all(chunks, send))
    # The server drops what is sent to a closed connection without an error: an endless stream would go on for ever.
    # While the body is still being read, its reader sees the disconnect.
    leaving = asyncio.create_task(body.wait_disconnect()) if body is not None and body.ended else None
    try:
        if leaving is None:
            await sending
        else:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
    finally:
        for task in filter(None, (sending, leaving)):
            task.cancel()
        await asyncio.gather(*filter(None, (sending, leaving)), return_exceptions=True)


async def _send_all(chunks: AsyncIterator[bytes], send: Send) -> None:
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            # To a closed connection the server's `send` returns without a wait. Chunks that need no wait either would
            # keep the event loop from the task that sees the disconnect.
            await asyncio.sleep(0)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
