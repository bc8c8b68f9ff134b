"""Replies that are sent later and keep their place in the order of the connection."""

import struct
from collections.abc import Callable
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.apis import APIS
from klamm.protocol.header import response_header_version
from klamm.protocol.schema import declaration
from klamm.server.requests.context import RequestContext
from klamm.server.requests.failures import log_request_failed
from klamm.server.requests.replies import response_parts

_NO_FRAME = memoryview(b"")
_INT32 = struct.Struct(">i")
_HEAD_BYTES = 8
"""Length and correlation id."""


class DeferredReply:
    """Sends the reply of one request when called with a response or with a KlammError.

    `refuse` builds the response for an error code.
    """

    __slots__ = ("_context", "_refuse", "_slot")

    def __init__(self, context: RequestContext, refuse: Callable[[ErrorCode], Any]) -> None:
        context.frame = _NO_FRAME  # the request's bytes are borrowed for this turn, and the reply may take minutes
        self._context = context
        # Reserves the place in the order of replies, which Kafka's clients rely on.
        self._slot = context.channel.defer()
        self._refuse = refuse

    def __call__(self, response: Any) -> None:
        """Send the reply."""
        if isinstance(response, KlammError):
            response = self._refuse(response.code)
        context = self._context
        try:
            parts = response_parts(context, response)
        except Exception as error:  # noqa: BLE001 - the caller has other replies to send
            log_request_failed(context.channel, context.api_key, context.version, error)
            # Closes the connection: the replies behind this one would wait for ever.
            self._slot.abandon()
            return
        self._slot.send(parts)

    def send(self, frame: bytes) -> None:
        """Send a reply that is encoded already, with length and header."""
        context = self._context
        if context.meter is not None:
            frame = _set_throttle_time(context, frame, context.meter.finish_encoded())
        self._slot.send((frame,))


def _set_throttle_time(context: RequestContext, frame: bytes, throttle_ms: int) -> bytes:
    """Return a reply with the throttle time, if it begins with one: the first versions of an API have none."""
    first = declaration(APIS[context.api_key].response).fields[0]
    if first.name != "throttle_time_ms" or not first.lives_in(context.version):
        return frame
    reply = bytearray(frame)
    _INT32.pack_into(reply, _HEAD_BYTES + response_header_version(context.api_key, context.version), throttle_ms)
    return bytes(reply)


class ReplyCollector:
    """Collects responses that arrive in any order; calls `finish` with all of them, in order, after the last one."""

    def __init__(self, count: int, finish: Callable[[list[Any]], None]) -> None:
        self._responses: list[Any] = [None] * count
        self._missing = count
        self._finish = finish
        # No response will come to trigger it.
        if not count:
            finish([])

    def place(self, index: int) -> Callable[[Any], None]:
        """Return the callback for response number `index`."""

        def collect(response: Any) -> None:
            self._responses[index] = response
            self._missing -= 1
            if not self._missing:
                self._finish(self._responses)

        return collect
