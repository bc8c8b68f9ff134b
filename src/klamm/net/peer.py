"""Outbound connections between nodes: requests in, futures of responses out.

    peer = Peer(loop, "127.0.0.1", 9093, client_id="raft-1")
    answer = await peer.ask(VoteRequest(...), 2)

A peer connects on the first request, pipelines requests, and connects again after a loss; the pause between attempts
grows up to a limit. A request is sent at most once: the caller decides whether to send it again.
"""

import asyncio
import errno
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from klamm.model.errors import ErrorCode, KlammError, ProtocolError, RemoteProtocolError
from klamm.net.outbound import SESSION_PART, OutboundSecurity, connect_securely
from klamm.protocol.apis import API_VERSIONS, BY_NAME, Api
from klamm.protocol.codec import decode, encode_into
from klamm.protocol.framing import OwnedFrames, encode_frame
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest

RESPONSE_BYTES_MIN = 4
"""The correlation id."""
RESPONSE_BYTES_MAX = 256 << 20
"""Above any response of a node; a larger length is garbage, and must not be allocated."""
IN_FLIGHT_MAX = 1024
"""Requests of one connection that may wait for their responses."""
API_VERSIONS_VERSION = 3

_CORRELATION = struct.Struct(">i")

Body = Iterable[bytes | bytearray | memoryview]


class PeerGone(ConnectionError):
    """The other node cannot be reached, or the connection was lost before it answered.

    `refused` means that its machine answered and no process listens at the port.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class _PendingRequest:
    """One request whose response has not come."""

    __slots__ = ("api_key", "future", "timer", "version")

    def __init__(self, api_key: int, version: int, future: "asyncio.Future[memoryview]") -> None:
        self.api_key = api_key
        self.version = version
        self.future = future
        self.timer: asyncio.TimerHandle | None = None


class _Link(asyncio.BufferedProtocol):
    """One connection of a peer: cuts what arrives into frames and completes the request that each responds to."""

    def __init__(self, peer: "Peer") -> None:
        self._peer = peer
        self._transport: asyncio.WriteTransport | None = None
        self._frames = OwnedFrames(RESPONSE_BYTES_MIN, RESPONSE_BYTES_MAX)
        self._next_correlation_id = 0
        self._waiting: dict[int, _PendingRequest] = {}
        self.versions: dict[int, tuple[int, int]] | None = None
        self.asking_versions: asyncio.Future[None] | None = None
        self._retired = False
        self.closed = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._frames.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._handle_frames(self._frames.receive, nbytes)

    def data_received(self, data: bytes) -> None:
        """As the two above, for a transport that brings its own bytes."""
        self._handle_frames(self._frames.feed, data)

    def _handle_frames(self, receive: Callable[[Any], list[memoryview]], received: int | bytes) -> None:
        try:
            for frame in receive(received):
                self._answer(frame)
        except ProtocolError as error:
            self.close(f"{self._peer.address} sent no response: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        self._end(f"{self._peer.address} closed the connection{reason}")

    # the peer's side

    def send(
        self, api_key: int, version: int, body: Body, client_id: str, timeout_ms: int
    ) -> "asyncio.Future[memoryview]":
        """Send one request; the future gets the response after its header."""
        assert self._transport is not None
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise KlammError(ErrorCode.NETWORK_EXCEPTION, f"{IN_FLIGHT_MAX} requests wait for {self._peer.address}")
        loop = self._peer.loop
        # Not beyond int32; 1,024 in flight at most, so a number that comes again is free.
        self._next_correlation_id = number = (self._next_correlation_id + 1) & 0x7FFFFFFF
        waiting = _PendingRequest(api_key, version, loop.create_future())
        self._waiting[number] = waiting
        waiting.timer = loop.call_later(timeout_ms / 1000, self._expire, number, timeout_ms)
        header = encode_request_header(RequestHeader(api_key, version, number, client_id))
        self._transport.write(encode_frame((header, *body)))
        return waiting.future

    def _answer(self, frame: memoryview) -> None:
        (number,) = _CORRELATION.unpack_from(frame)
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            raise RemoteProtocolError(f"a response to request {number}, which is not pending")
        assert waiting.timer is not None
        waiting.timer.cancel()
        # By the version that was sent: the header of a flexible response has tagged fields, that of ApiVersions never.
        _, offset = decode_response_header(frame, waiting.api_key, waiting.version)
        # The caller may have been cancelled while it waited.
        if not waiting.future.done():
            waiting.future.set_result(frame[offset:])
        if self._retired and not self._waiting:
            self.close(f"the login at {self._peer.address} ends")

    def _expire(self, number: int, timeout_ms: int) -> None:
        """Responses come in order, so one that does not come holds up all later ones: close the connection."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        text = f"{self._peer.address} did not answer within {timeout_ms} ms"
        if not waiting.future.done():
            waiting.future.set_exception(KlammError(ErrorCode.REQUEST_TIMED_OUT, text))
        self.close(text)

    def close_when_answered(self) -> None:
        """Send no more requests, and close the connection after the last response."""
        self._retired = True
        if not self._waiting:
            self.close(f"the login at {self._peer.address} ends")

    def close(self, reason: str) -> None:
        """Close the connection; pending requests fail with PeerGone."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            if request.timer is not None:
                request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(PeerGone(reason))
        if self.asking_versions is not None and not self.asking_versions.done():
            self.asking_versions.set_exception(PeerGone(reason))
        self._peer.on_link_closed(self)


class Peer:
    """One address of another node; lives on one event loop and never blocks it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        on_closed: Callable[[], None] | None = None,
        security: OutboundSecurity | None = None,
    ) -> None:
        self.loop = loop
        self._security = security
        self.host = host
        self.port = port
        self.client_id = client_id
        self.refused = False
        """Whether the last attempt to connect was refused: the machine is there, the process is not."""
        self._on_closed = on_closed
        """Called when an established connection ends, except by `close`."""
        self._request_timeout_ms = request_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff_ms = reconnect_backoff_ms
        self._backoff_max_ms = reconnect_backoff_max_ms
        self._link: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def connected(self) -> bool:
        """Whether a connection is established."""
        return self._link is not None

    # Requests

    async def ask(self, request: Any, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        """The answer to a request; `version` None is the newest both sides speak.

        PeerGone: not reached, or lost before the answer. KlammError REQUEST_TIMED_OUT: no answer in time;
        UNSUPPORTED_VERSION: the other node does not serve this API.
        """
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        link = await self.connect()
        # Per connection: the node at the address may have been upgraded between two of them.
        if version is None:
            version = await self._common_version(link, api)
        body: list[Any] = []
        encode_into(request, version, body)
        answer = await self._send(link, api.key, version, body, timeout_ms)
        response, _ = decode(api.response, version, answer)
        return response

    async def ask_raw(self, api_key: int, version: int, body: Body, *, timeout_ms: int | None = None) -> memoryview:
        """The bytes of the response after its header, for callers that parse them in place."""
        link = self._link or await self.connect()
        return await self._send(link, api_key, version, body, timeout_ms)

    def _send(
        self, link: _Link, api_key: int, version: int, body: Body, timeout_ms: int | None
    ) -> "asyncio.Future[memoryview]":
        if link.closed:
            raise PeerGone(f"{self.address} closed the connection")
        timeout = self._request_timeout_ms if timeout_ms is None else timeout_ms
        return link.send(api_key, version, body, self.client_id, timeout)

    async def _common_version(self, link: _Link, api: Api) -> int:
        if link.versions is None:
            if link.asking_versions is None:
                link.asking_versions = self.loop.create_future()
                link.asking_versions.add_done_callback(_retrieve_exception)
                await self._ask_versions(link)
            else:
                await asyncio.shield(link.asking_versions)
        first, last = (link.versions or {}).get(api.key, (0, -1))
        version = min(last, api.versions[1])
        if version < max(first, api.versions[0]):
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not serve {api.name}")
        return version

    async def _ask_versions(self, link: _Link) -> None:
        assert link.asking_versions is not None
        try:
            api = BY_NAME["ApiVersions"]
            body: list[Any] = []
            request = ApiVersionsRequest(client_software_name="klamm", client_software_version="1")
            encode_into(request, API_VERSIONS_VERSION, body)
            answer = await self._send(link, API_VERSIONS, API_VERSIONS_VERSION, body, None)
            response, _ = decode(api.response, API_VERSIONS_VERSION, answer)
            link.versions = {served.api_key: (served.min_version, served.max_version) for served in response.api_keys}
        # Also when cancelled: the others that wait for this exchange must not wait for ever.
        except BaseException:
            asking, link.asking_versions = link.asking_versions, None
            if asking is not None and not asking.done():
                asking.set_exception(PeerGone(f"{self.address} did not answer ApiVersions"))
            raise
        if not link.asking_versions.done():
            link.asking_versions.set_result(None)

    # Connecting

    async def connect(self) -> _Link:
        """The connection, made if there is none; concurrent callers share one attempt. PeerGone when it fails."""
        if self._closed:
            raise PeerGone(f"the connection to {self.address} is closed for good")
        if self._link is not None:
            return self._link
        if self._connecting is None:
            self._connecting = self.loop.create_task(self._connect(), name=f"connect {self.address}")
            self._connecting.add_done_callback(self._on_attempted)
        # Shielded: a caller that is cancelled must not cancel the attempt that others wait for.
        return await asyncio.shield(self._connecting)

    def _on_attempted(self, task: "asyncio.Task[_Link]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # callers got it; without this asyncio would log it when no caller is left

    async def _connect(self) -> _Link:
        pause = self._not_before - self.loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                link, lifetime_ms = await connect_securely(
                    self.loop, partial(_Link, self), self.host, self.port, self._security, client_id=self.client_id
                )
        except (OSError, TimeoutError) as error:
            self.refused = _is_refused(error)
            # 10 doublings are beyond the limit, and keep the shift from growing without bound.
            backoff = min(self._backoff_ms << min(self._failures, 10), self._backoff_max_ms)
            self._failures += 1
            self._not_before = self.loop.time() + backoff / 1000
            why = "refused" if self.refused else _explain(error)
            raise PeerGone(f"{self.address} cannot be reached: {why}", refused=self.refused) from error
        self.refused = False
        self._failures = 0
        if self._closed:
            link.close("closed")
            raise PeerGone(f"the connection to {self.address} is closed for good")
        if not link.closed:
            self._link = link
            if lifetime_ms:
                self.loop.call_later(SESSION_PART * lifetime_ms / 1000, self._retire, link)
        return link

    def _retire(self, link: _Link) -> None:
        """Have the next request make a connection with a login of its own, before that of this one expires."""
        if self._link is link:
            self._link = None
        link.close_when_answered()

    def on_link_closed(self, link: _Link) -> None:
        """Forget a connection that ended; the next request makes another."""
        if self._link is link:
            self._link = None
            if self._on_closed is not None and not self._closed:
                self._on_closed()

    def disconnect(self) -> None:
        """Close the present connection; the next request makes another."""
        if self._link is not None:
            self._link.close(f"the connection to {self.address} was closed by this node")

    def close(self) -> None:
        """Close for good; pending requests fail with PeerGone."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.disconnect()


def _retrieve_exception(future: "asyncio.Future[Any]") -> None:
    """Mark the exception as seen: every waiter gets it, and asyncio would log it when there is none."""
    if not future.cancelled():
        future.exception()


def _explain(error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return str(error)
    return (error.strerror if isinstance(error, OSError) else None) or "no answer"


def _is_refused(error: BaseException) -> bool:
    """Whether every address of a host refused; asyncio puts the failures of several addresses into one text."""
    if isinstance(error, ConnectionRefusedError):
        return True
    numbers = re.findall(r"\[Errno (\d+)\]", str(error)) if isinstance(error, OSError) else []
    return bool(numbers) and all(int(number) == errno.ECONNREFUSED for number in numbers)


class Peers:
    """The connections of a node to others, one per (node, listener); an address that moved replaces its connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str,
        security: OutboundSecurity | None = None,
        **settings: int,
    ) -> None:
        self._loop = loop
        self._security = security
        self._client_id = client_id
        self._settings = settings
        self._peers: dict[tuple[int, str], Peer] = {}

    def get(self, node_id: int, host: str, port: int, listener: str = "") -> Peer:
        """The connection to a node."""
        known = self._peers.get((node_id, listener))
        if known is not None and (known.host, known.port) == (host, port):
            return known
        if known is not None:
            known.close()
        peer = Peer(
            self._loop, host, port, client_id=self._client_id, on_closed=None, security=self._security, **self._settings
        )
        self._peers[node_id, listener] = peer
        return peer

    def forget(self, node_id: int) -> None:
        """Close every connection to a node."""
        for key in [key for key in self._peers if key[0] == node_id]:
            self._peers.pop(key).close()

    def keep(self, node_ids: Sequence[int]) -> None:
        """Close the connections to all nodes but these."""
        for node_id in {key[0] for key in self._peers} - set(node_ids):
            self.forget(node_id)

    def close(self) -> None:
        """Close them all."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
