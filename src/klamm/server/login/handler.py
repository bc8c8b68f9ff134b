"""The frame handler of a connection to a SASL listener until it is logged in; the router takes its place then.

Order on the wire: ApiVersions (optional, answered once), SaslHandshake, tokens. After SaslHandshake v0 tokens are bare
frames, after v1 they are in SaslAuthenticate requests. Anything else first closes the connection, as in Kafka.
"""

import asyncio
from typing import Any, Final

from klamm.model.errors import ErrorCode, ProtocolError, RemoteProtocolError
from klamm.net import Channel, FrameHandler
from klamm.net.channel import REQUEST_BYTES_MIN
from klamm.protocol.apis import API_VERSIONS, BY_NAME, Api
from klamm.protocol.codec import decode
from klamm.protocol.framing import encode_frame
from klamm.protocol.header import decode_request_header
from klamm.protocol.schema import declaration
from klamm.server.login.budget import SILENT_BYTES, TLS_BYTES
from klamm.server.login.exchange import LoginExchange, Stage
from klamm.server.login.refusals import refuse
from klamm.server.login.session import SessionHandler
from klamm.server.login.settings import LOGIN_SECONDS_MAX, LoginSettings
from klamm.server.requests.context import ListenerContext, RequestContext
from klamm.server.requests.failures import log_request_failed
from klamm.server.requests.replies import response_parts
from klamm.telemetry.log import get_logger

log = get_logger("login")

SASL_HANDSHAKE: Final = BY_NAME["SaslHandshake"]
SASL_AUTHENTICATE: Final = BY_NAME["SaslAuthenticate"]
FIRST_FRAME_BYTES_MAX: Final = 24 * 1024
"""Of ApiVersions or SaslHandshake, whose only text of any length is the client id."""


class LoginHandler:
    """Handles the frames of one connection before its login."""

    __slots__ = ("_bare_tokens", "_begun", "_deadline", "_exchange", "_has_versions", "_loop", "_router", "_settings")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: LoginSettings, router: FrameHandler, channel: Channel
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._router = router
        self._exchange = LoginExchange(settings)
        self._has_versions = False
        self._bare_tokens = False
        self._begun = False
        self._deadline = loop.call_later(LOGIN_SECONDS_MAX, self._expire, channel)
        # The first frame is a short one, and fits the buffer that every connection has.
        channel.limit_frames(REQUEST_BYTES_MIN, min(settings.frame_bytes_max, FIRST_FRAME_BYTES_MAX))
        # Then a buffer doubles until the frame fits, so it may be twice as large.
        settings.budget.add(channel, SILENT_BYTES, 2 * settings.frame_bytes_max + TLS_BYTES)

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Handle one frame of the login."""
        # Several frames may come with one read: those behind the end of the login are the next handler's.
        if channel.handler is not self:
            channel.handler.handle(channel, view, start, end)
            return
        if not self._begun:
            self._begun = True
            channel.limit_frames(REQUEST_BYTES_MIN, self._settings.frame_bytes_max)
            self._settings.budget.begin(channel)
            if channel.closed:
                return
        try:
            if self._bare_tokens:
                self._take_bare_token(channel, bytes(view[start:end]))
            else:
                self._take_request(channel, view, start, end)
        except ProtocolError as error:
            log.info("login refused", peer=channel.peer_address, listener=channel.listener, reason=error)
            self._settings.counts.count_failure(channel.listener)
            channel.end("no valid request of a login", decided_by="node")
        except Exception as error:  # noqa: BLE001 - a bug in one login must not take the others down
            log_request_failed(channel, SASL_AUTHENTICATE.key, 0, error)
            channel.close("login failed")

    def on_closed(self, channel: Channel) -> None:
        """Stop the timer, and drop what the router keeps of the connection."""
        self._deadline.cancel()
        self._settings.budget.remove(channel)
        self._router.on_closed(channel)

    def _expire(self, channel: Channel) -> None:
        self._settings.counts.count_failure(channel.listener)
        channel.close("login not completed in time")

    def _take_request(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        frame = view[start:end]
        header, offset = decode_request_header(frame)
        listener: ListenerContext = channel.context  # type: ignore[assignment]
        context = RequestContext(
            channel, listener, header.api_key, header.api_version, header.correlation_id, header.client_id, frame
        )
        if self._exchange.stage is Stage.TOKENS:
            self._take_token(context, offset)
        elif header.api_key == SASL_HANDSHAKE.key:
            self._take_handshake(context, offset)
        elif header.api_key == API_VERSIONS and not self._has_versions:
            # An unknown version is answered with the known ones, and the client may ask again.
            self._has_versions = listener.routes[API_VERSIONS].api.serves(header.api_version)
            self._router.handle(channel, view, start, end)
        else:
            raise RemoteProtocolError(f"API {header.api_key} before SaslHandshake")

    def _take_handshake(self, context: RequestContext, offset: int) -> None:
        request = decode_login(SASL_HANDSHAKE, context, offset)
        response = self._exchange.choose(request.mechanism)
        reply = b"".join(response_parts(context, response))  # type: ignore[arg-type]
        if self._exchange.stage is Stage.REFUSED:
            self._refuse(context.channel, reply, f"{request.mechanism!r} is not enabled on this listener"[:100])
            return
        if context.version == 0:
            self._bare_tokens = True
            context.channel.limit_frames(0, self._settings.frame_bytes_max)
        context.channel.reply(reply)

    def _take_token(self, context: RequestContext, offset: int) -> None:
        channel = context.channel
        if context.api_key != SASL_AUTHENTICATE.key:
            self._refuse(channel, illegal_state_reply(context), f"API {context.api_key} in the middle of a login")
            return
        request = decode_login(SASL_AUTHENTICATE, context, offset)
        response = self._exchange.answer(bytes(request.auth_bytes))
        reply = b"".join(response_parts(context, response))  # type: ignore[arg-type]
        if self._exchange.stage is Stage.REFUSED:
            self._refuse(channel, reply, self._exchange.reason)
            return
        channel.reply(reply)
        if self._exchange.stage is Stage.COMPLETE:
            self._complete(channel)

    def _take_bare_token(self, channel: Channel, token: bytes) -> None:
        response = self._exchange.answer(token)
        if self._exchange.stage is Stage.REFUSED:
            # Without SaslAuthenticate there is no place for a reason.
            self._refuse(channel, None, self._exchange.reason)
            return
        channel.reply(encode_frame((response.auth_bytes,)))
        if self._exchange.stage is Stage.COMPLETE:
            self._complete(channel)

    def _refuse(self, channel: Channel, reply: bytes | None, reason: str) -> None:
        refuse(self._loop, self._settings, channel, reply, mechanism=self._exchange.mechanism, reason=reason)

    def _complete(self, channel: Channel) -> None:
        identity = self._exchange.identity
        assert identity is not None
        self._deadline.cancel()
        self._settings.budget.remove(channel)
        self._settings.counts.count_success(channel.listener)
        channel.principal = identity.principal
        channel.limit_frames(REQUEST_BYTES_MIN, self._settings.request_bytes_max)
        log.debug("logged in", peer=channel.peer_address, listener=channel.listener, principal=identity.principal)
        if self._exchange.session_ms:
            channel.handler = SessionHandler(self._loop, self._settings, self._router, self._exchange)
        else:
            channel.handler = self._router


def decode_login(api: Api, context: RequestContext, offset: int) -> Any:
    """Decode a request of a login; RemoteProtocolError for a version that is not served."""
    if not api.serves(context.version):
        raise RemoteProtocolError(f"{api.name} v{context.version} is not served")
    request, _ = decode(api.request, context.version, context.frame, offset)
    return request


def illegal_state_reply(context: RequestContext) -> bytes | None:
    """Return the answer ILLEGAL_SASL_STATE of an API, or None if its response has no place for an error."""
    route = context.listener.routes.get(context.api_key)
    if route is None or not route.api.serves(context.version):
        return None
    response = route.api.response
    names = {field.name for field in declaration(response).fields if field.lives_in(context.version)}
    if "error_code" not in names:
        return None
    return b"".join(response_parts(context, response(error_code=ErrorCode.ILLEGAL_SASL_STATE)))  # type: ignore[arg-type]
