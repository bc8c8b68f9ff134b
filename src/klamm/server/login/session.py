"""The frame handler of a connection whose login ends: it renews the login (KIP-368) and passes all else to the router.

Only connections whose session has an end have it: all others are the router's alone.
"""

import asyncio
import struct
from typing import Final

from klamm.model.errors import ProtocolError
from klamm.net import Channel, FrameHandler
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode
from klamm.protocol.header import decode_request_header
from klamm.server.login.exchange import LoginExchange, Stage
from klamm.server.login.refusals import refuse
from klamm.server.login.settings import LoginSettings
from klamm.server.requests.context import ListenerContext, RequestContext
from klamm.server.requests.replies import response_parts

SASL_HANDSHAKE: Final = BY_NAME["SaslHandshake"]
SASL_AUTHENTICATE: Final = BY_NAME["SaslAuthenticate"]
RENEWAL_INTERVAL_MS: Final = 1000
"""A renewal that begins sooner after the last is refused, as in Kafka."""

_START: Final = struct.Struct(">hh")


class SessionHandler:
    """Handles the frames of a connection that is logged in for a limited time."""

    __slots__ = ("_began_ms", "_ends_ms", "_exchange", "_login", "_loop", "_router", "_settings")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: LoginSettings, router: FrameHandler, login: LoginExchange
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._router = router
        self._exchange: LoginExchange | None = None
        """The renewal under way."""
        self._began_ms = 0
        self._ends_ms: int | None = None
        self._login = login
        self._begin_session(login)

    def _begin_session(self, login: LoginExchange) -> None:
        self._login = login
        self._began_ms = self._settings.clock.monotonic_ms()
        self._ends_ms = self._began_ms + login.session_ms if login.session_ms else None

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Renew the login, or pass the request to the router while the session lasts."""
        api_key, version = _START.unpack_from(view, start)
        now_ms = self._settings.clock.monotonic_ms()
        try:
            if self._exchange is not None:
                self._take_token(channel, view[start:end])
            elif api_key == SASL_HANDSHAKE.key and version > 0 and now_ms - self._began_ms >= RENEWAL_INTERVAL_MS:
                self._take_handshake(channel, view[start:end])
            # SaslHandshake even then: the router answers ILLEGAL_SASL_STATE to one that comes too soon.
            elif self._ends_ms is not None and now_ms > self._ends_ms and api_key != SASL_HANDSHAKE.key:
                channel.end("session expired", decided_by="node")
            else:
                self._router.handle(channel, view, start, end)
        except ProtocolError as error:
            channel.close(f"invalid request of a renewal: {error}")

    def on_closed(self, channel: Channel) -> None:
        """Drop what the router keeps of the connection."""
        self._router.on_closed(channel)

    def _take_handshake(self, channel: Channel, frame: memoryview) -> None:
        context, offset = _read_context(channel, frame)
        request, _ = decode(SASL_HANDSHAKE.request, context.version, frame, offset)
        exchange = LoginExchange(self._settings, renewal_of=self._login.identity)
        reply = b"".join(response_parts(context, exchange.choose(request.mechanism)))  # type: ignore[arg-type]
        if exchange.stage is Stage.REFUSED:
            self._refuse(channel, exchange, reply)
            return
        self._exchange = exchange
        channel.reply(reply)

    def _take_token(self, channel: Channel, frame: memoryview) -> None:
        exchange = self._exchange
        assert exchange is not None
        context, offset = _read_context(channel, frame)
        # Kafka closes here, too, when the client has changed the mechanism.
        if context.api_key != SASL_AUTHENTICATE.key or exchange.mechanism != self._login.mechanism:
            channel.close("no token of the mechanism that the session began with")
            return
        request, _ = decode(SASL_AUTHENTICATE.request, context.version, frame, offset)
        response = exchange.answer(bytes(request.auth_bytes))
        reply = b"".join(response_parts(context, response))  # type: ignore[arg-type]
        if exchange.stage is Stage.REFUSED:
            self._refuse(channel, exchange, reply)
            return
        channel.reply(reply)
        if exchange.stage is Stage.COMPLETE:
            self._exchange = None
            self._settings.counts.count_success(channel.listener)
            self._begin_session(exchange)

    def _refuse(self, channel: Channel, exchange: LoginExchange, reply: bytes) -> None:
        refuse(self._loop, self._settings, channel, reply, mechanism=exchange.mechanism, reason=exchange.reason)


def _read_context(channel: Channel, frame: memoryview) -> tuple[RequestContext, int]:
    header, offset = decode_request_header(frame)
    listener: ListenerContext = channel.context  # type: ignore[assignment]
    context = RequestContext(
        channel, listener, header.api_key, header.api_version, header.correlation_id, header.client_id, frame
    )
    return context, offset
