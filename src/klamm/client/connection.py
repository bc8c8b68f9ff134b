"""One connection to a broker: requests are pipelined, responses arrive in request order.

Plaintext connections are non-blocking sockets of this module on the loop's readers and writers: a response is received
into the buffer that it is decoded from, a batch is sent from the buffer it was built in. TLS uses asyncio's transport.
A connection that fails, fails every request in flight, once; it is never repaired, only replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.client_settings import ClientSettings
from klamm.client.connection_login import ConnectionLogin
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import DisconnectedError, KafkaTimeoutError, error_for
from klamm.client.metrics import Traffic
from klamm.model.errors import ErrorCode, ProtocolError, RemoteProtocolError
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.codec import decode, encode_into
from klamm.protocol.framing import OwnedFrames, encode_prefix
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    import ssl

    from klamm.security.login import Credentials

_IOV_MAX = 64  # Linux takes 1,024 pieces a call; few requests have more than some dozens
_RESPONSE_BYTES_MIN = 4
"""The correlation id."""
_BUFFERS_KEPT = 6
"""Buffers of large responses that are used again once nothing refers to them."""
_TLS_ALERT = b"\x15\x03"
"""The first bytes that a TLS server sends to a client that does not speak TLS."""
_READS_PER_TURN = 8  # then other connections get their turn
_PIECE_BYTES = 8 << 20
"""Of a large response, at most so much is received by the kernel before the loop is woken: a wake-up costs more than
the copy."""
_FLOW_BYTES = 1 << 18
"""After a response of this size the next one is expected to be large too."""
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux only
_LONG_PIECE_BYTES = 4096
"""A longer piece of a request is sent without a copy; shorter ones are joined."""
_PAUSE_WRITING_BYTES = 4 << 20
_THROTTLE_MS_MAX = 60_000
"""A broker with a longer throttle is asked again after so long: a wrong quota must not stop a client for hours."""
_API_VERSIONS_KEY = 18
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
_VERSION = "0.1.0"


class Pending(NamedTuple):
    """A request in flight."""

    correlation_id: int
    api: Api
    version: int
    future: asyncio.Future[Any]
    deadline: float
    sent: float


class Connection:
    """A connection to one broker, in the newest versions of the protocol that both sides support."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: ClientSettings,
        tls: ssl.SSLContext | None = None,
        traffic: Traffic | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._login = ConnectionLogin(self, credentials) if credentials is not None else None
        self.host, self.port = host, port
        self._traffic = Traffic() if traffic is None else traffic
        self.address = f"{host}:{port}"
        self.last_used = 0.0
        self.throttled_until = 0.0
        self.features: dict[str, int] = {}
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.features_epoch = -1
        self.versions: dict[int, tuple[int, int]] = {}
        self.closed: BaseException | None = None
        self._settings = settings
        self._tls = tls
        self._client_id = settings.text("client.id")
        self._timeout_s = settings.seconds("request.timeout.ms")
        self._loop = asyncio.get_running_loop()
        # For consumers, whose responses are large again and again. Responses of up to 64 KiB are copied, as those to
        # producers are; for the seldom large ones of other clients kept buffers would be idle memory.
        pool = BufferPool(_BUFFERS_KEPT) if "fetch.max.bytes" in settings else None
        self.frames = OwnedFrames(_RESPONSE_BYTES_MIN, settings.number("receive.message.max.bytes"), pool)
        self._received_any = False
        self._pending: deque[Pending] = deque()
        self._correlation = itertools.count(1)
        self._out: deque[Any] = deque()
        self._out_bytes = 0
        self._socket: socket.socket | None = None
        self.transport: asyncio.Transport | None = None
        self._writing = False
        self._low_watermark = 1
        self._expect_large = False
        self._expiry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    # Open and close

    async def open(self) -> None:
        """Connect and negotiate versions; DisconnectedError names the address and the reason."""
        limit_s = self._settings.seconds("socket.connection.setup.timeout.ms")
        try:
            async with asyncio.timeout(limit_s):
                if self._tls is not None:
                    await self._open_tls(self._tls)
                else:
                    await self._open_plain()
                await self._handshake()
                if self._login is not None:
                    await self._login.log_in()
        except (OSError, TimeoutError, DisconnectedError) as error:
            self.fail(error)
            reason = str(error) or f"no response within {limit_s:g} s"
            raise DisconnectedError(f"cannot connect to {self.address}: {reason}") from error
        except BaseException as error:
            self.fail(error)
            raise

    async def _open_plain(self) -> None:
        infos = await self._loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for family, kind, protocol, _, address in infos:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                # Requests are written whole; Nagle's algorithm would hold the last segment back for an ACK.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for name, option in (
                    ("send.buffer.bytes", socket.SO_SNDBUF),
                    ("receive.buffer.bytes", socket.SO_RCVBUF),
                ):
                    # Only when set: a fixed size turns the kernel's autotuning off, and Kafka's defaults are small.
                    if name in self._settings.given and self._settings[name] > 0:
                        sock.setsockopt(socket.SOL_SOCKET, option, self._settings[name])
                await self._loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
                continue
            except BaseException:
                sock.close()
                raise
            self._socket = sock
            self._loop.add_reader(sock, self._on_readable)
            return
        raise failure or OSError(f"{self.host} has no address")

    async def _open_tls(self, context: ssl.SSLContext) -> None:
        await self._loop.create_connection(
            lambda: _TlsProtocol(self), self.host, self.port, ssl=context, server_hostname=self.host
        )

    async def _handshake(self) -> None:
        """ApiVersions, newest first; an older broker answers UNSUPPORTED_VERSION with its own range (KIP-511)."""
        api = BY_NAME["ApiVersions"]
        version = api.versions[1]
        request = ApiVersionsRequest(client_software_name="klamm", client_software_version=_VERSION)
        answer: ApiVersionsResponse = await self.request(request, version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
            # Brokers before 2.4 send no range with the error: version 0 is then the only safe one.
            known = next((key.max_version for key in answer.api_keys if key.api_key == api.key), 0)
            answer = await self.request(request, min(known, version - 1))
        if answer.error_code:
            raise error_for(answer.error_code, f"{self.address} refuses ApiVersions")
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        self.features_epoch = answer.finalized_features_epoch
        self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        self.supported_features = {
            feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features
        }

    def close(self) -> None:
        """Close the socket; requests in flight fail."""
        self.fail(DisconnectedError(f"the connection to {self.address} was closed"))

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return len(self._pending)

    def fail(self, error: BaseException) -> None:
        """Close the socket and fail every request without a response."""
        if self.closed is not None:
            return
        self.closed = error
        if self._login is not None:
            self._login.close()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            if self._writing:
                self._loop.remove_writer(self._socket)
            self._socket.close()
        if self.transport is not None:
            self.transport.abort()
        self._out.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        # Taken out first: a done callback may send on a new connection, or call fail again.
        pending, self._pending = self._pending, deque()
        for request in pending:
            if not request.future.done():
                lost = DisconnectedError(f"the connection to {self.address} broke: {error or type(error).__name__}")
                lost.__cause__ = error
                request.future.set_exception(lost)
                request.future.exception()  # marks it as retrieved: asyncio warns about exceptions nothing awaited

    # Requests

    def version_of(self, name: str, highest: int | None = None) -> int:
        """The newest version of an API that both sides support; UnsupportedVersionError when there is none."""
        api = BY_NAME[name]
        first, last = self.versions.get(api.key, (0, -1))
        version = min(last, api.versions[1] if highest is None else highest)
        if version < max(first, api.versions[0]):
            raise error_for(
                ErrorCode.UNSUPPORTED_VERSION, f"{self.address} supports no version of {name} that this client needs"
            )
        return version

    def request(
        self, request: Any, version: int | None = None, *, timeout_s: float | None = None
    ) -> asyncio.Future[Any]:
        """Send a request now; the future is its response, a DisconnectedError or a KafkaTimeoutError.

        Versions are the newest of both sides unless one is given. A request that times out closes the connection:
        responses arrive in order, so all behind it would wait too.
        """
        name = type(request).__name__.removesuffix("Request")
        api = BY_NAME[name]
        used = self.version_of(name) if version is None else version
        pieces: list[Any] = []
        encode_into(request, used, pieces)
        return self.send(api, used, pieces, timeout_s)

    def send(
        self, api: Api, version: int, pieces: list[Any], timeout_s: float | None = None, *, answered: bool = True
    ) -> asyncio.Future[Any]:
        """As `request`, for an encoded body; with `answered=False` (acks=0) the future is done at once."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._login is not None and self._login.held is not None:
            self._login.held.append((future, api, version, pieces, timeout_s, answered))
        else:
            self.send_now(future, api, version, pieces, timeout_s, answered)
        return future

    def send_now(
        self,
        future: asyncio.Future[Any],
        api: Api,
        version: int,
        pieces: list[Any],
        timeout_s: float | None = None,
        answered: bool = True,
    ) -> None:
        """Send a request whose response completes `future`."""
        if self.closed is not None:
            future.set_exception(DisconnectedError(f"the connection to {self.address} is closed: {self.closed}"))
            future.exception()
            return
        correlation_id = next(self._correlation) & 0x7FFFFFFF
        head = encode_request_header(RequestHeader(api.key, version, correlation_id, self._client_id))
        size = len(head) + sum(map(len, pieces))
        now = self._loop.time()
        self.last_used = now
        if answered:
            deadline = now + (self._timeout_s if timeout_s is None else timeout_s)
            self._pending.append(Pending(correlation_id, api, version, future, deadline, now))
            if self._expiry is None:
                self._expiry = self._loop.call_at(deadline, self._expire)
        else:
            future.set_result(None)
        self._traffic.count_sent(size + 4)
        self._write([encode_prefix(size) + head, *pieces])

    async def wait_drained(self) -> None:
        """Wait while more than _PAUSE_WRITING_BYTES wait to be written."""
        while self._out_bytes > _PAUSE_WRITING_BYTES and self.closed is None:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # several callers share the future: one that is cancelled keeps it

    def _expire(self) -> None:
        # One timer for all requests, set for the earliest deadline: most are answered before it, and a timer per
        # request would cost more than the request.
        self._expiry = None
        now = self._loop.time()
        late = min((request.deadline for request in self._pending if not request.future.done()), default=None)
        if late is None:
            return
        if late <= now:
            first = next(request for request in self._pending if request.deadline <= now and not request.future.done())
            reason = f"{self.address} did not answer {first.api.name} in time"
            # Those that are late get the timeout; the others behind them fail as disconnected, and may be retried.
            for request in self._pending:
                if request.deadline <= now and not request.future.done():
                    request.future.set_exception(
                        KafkaTimeoutError(f"{self.address} did not answer {request.api.name} in time")
                    )
                    request.future.exception()
            self.fail(KafkaTimeoutError(reason))
            return
        self._expiry = self._loop.call_at(late, self._expire)

    # Bytes

    def _write(self, pieces: list[Any]) -> None:
        if self.transport is not None:
            self.transport.write(b"".join(pieces))
            return
        small: list[Any] = []
        for piece in pieces:
            if len(piece) < _LONG_PIECE_BYTES:
                small.append(piece)
                continue
            if small:
                self._out.append(memoryview(b"".join(small)))
                small = []
            self._out.append(memoryview(piece).cast("B"))
        if small:
            self._out.append(memoryview(b"".join(small)))
        self._out_bytes += sum(map(len, pieces))
        # At once, not when the loop says so: the socket nearly always takes it, which saves a turn.
        if not self._writing:
            self._on_writable()

    def _on_writable(self) -> None:
        out, sock = self._out, self._socket
        if sock is None or self.closed is not None:
            return
        while out:
            try:
                sent = sock.sendmsg(list(itertools.islice(out, _IOV_MAX)))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.fail(error)
                return
            self._out_bytes -= sent
            while sent:
                first = out[0]
                if sent >= len(first):
                    sent -= len(first)
                    out.popleft()
                else:
                    out[0] = first[sent:]
                    sent = 0
        if self._drained is not None and not self._drained.done() and self._out_bytes <= _PAUSE_WRITING_BYTES:
            self._drained.set_result(None)
        if bool(out) != self._writing:
            self._writing = bool(out)
            if out:
                self._loop.add_writer(sock, self._on_writable)
            else:
                self._loop.remove_writer(sock)

    def _on_readable(self) -> None:
        sock = self._socket
        for _ in range(_READS_PER_TURN):
            if sock is None or self.closed is not None:
                return
            space = self.frames.free_space()
            try:
                count = sock.recv_into(space)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.fail(error)
                return
            if not count:
                self.fail(DisconnectedError(f"{self.address} closed the connection"))
                return
            if not self._received_any:
                self._received_any = True
                if space[:2] == _TLS_ALERT:
                    self.fail(RemoteProtocolError("the listener expects TLS: set security.protocol=SSL"))
                    return
            self.feed(count)
            # A short read emptied the socket: another recv would only return EAGAIN.
            if count < len(space):
                break
        if sock is not None and self.closed is None:
            self._set_low_watermark(sock, self._awaited_bytes)

    @property
    def _awaited_bytes(self) -> int:
        """Bytes to wait for: the rest of a large response under way, else 1."""
        return max(min(self.frames.lacking, _PIECE_BYTES), 1)

    def _set_low_watermark(self, sock: socket.socket, count: int) -> None:
        """Wake the loop only when `count` bytes have arrived, or the connection ended (SO_RCVLOWAT).

        Acknowledges what has arrived at once: a broker whose send buffer is full waits for that, and the kernel delays
        ACKs of small amounts.
        """
        with contextlib.suppress(OSError):  # an optimization: without it the loop is woken more often
            if count != self._low_watermark:
                self._low_watermark = count
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            if count > 1 and _QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def receive_ahead(self) -> None:
        """Let the kernel receive the next response while the loop is busy, if it is likely to be large.

        While SO_RCVLOWAT is high the kernel acknowledges bytes as they arrive, and the broker does not wait until they
        are read. At the next turn of the loop any byte wakes it again: the response may be small.
        """
        if self._expect_large and self._low_watermark == 1 and self._socket is not None and self.closed is None:
            self._set_low_watermark(self._socket, _PIECE_BYTES)
            self._loop.call_soon(self._end_receive_ahead)

    def _end_receive_ahead(self) -> None:
        if self._socket is not None and self.closed is None:
            self._set_low_watermark(self._socket, self._awaited_bytes)

    def feed(self, count: int) -> None:
        """Handle `count` bytes that were received into the buffer of `frames`."""
        try:
            for answer in self.frames.receive(count):
                self._handle_response(answer)
        except ProtocolError as error:
            self.fail(error)

    def _handle_response(self, answer: memoryview) -> None:
        if not self._pending:
            raise RemoteProtocolError(f"{self.address} sends a response without a request")
        pending = self._pending.popleft()
        self._traffic.count_answered(len(answer) + 4, self._loop.time() - pending.sent)
        self._expect_large = len(answer) >= _FLOW_BYTES
        number = int.from_bytes(answer[:4], "big")
        if number != pending.correlation_id:
            # Put back, so that `fail` reports the error to it as well.
            self._pending.appendleft(pending)
            raise RemoteProtocolError(f"{self.address} answers request {number}, not {pending.correlation_id}")
        if pending.future.done():  # cancelled by its caller; the response still had to be taken off the line
            return
        try:
            _, start = decode_response_header(answer, pending.api.key, pending.version)
            response, _ = self._decode_response(pending, answer, start)
        except ProtocolError:
            self._pending.appendleft(pending)
            raise
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        # KIP-219: the broker answers at once and mutes the connection; the client is to wait as long.
        if throttle_ms > 0:
            self.throttled_until = self._loop.time() + min(throttle_ms, _THROTTLE_MS_MAX) / 1000
        pending.future.set_result(response)

    @staticmethod
    def _decode_response(pending: Pending, answer: memoryview, start: int) -> tuple[Any, int]:
        # KIP-511: a broker that does not support the version of ApiVersions answers in version 0.
        is_versions = pending.api.key == _API_VERSIONS_KEY and pending.version
        if is_versions and answer[start : start + 2] == _UNSUPPORTED_VERSION:
            return decode(pending.api.response, 0, answer, start)
        return decode(pending.api.response, pending.version, answer, start)


class _TlsProtocol(asyncio.BufferedProtocol):
    """The protocol of asyncio's TLS transport, passed on to the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._connection.frames.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.feed(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.fail(exc or DisconnectedError(f"{self._connection.address} closed the connection"))
