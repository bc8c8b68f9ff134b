"""Encodes a response into the parts a connection sends: length, header, body, and regions of files in between."""

import asyncio
from collections.abc import Sequence
from typing import Any

from klamm.net.file_region import ReplyPart
from klamm.protocol.codec import encode_in_slices, encode_into
from klamm.protocol.framing import encode_response_start
from klamm.protocol.header import response_header_version
from klamm.protocol.response_errors import find_errors
from klamm.server.requests.context import RequestContext
from klamm.storage import FileSlice
from klamm.telemetry.request_times import ApiTimes


class RecordRegion:
    """Record batches in a file, sent with sendfile instead of being read."""

    __slots__ = ("_file", "length", "position")

    def __init__(self, region: FileSlice) -> None:
        self._file = region.file  # keeps the descriptor open until the reply is sent
        self.position = region.position
        self.length = region.length

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> int:
        """Return the descriptor of the file, which stays open as long as this object lives."""
        return self._file.fd


def count_errors(times: ApiTimes | None, response: Any) -> None:
    """Count the errors in a response, for the metrics of its API."""
    if times is not None:
        for code in find_errors(response):
            times.count_error(code)


def response_parts(context: RequestContext, response: Any) -> Sequence[ReplyPart]:
    """Encode a reply: length, header, body; record batches stay in their files."""
    count_errors(context.times, response)
    if context.meter is not None:
        response = context.meter.finish(response)
    body: list[Any] = []
    encode_into(response, context.version, body)
    return frame_parts(context, body)


async def response_parts_in_slices(context: RequestContext, response: Any) -> Sequence[ReplyPart]:
    """`response_parts` for a large response, in slices: other connections are served in between."""
    count_errors(context.times, response)
    if context.meter is not None:
        response = context.meter.finish(response)
    body: list[Any] = []
    for _ in encode_in_slices(response, context.version, body):
        await asyncio.sleep(0)
    return frame_parts(context, body)


def build_frame(correlation_id: int, body: bytes, *, flexible: bool) -> bytes:
    """Return a reply whose body is encoded already."""
    return encode_response_start(4 + flexible + len(body), correlation_id) + (b"\0" if flexible else b"") + body


def frame_parts(context: RequestContext, body: list[Any]) -> Sequence[ReplyPart]:
    """Return the reply as runs of bytes and file regions, with length and header first."""
    flexible = response_header_version(context.api_key, context.version)
    try:
        # Tried first: only Fetch has file regions, and a search for one in every reply would cost more.
        return (build_frame(context.correlation_id, b"".join(body), flexible=bool(flexible)),)
    except TypeError:
        pass  # a file region is among them, which is not bytes
    size = 4 + flexible + sum(map(len, body))
    head = encode_response_start(size, context.correlation_id) + (b"\0" if flexible else b"")
    parts: list[ReplyPart] = []
    run = [head]
    for piece in body:
        if isinstance(piece, (bytes, bytearray, memoryview)):
            run.append(piece)  # type: ignore[arg-type]
        else:
            parts.append(b"".join(run))
            parts.append(piece)
            run = []
    if run:
        parts.append(b"".join(run))
    return parts
