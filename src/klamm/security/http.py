"""Requests to an identity provider: bounded in size and time, without redirects. They block: call them in a thread."""

import base64
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
    # No handlers but these: redirects, file: and ftp: would reach what the settings do not name.
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPHandler())
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=settings.ca_location)
        opener.add_handler(urllib.request.HTTPSHandler(context=context))
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))  # noqa: S310 - only HTTP handlers
    try:
        with opener.open(request, timeout=settings.timeout_s) as response:
            data = _read(response, time.monotonic() + READ_TIMEOUTS_MAX * settings.timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        raise HttpError(f"{_hide_query(url)} answers {error.code} {error.reason}", error.code) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise HttpError(f"{_hide_query(url)} cannot be reached: {reason}") from None
    if len(data) > RESPONSE_BYTES_MAX:
        raise HttpError(f"{_hide_query(url)} answers with more than {RESPONSE_BYTES_MAX} bytes")
    return data


def _read(response: Any, deadline: float) -> bytes:
    data = b""
    while len(data) <= RESPONSE_BYTES_MAX:
        chunk: bytes = response.read1(65_536)
        if not chunk:
            break
        data += chunk
        # The timeout is that of one read: a server that sends byte by byte would hold the thread for ever.
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
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
