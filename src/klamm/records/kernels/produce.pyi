from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

PlainHeader: TypeAlias = tuple[int, int, int, int, int, int, int, bool]
"""CRC (-1: compared already), last offset delta, max timestamp, producer id, epoch, sequence, codec, lacks a key."""

COMPILED: bool

def check_records(data: bytes | bytearray | memoryview, w: bytearray) -> int: ...
def plain_header(batch: memoryview) -> PlainHeader | None: ...
def known_batch(
    view: memoryview, start: int, end: int, lengths: list[int], known: dict[bytes, _T]
) -> tuple[_T, int, int, int, PlainHeader] | None: ...
