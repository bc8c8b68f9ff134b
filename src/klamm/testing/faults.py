"""Faults of a running broker: delays and errors by API, injected in front of its router."""

import asyncio
import re
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.net import Channel
from klamm.protocol.codec import decode
from klamm.protocol.header import decode_request_header
from klamm.server.requests.context import RequestContext
from klamm.server.requests.replies import response_parts
from klamm.testing.refusals import NoErrorFieldError, build_refusal

_API_VERSIONS_KEY = 18
_KEY = struct.Struct(">h")
_CLIENT_ID = struct.Struct(">8xh")
"""The length of a request's client id, behind API key, version and correlation id."""
_NODE = re.compile(rb"broker-\d+-")
"""The prefix of client ids of requests between brokers."""


@dataclass(slots=True)
class InjectedDelay:
    """A delay of requests before they are handled."""

    seconds: float
    api_key: int | None


@dataclass(slots=True)
class InjectedError:
    """An error that is returned `times` times; None is until healed."""

    code: ErrorCode
    api_key: int | None
    times: int | None


class FaultyHandler:
    """The frame handler in front of a node's router while faults are set.

    Faults apply to clients only; requests between nodes are served as usual, or delays would cause elections. A delayed
    request delays those behind it on its connection, so that responses keep their order. Runs on the node's loop. A
    delayed frame is copied into a writable buffer, as the connection's is: offsets are written into batches in place.
    """

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self._loop = loop
        self.delays: list[InjectedDelay] = []
        self.errors: list[InjectedError] = []
        self._delayed: dict[Channel, deque[bytearray]] = {}
        self._timers: dict[Channel, asyncio.TimerHandle] = {}

    def heal(self) -> None:
        """End all faults; serve delayed requests at once."""
        self.delays.clear()
        self.errors.clear()
        for channel, waiting in list(self._delayed.items()):
            self._drop_delayed(channel)
            for frame in waiting:
                if not channel.closed:
                    self._serve(channel, memoryview(frame), 0, len(frame))

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Handle, delay or refuse a frame."""
        if not (self.delays or self.errors or self._delayed) or _is_from_broker(channel, view, start, end):
            self.inner.handle(channel, view, start, end)
            return
        waiting = self._delayed.get(channel)
        # Behind a delayed request of the connection, whatever the API: Kafka answers in request order.
        if waiting is not None:
            waiting.append(bytearray(view[start:end]))
            return
        delay = self._delay(_KEY.unpack_from(view, start)[0])
        if delay:
            self._delayed[channel] = deque([bytearray(view[start:end])])
            self._timers[channel] = self._loop.call_later(delay, self._serve_delayed, channel)
            return
        self._serve(channel, view, start, end)

    def _serve_delayed(self, channel: Channel) -> None:
        """Serve the oldest delayed frame; the delay of the next one starts now."""
        waiting = self._delayed.get(channel)
        if not waiting or channel.closed:
            self._drop_delayed(channel)
            return
        frame = waiting.popleft()
        self._serve(channel, memoryview(frame), 0, len(frame))
        if waiting:
            delay = self._delay(_KEY.unpack_from(waiting[0])[0])
            self._timers[channel] = self._loop.call_later(delay, self._serve_delayed, channel)
        else:
            self._drop_delayed(channel)

    def _drop_delayed(self, channel: Channel) -> None:
        self._delayed.pop(channel, None)
        timer = self._timers.pop(channel, None)
        if timer is not None:
            timer.cancel()

    def on_closed(self, channel: Channel) -> None:
        """The connection has ended."""
        self._drop_delayed(channel)
        self.inner.on_closed(channel)

    def _delay(self, api_key: int) -> float:
        return max((delay.seconds for delay in self.delays if delay.api_key in (None, api_key)), default=0.0)

    def _serve(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        api_key = _KEY.unpack_from(view, start)[0]
        rule = next((refusal for refusal in self.errors if refusal.api_key in (None, api_key)), None)
        # ApiVersions is refused only by name: without it a client cannot reach the API under test.
        if rule is None or (rule.api_key is None and api_key == _API_VERSIONS_KEY):
            self.inner.handle(channel, view, start, end)
            return
        if self._refuse(channel, view[start:end], rule.code):
            if rule.times is not None:
                rule.times -= 1
                if rule.times <= 0:
                    self.errors.remove(rule)
        else:
            self.inner.handle(channel, view, start, end)

    def _refuse(self, channel: Channel, frame: memoryview, code: ErrorCode) -> bool:
        header, offset = decode_request_header(frame)
        listener: Any = channel.context
        route = listener.routes.get(header.api_key)
        if route is None or not route.api.serves(header.api_version):
            return False
        request, _ = decode(route.api.request, header.api_version, frame, offset)
        # A produce without response can only fail by the connection, as in Kafka.
        if getattr(request, "acks", None) == 0:
            channel.close("a request with acks=0 was refused")
            return True
        try:
            response = build_refusal(route.api, request, code)
        except NoErrorFieldError:
            return False
        context = RequestContext(
            channel, listener, header.api_key, header.api_version, header.correlation_id, header.client_id, frame
        )
        channel.reply_parts(response_parts(context, response))
        return True


def _is_from_broker(channel: Channel, view: memoryview, start: int, end: int) -> bool:
    context: Any = channel.context
    if context.kind == "controller":
        return True
    if end - start < _CLIENT_ID.size:
        return False
    (length,) = _CLIENT_ID.unpack_from(view, start)
    begin = start + _CLIENT_ID.size
    return _NODE.match(view[begin : min(begin + max(length, 0), end)]) is not None
