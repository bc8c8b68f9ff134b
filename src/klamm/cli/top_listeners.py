"""Addresses of metrics listeners on the command line, as HOST:PORT or as the URL that `klamm up` prints."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import click

_PATHS: Final = ("", "/", "/metrics")


def parse_listener(text: str) -> str:
    """Return HOST:PORT, which is the same for all spellings of a listener; ValueError for anything else."""
    mistake = f"{text!r} is neither HOST:PORT nor http://HOST:PORT"
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname or "", url.port
    except ValueError:
        raise ValueError(mistake) from None
    # An IPv6 address without brackets has no port that could be told from its last group.
    is_bracketed = url.netloc.startswith("[")
    is_odd_host = not host or (":" in host) != is_bracketed or any(char.isspace() or char == "," for char in text)
    has_more = url.username is not None or url.path not in _PATHS or "?" in text or "#" in text
    if url.scheme not in ("http", "https") or is_odd_host or has_more or not port:
        raise ValueError(mistake)
    address = f"[{host}]:{port}" if is_bracketed else f"{host}:{port}"
    if url.scheme == "https":
        raise ValueError(f"metrics listeners have no TLS; write http://{address}")
    return address


def read_listeners(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses of an option; BadParameter for one that is none."""
    try:
        return tuple(parse_listener(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
