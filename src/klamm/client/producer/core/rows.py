"""Conversion of keys, values, headers and timestamps of `send` into what the kernels take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def as_bytes(data: Any, what: str) -> bytes:
    """A key, value or header as bytes; the TypeError names a remedy."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)  # a copy: the caller may change its buffer before the record is sent
    remedy = "encode it" if what == "header" else f"{what}.serializer can make bytes of others"
    raise TypeError(f"a {what} is bytes or None, not {type(data).__name__}; {remedy}")


def as_timestamp(given: Any) -> int:
    """Milliseconds since the epoch; the errors name a remedy."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(
            f"a timestamp is a whole number of milliseconds since 1970, not {type(given).__name__}; "
            "of a datetime it is int(when.timestamp() * 1000)"
        )
    if not 0 <= given < 1 << 63:
        raise ValueError(f"{given} is no timestamp: milliseconds since 1970 fit into 63 bits")
    return int(given)


def header_pairs(headers: Any) -> tuple[list[tuple[str | bytes, bytes | None]], int]:
    """Headers as pairs, and an upper bound of their encoded size."""
    pairs: list[tuple[str | bytes, bytes | None]] = []
    size = 0
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f'headers are pairs of a name and bytes, e.g. [("trace", b"1")], not {headers!r}')
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    for pair in items:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f'headers are pairs of a name and bytes, e.g. [("trace", b"1")]; {pair!r} is none')
        name, value = pair
        if not isinstance(name, str | bytes):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        if isinstance(name, str) and not name.isascii():
            try:
                name = name.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"the name of a header, {name!r}, is no UTF-8: {error.reason}") from None
        data = None if value is None else as_bytes(value, "header")
        # A character takes at most four bytes in UTF-8, a varint length at most five.
        size += 4 * len(name) + len(data or b"") + 10
        pairs.append((name, data))
    return pairs, size
