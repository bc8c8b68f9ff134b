"""A small HTTP listener in threads of its own, for scrapes and health checks.

GET and HEAD, no bodies, no compression: what Prometheus, a kubelet or `curl` send. Everything runs outside of the event
loop, the sending of megabytes too; a client that reads slowly holds one of a few threads, and no request of others.
Clients that send nothing cannot keep others out: where all connections are taken, the one idle for longest is closed.
"""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote

from klamm.telemetry.log import get_logger

log = get_logger("metrics")

HEAD_BYTES_MAX: Final = 16 * 1024
CONNECTIONS_MAX: Final = 64
"""Clients at a time, each with a thread; a further one takes the place of the one that is idle for longest."""
HEAD_SECONDS_MAX: Final = 5.0
"""How long a client may take to send a whole request head; for the first one from the start of the connection."""
PIECE_SECONDS_MAX: Final = 10.0
"""How long a client may take to read a piece of a response."""
IDLE_SECONDS_MAX: Final = 120.0
"""How long a connection stays open between two requests; Prometheus scrapes every 15 to 60 seconds."""
PIECE_BYTES: Final = 256 * 1024

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """A request without a body; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ScrapeResponse:
    """A response whose body is sent as it is."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class BadRequest(Exception):
    """Raised when the head of a request cannot be read."""


def parse_head(head: bytes) -> ScrapeRequest:
    """Parse the lines before the empty one; BadRequest if they are no HTTP/1 request."""
    try:
        lines = head.decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ")
    except ValueError:
        raise BadRequest("the request line is not METHOD TARGET VERSION") from None
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        raise BadRequest("only HTTP/1 with a path is served")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest("a header is not NAME: VALUE")
        headers[name.lower()] = value.strip()
    # A body that is not read would be taken for the next request.
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequest("requests with a body are not served")
    path, _, query = target.partition("?")
    return ScrapeRequest(method, unquote(path), parse_qs(query), headers)


ScrapeHandler = Callable[[ScrapeRequest], ScrapeResponse]

_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(header: str) -> str:
    """Return the name or address in a Host header, without port and brackets, in lower case."""
    name, colon, port = header.strip().rpartition(":")
    # The last colon of [::1] is inside of the address.
    if not colon or not port.isdecimal():
        name = header.strip()
    return name.removeprefix("[").removesuffix("]").lower()


@dataclass(eq=False, slots=True)
class _ScrapeConnection:
    """A connection; `idle_since_s` is None while a request is handled and its response is sent."""

    sock: socket.socket
    idle_since_s: float | None


class ScrapeListener:
    """Listens on one address; `handle` is called in the thread of the connection."""

    def __init__(self, host: str, port: int, handle: ScrapeHandler) -> None:
        """Bind the address; OSError if that is not possible."""
        self._handle = handle
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind((host, port))
            self._sock.listen(CONNECTIONS_MAX)
        except OSError:
            self._sock.close()
            raise
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        # A page of another site may have its name resolve to this address (DNS rebinding). Other machines reach only
        # listeners that are not loopback, by names that are not known here.
        is_loopback = ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback
        self._hosts = _LOCAL_HOSTS | {host.lower(), self.address[0]} if is_loopback else None
        self._clients: set[_ScrapeConnection] = set()
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="klamm-metrics", daemon=True)

    def start(self) -> None:
        """Serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closing.set()
        # Shut down first: closing a socket does not wake a thread that waits in `accept`.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        with self._changing:
            clients = list(self._clients)
        for client in clients:
            _shut_down(client.sock)
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._sock.accept()
            except OSError:
                # Closed, or out of descriptors: the backlog waits.
                self._closing.wait(0.1)
                continue
            client = _ScrapeConnection(connection, time.monotonic())
            if self._admit(client):
                threading.Thread(target=self._serve, args=(client,), name="klamm-metrics-client", daemon=True).start()
            else:
                connection.close()

    def _admit(self, client: _ScrapeConnection) -> bool:
        """Add a client, in the place of the one idle for longest if need be; False if all others have requests."""
        with self._changing:
            if len(self._clients) >= CONNECTIONS_MAX:
                idle = [(other.idle_since_s, other) for other in self._clients if other.idle_since_s is not None]
                if not idle:
                    return False
                _, oldest = min(idle, key=_idle_since)
                self._clients.discard(oldest)
                # Its thread waits in `recv`, and closes the socket when that returns.
                _shut_down(oldest.sock)
            self._clients.add(client)
            return True

    def _serve(self, client: _ScrapeConnection) -> None:
        try:
            with client.sock:
                self._serve_requests(client)
        except (OSError, TimeoutError):
            pass  # the client has gone, or does not read
        finally:
            with self._changing:
                self._clients.discard(client)

    def _serve_requests(self, client: _ScrapeConnection) -> None:
        connection = client.sock
        received = b""
        is_first = True
        while not self._closing.is_set():
            has_begun = is_first or bool(received)
            deadline_s = time.monotonic() + (HEAD_SECONDS_MAX if has_begun else IDLE_SECONDS_MAX)
            while b"\r\n\r\n" not in received:
                data = _receive(connection, deadline_s)
                if not data:
                    return
                if not has_begun:
                    has_begun = True
                    deadline_s = time.monotonic() + HEAD_SECONDS_MAX
                received += data
                if len(received) > HEAD_BYTES_MAX:
                    _send(connection, ScrapeResponse(400, b"the request head is too long\n"), keep_alive=False)
                    return
            is_first = False
            client.idle_since_s = None
            head, _, received = received.partition(b"\r\n\r\n")
            try:
                request = parse_head(head)
            except BadRequest as error:
                _send(connection, ScrapeResponse(400, f"{error}\n".encode()), keep_alive=False)
                return
            keep_alive = request.headers.get("connection", "").lower() != "close"
            _send(connection, self._respond(request), keep_alive=keep_alive, head_only=request.method == "HEAD")
            if not keep_alive:
                return
            client.idle_since_s = time.monotonic()

    def _respond(self, request: ScrapeRequest) -> ScrapeResponse:
        if request.method not in ("GET", "HEAD"):
            return ScrapeResponse(405, b"only GET and HEAD are served\n", headers={"Allow": "GET, HEAD"})
        host = request.headers.get("host")
        if self._hosts is not None and host is not None and host_name(host) not in self._hosts:
            return ScrapeResponse(421, b"this listener is for clients on this machine; use localhost or 127.0.0.1\n")
        try:
            return self._handle(request)
        except Exception as error:  # noqa: BLE001 - a failed scrape must not end the listener
            log.failure("metrics request failed", error, path=request.path)
            return ScrapeResponse(500, b"the metrics could not be collected\n")


def _idle_since(entry: tuple[float, _ScrapeConnection]) -> float:
    return entry[0]


def _shut_down(connection: socket.socket) -> None:
    # Already closed by its thread, or by the client.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _receive(connection: socket.socket, deadline_s: float) -> bytes:
    """Return data of a client, b"" at the end; TimeoutError at the deadline, also for a client that sends slowly."""
    remaining_s = deadline_s - time.monotonic()
    # A timeout of 0 means "do not block" to a socket, and a negative one is refused.
    if remaining_s <= 0:
        raise TimeoutError
    connection.settimeout(remaining_s)
    return connection.recv(4096)


def _send(connection: socket.socket, response: ScrapeResponse, *, keep_alive: bool, head_only: bool = False) -> None:
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    connection.settimeout(PIECE_SECONDS_MAX)
    if head_only:
        connection.sendall(head)
        return
    # Small responses in one segment; the timeout is for each piece, not for all of a large response.
    for piece in _pieces(head, response.body):
        connection.sendall(piece)


def _pieces(head: bytes, body: bytes) -> Iterable[bytes | memoryview]:
    if len(body) <= PIECE_BYTES:
        yield head + body
        return
    yield head
    view = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        yield view[start : start + PIECE_BYTES]
