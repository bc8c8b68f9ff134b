from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

PlainHeader: TypeAlias = tuple[int, int, int, int, int, int, int, bool]

COMPILED: bool

def check_records(data: bytes | bytearray | memoryview, w: bytearray) -> int: ...
def plain_header(batch: memoryview) -> PlainHeader | None: ...
def known_batch(
    view: memoryview, start: int, end: int, lengths: list[int], known: dict[bytes, _T]
) -> tuple[_T, int, int, int, PlainHeader] | None: ...
