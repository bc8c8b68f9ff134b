"""Keys, values and headers as users give them, made into what the kernels take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.client.types import Headers


def as_bytes(data: Any, what: str) -> bytes:
    """A key, value or header as bytes; TypeError says what would help."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"a {what} is bytes or None, not {type(data).__name__}; {what}.serializer can make bytes of others")


def header_pairs(headers: Headers) -> tuple[list[tuple[str | bytes, bytes | None]], int]:
    """Headers as pairs, and the most bytes they may need."""
    pairs: list[tuple[str | bytes, bytes | None]] = []
    size = 0
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in items:
        if not isinstance(name, str | bytes):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        data = None if value is None else as_bytes(value, "header")
        size += 4 * len(name) + len(data or b"") + 10
        pairs.append((name, data))
    return pairs, size
