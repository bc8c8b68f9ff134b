"""One connection to a broker: requests go out one after another without waiting, answers come back in order.

Plain connections are our own non-blocking sockets on the loop's readers and writers: an answer is received where it
will be read, a batch is sent from where it was built. TLS goes through asyncio's transport. A connection that fails,
fails every request it carried, once; it is never repaired, only replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.config import ClientSettings
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import DisconnectedError, KafkaTimeoutError, error_for
from klamm.client.metrics import Traffic
from klamm.model.errors import ErrorCode, ProtocolError, RemoteProtocolError
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.codec import decode, encode_into
from klamm.protocol.framing import OwnedFrames
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    import ssl

_IOV_MAX = 64
_RESPONSE_BYTES_MIN = 4
"""The correlation id."""
_BUFFERS_KEPT = 6
"""Memory of large answers that is used again once they were let go."""
_TLS_ALERT = b"\x15\x03"
"""How a server that expects TLS begins its answer to what is none."""
_READS_PER_TURN = 8
_PIECE_BYTES = 8 << 20
"""Of a large answer, at most so much is let gather before it is looked at: being woken costs more than copying."""
_FLOW_BYTES = 1 << 18
"""After an answer of this size the next one is expected to be large too."""
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_LONG_PIECE_BYTES = 4096
"""A piece of a request that is longer is sent from where it lies; shorter ones are put together."""
_PAUSE_WRITING_BYTES = 4 << 20
_VERSION = "0.1.0"


class Pending(NamedTuple):
    """A request that was sent and not answered."""

    correlation_id: int
    api: Api
    version: int
    future: asyncio.Future[Any]
    deadline: float
    sent: float


class Connection:
    """Speaks to one broker in the newest versions both sides know."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: ClientSettings,
        tls: ssl.SSLContext | None = None,
        traffic: Traffic | None = None,
    ) -> None:
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
        self.frames = OwnedFrames(
            _RESPONSE_BYTES_MIN, settings.number("receive.message.max.bytes"), BufferPool(_BUFFERS_KEPT)
        )
        self._received_any = False
        self._pending: deque[Pending] = deque()
        self._correlation = itertools.count(1)
        self._out: deque[Any] = deque()
        self._out_bytes = 0
        self._socket: socket.socket | None = None
        self.transport: asyncio.Transport | None = None
        self._writing = False
        self._gathers = 1
        self._flows = False
        self._expiry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    # Life

    async def open(self) -> None:
        """Connect and learn what the broker speaks; DisconnectedError says who was not reached and why."""
        limit_s = self._settings.seconds("socket.connection.setup.timeout.ms")
        try:
            async with asyncio.timeout(limit_s):
                if self._tls is not None:
                    await self._open_tls(self._tls)
                else:
                    await self._open_plain()
                await self._handshake()
        except (OSError, TimeoutError, DisconnectedError) as error:
            self.fail(error)
            reason = str(error) or f"no answer within {limit_s:g} s"
            raise DisconnectedError(f"{self.address} was not reached: {reason}") from error
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
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for name, option in (
                    ("send.buffer.bytes", socket.SO_SNDBUF),
                    ("receive.buffer.bytes", socket.SO_RCVBUF),
                ):
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
            self._loop.add_reader(sock, self._readable)
            return
        raise failure or OSError(f"{self.host} has no address")

    async def _open_tls(self, context: ssl.SSLContext) -> None:
        await self._loop.create_connection(
            lambda: _TlsProtocol(self), self.host, self.port, ssl=context, server_hostname=self.host
        )

    async def _handshake(self) -> None:
        """ApiVersions, newest first; a broker too old for it answers with what it does speak."""
        api = BY_NAME["ApiVersions"]
        version = api.versions[1]
        request = ApiVersionsRequest(client_software_name="klamm", client_software_version=_VERSION)
        answer: ApiVersionsResponse = await self.request(request, version)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
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
        """Leave; what was under way fails."""
        self.fail(DisconnectedError(f"the connection to {self.address} was closed"))

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def fail(self, error: BaseException) -> None:
        """Close the socket and fail every request without a response."""
        if self.closed is not None:
            return
        self.closed = error
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
        pending, self._pending = self._pending, deque()
        for request in pending:
            if not request.future.done():
                lost = DisconnectedError(f"the connection to {self.address} broke: {error or type(error).__name__}")
                lost.__cause__ = error
                request.future.set_exception(lost)
                request.future.exception()  # marks it as retrieved: a request that is not awaited is no warning

    # Requests

    def version_of(self, name: str, highest: int | None = None) -> int:
        """The newest version of an API both sides speak; UnsupportedVersionError when there is none."""
        api = BY_NAME[name]
        first, last = self.versions.get(api.key, (0, -1))
        version = min(last, api.versions[1] if highest is None else highest)
        if version < max(first, api.versions[0]):
            raise error_for(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not speak {name} as this needs it")
        return version

    def request(
        self, request: Any, version: int | None = None, *, timeout_s: float | None = None
    ) -> asyncio.Future[Any]:
        """Send a request now; the future is its answer, a DisconnectedError or a KafkaTimeoutError.

        Versions are the newest of both sides unless one is given. A request that times out costs the connection:
        answers come in order, so all behind it would wait too.
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
        """As `request`, for a body already encoded; without an answer the future is done when all is handed over."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed is not None:
            future.set_exception(DisconnectedError(f"the connection to {self.address} is closed: {self.closed}"))
            future.exception()
            return future
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
        self._traffic.sent(size + 4)
        self._write([size.to_bytes(4, "big") + head, *pieces])
        return future

    async def drained(self) -> None:
        """Wait while more is waiting to be written than a socket should hold."""
        while self._out_bytes > _PAUSE_WRITING_BYTES and self.closed is None:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def _expire(self) -> None:
        self._expiry = None
        now = self._loop.time()
        late = min((request.deadline for request in self._pending if not request.future.done()), default=None)
        if late is None:
            return
        if late <= now:
            first = next(request for request in self._pending if request.deadline <= now and not request.future.done())
            words = f"{self.address} did not answer {first.api.name} in time"
            for request in self._pending:
                if request.deadline <= now and not request.future.done():
                    request.future.set_exception(
                        KafkaTimeoutError(f"{self.address} did not answer {request.api.name} in time")
                    )
                    request.future.exception()
            self.fail(KafkaTimeoutError(words))
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
        if not self._writing:
            self._writable()

    def _writable(self) -> None:
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
                self._loop.add_writer(sock, self._writable)
            else:
                self._loop.remove_writer(sock)

    def _readable(self) -> None:
        sock = self._socket
        for _ in range(_READS_PER_TURN):
            if sock is None or self.closed is not None:
                return
            room = self.frames.room()
            try:
                count = sock.recv_into(room)
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
                if room[:2] == _TLS_ALERT:
                    self.fail(RemoteProtocolError("it speaks TLS: security.protocol=SSL is needed here"))
                    return
            self.took(count)
            if count < len(room):
                break
        if sock is not None and self.closed is None:
            self._gather(sock, self._lacking)

    @property
    def _lacking(self) -> int:
        """Bytes to wait for: those of a large answer under way, else any."""
        return max(min(self.frames.lacking, _PIECE_BYTES), 1)

    def _gather(self, sock: socket.socket, count: int) -> None:
        """Have the kernel tell of new bytes when there are `count` of them, or the connection ends.

        What has come is acknowledged at once then: a broker whose send buffer is full waits for that, and the kernel
        is in no hurry when it has little to acknowledge.
        """
        with contextlib.suppress(OSError):  # it is only thrift
            if count != self._gathers:
                self._gathers = count
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            if count > 1 and _QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def take_in(self) -> None:
        """Have the kernel take in the next answer while the loop is busy, if it is likely to be large.

        As long as it waits for many bytes it acknowledges those that come, and the broker does not wait until they
        are read. When the loop turns, any byte is news again: an answer may be small.
        """
        if self._flows and self._gathers == 1 and self._socket is not None and self.closed is None:
            self._gather(self._socket, _PIECE_BYTES)
            self._loop.call_soon(self._took_in)

    def _took_in(self) -> None:
        if self._socket is not None and self.closed is None:
            self._gather(self._socket, self._lacking)

    def took(self, count: int) -> None:
        """So many bytes were put into the reader's room."""
        try:
            for answer in self.frames.receive(count):
                self._answered(answer)
        except ProtocolError as error:
            self.fail(error)

    def _answered(self, answer: memoryview) -> None:
        if not self._pending:
            raise RemoteProtocolError(f"{self.address} sends a response without a request")
        pending = self._pending.popleft()
        self._traffic.answered(len(answer) + 4, self._loop.time() - pending.sent)
        self._flows = len(answer) >= _FLOW_BYTES
        number = int.from_bytes(answer[:4], "big")
        if number != pending.correlation_id:
            self._pending.appendleft(pending)
            raise RemoteProtocolError(f"{self.address} answers request {number}, not {pending.correlation_id}")
        if pending.future.done():
            return
        try:
            _, start = decode_response_header(answer, pending.api.key, pending.version)
            response, _ = self._decoded(pending, answer, start)
        except ProtocolError:
            self._pending.appendleft(pending)
            raise
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self.throttled_until = self._loop.time() + min(throttle_ms, 60_000) / 1000
        pending.future.set_result(response)

    @staticmethod
    def _decoded(pending: Pending, answer: memoryview, start: int) -> tuple[Any, int]:
        if pending.api.key == 18 and pending.version and bytes(answer[start : start + 2]) == b"\x00\x23":
            return decode(pending.api.response, 0, answer, start)  # a refusal of ApiVersions comes as version 0
        return decode(pending.api.response, pending.version, answer, start)


class _TlsProtocol(asyncio.BufferedProtocol):
    """What asyncio's transport calls, handed on to the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._connection.frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.took(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.fail(exc or DisconnectedError(f"{self._connection.address} closed the connection"))
