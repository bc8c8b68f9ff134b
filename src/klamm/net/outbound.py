"""Connections to other nodes over TLS and with a login: made, encrypted and logged in before anything else is sent."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from klamm.model.errors import ProtocolError, RemoteProtocolError
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode, encode_into
from klamm.protocol.framing import OwnedFrames, encode_frame
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.security.core.refusal import LoginRefused
from klamm.security.login import Credentials, log_in

RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""Of a login: its answers are a few hundred bytes."""

SESSION_PART: Final = 0.85
"""The part of a login's lifetime after which its connection is replaced; Kafka's clients renew at 85 to 95 %."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class OutboundSecurity:
    """How this node connects to the listeners of other nodes."""

    make_context: Callable[[], ssl.SSLContext] | None = field(default=None, repr=False)
    """Returns the present TLS context; a reload of the key store replaces it. None for listeners without TLS."""
    credentials: Credentials | None = None
    """The node's own user; None for listeners without SASL."""


async def connect_securely(
    loop: asyncio.AbstractEventLoop,
    make_protocol: Callable[[], P],
    host: str,
    port: int,
    security: OutboundSecurity | None,
    *,
    client_id: str,
) -> tuple[P, int]:
    """Connect and log in; returns the protocol, and for how many milliseconds the login is valid (0: for ever).

    OSError if the node cannot be reached or its certificate is refused; a refused login is a PermissionError.
    """
    context = security.make_context() if security is not None and security.make_context is not None else None
    tls: dict[str, Any] = {"ssl": context, "server_hostname": host} if context is not None else {}
    if security is None or security.credentials is None:
        _, protocol = await loop.create_connection(make_protocol, host, port, **tls)
        return protocol, 0
    transport, login = await loop.create_connection(lambda: _LoginProtocol(loop, client_id), host, port, **tls)
    try:
        lifetime_ms = await log_in(login.ask, security.credentials)
    except (LoginRefused, ProtocolError) as error:
        transport.abort()
        raise PermissionError(f"login as {security.credentials.user} refused: {error}") from None
    except BaseException:
        transport.abort()
        raise
    protocol = make_protocol()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return protocol, lifetime_ms


class _LoginProtocol(asyncio.Protocol):
    """A connection during its login: one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client_id: str) -> None:
        self._loop = loop
        self._client_id = client_id
        self._frames = OwnedFrames(4, RESPONSE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[memoryview] | None = None
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                if self._waiting is None or self._waiting.done():
                    raise RemoteProtocolError("a response without a request")
                self._waiting.set_result(frame)
        except ProtocolError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the connection was closed during the login"))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    async def ask(self, request: Any, version: int) -> Any:
        """Return the response to a request."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError("the connection was closed during the login")
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        self._number += 1
        self._waiting = self._loop.create_future()
        body: list[Any] = [encode_request_header(RequestHeader(api.key, version, self._number, self._client_id))]
        encode_into(request, version, body)
        self._transport.write(encode_frame(body))
        frame = await self._waiting
        number, offset = decode_response_header(frame, api.key, version)
        if number != self._number:
            raise RemoteProtocolError(f"a response to request {number}, not {self._number}")
        response, _ = decode(api.response, version, frame, offset)
        return response
