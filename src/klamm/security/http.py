"""Requests to an identity provider: bounded in size and time, without redirects. They block: call them in a thread."""

import base64
import contextlib
import http.client
import os
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""Of a key set or a token; both are a few kilobytes."""

READ_TIMEOUTS_MAX: Final = 3
"""A whole response may take so many timeouts."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How to reach an identity provider."""

    timeout_s: float = 10.0
    """For the connection, and for each read."""
    ca_location: str | None = None
    """A PEM file with the trusted authorities; None for those of the system."""


class HttpError(OSError):
    """A response that is no success, or none at all."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later: a refusal by the server is final."""
        return self.status is None or self.status >= 500 or self.status in (408, 429)


def fetch(
    url: str, settings: HttpSettings, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of a successful response; HttpError otherwise."""
    if not url.startswith(("http:", "https:")):
        raise HttpError(f"{url} is no URL of HTTP", 400)
    opener = urllib.request.OpenerDirector()
    guard = _ConnectionGuard(READ_TIMEOUTS_MAX * settings.timeout_s)
    # No handlers but these: redirects, file: and ftp: would reach what the settings do not name.
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(_HttpHandler(guard))
    if url.startswith("https:"):
        opener.add_handler(_HttpsHandler(guard, ssl.create_default_context(cafile=settings.ca_location)))
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))  # noqa: S310 - only HTTP handlers
    try:
        with guard, opener.open(request, timeout=settings.timeout_s) as response:
            data = _read(response)
    except urllib.error.HTTPError as error:
        error.close()
        raise HttpError(f"{_hide_query(url)} answers {error.code} {error.reason}", error.code) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = guard.reason or getattr(error, "reason", None) or error
        raise HttpError(f"{_hide_query(url)} cannot be reached: {reason}") from None
    if guard.reason:
        # The end of the connection may look like that of the response.
        raise HttpError(f"{_hide_query(url)} cannot be reached: {guard.reason}")
    if len(data) > RESPONSE_BYTES_MAX:
        raise HttpError(f"{_hide_query(url)} answers with more than {RESPONSE_BYTES_MAX} bytes")
    return data


class _ConnectionGuard:
    """Ends a request that takes too long.

    The timeout of a socket is that of one read: a server that sends byte by byte, headers or body or its part of a TLS
    handshake, would hold the thread for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._sockets: list[socket.socket] = []
        self.reason = ""
        """Why the connection was ended; empty if it was not."""

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for sock in self._sockets:
            sock.close()

    def connect(self, connection_class: type[http.client.HTTPConnection], host: str, **options: Any) -> Any:
        """Return a connection that is ended, too; `do_open` calls it in place of the class."""
        connection = connection_class(host, **options)
        connection._create_connection = self._create_connection  # type: ignore[attr-defined]  # noqa: SLF001 - for this
        return connection

    def _create_connection(self, *address: Any, **options: Any) -> socket.socket:
        sock = socket.create_connection(*address, **options)
        # A copy: TLS takes the socket itself over.
        self._sockets.append(sock.dup())
        return sock

    def _end(self) -> None:
        self.reason = "the response takes too long"
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, guard: _ConnectionGuard) -> None:
        super().__init__()
        self._guard = guard

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._guard.connect, http.client.HTTPConnection), request)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, guard: _ConnectionGuard, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._guard = guard
        self._tls = context

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._guard.connect, http.client.HTTPSConnection), request, context=self._tls)


def _read(response: http.client.HTTPResponse) -> bytes:
    data = b""
    while len(data) <= RESPONSE_BYTES_MAX:
        chunk = response.read1(65_536)
        if not chunk:
            break
        data += chunk
    return data


def basic_authorization(user: str, password: str, *, urlencode: bool = False) -> str:
    """Return the header of HTTP's basic authentication; RFC 6749 encodes both parts first, most servers do not."""
    if urlencode:
        user, password = urllib.parse.quote_plus(user), urllib.parse.quote_plus(password)
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def form(fields: Mapping[str, str]) -> bytes:
    """Return the body of a form."""
    return urllib.parse.urlencode(fields).encode()


def read_bounded(path: str) -> bytes:
    """Return the bytes of a local file, at most as many as a response may have; OSError otherwise."""
    with open(path, "rb") as file:
        data = file.read(RESPONSE_BYTES_MAX + 1)
    if len(data) > RESPONSE_BYTES_MAX:
        raise OSError(f"{path} has more than {RESPONSE_BYTES_MAX} bytes")
    return data


def file_path(url: str) -> str | None:
    """Return the path of a file: URL; None for other URLs."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    return os.path.abspath(urllib.parse.unquote(parts.path))


def _hide_query(url: str) -> str:
    # Secrets may be in the query and before the host.
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
