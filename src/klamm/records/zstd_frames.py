"""Where the frames of zstd data end and how much they can unpack to, read from their headers alone (RFC 8878).

The library trusts the size a frame declares, and its streaming reader takes a cut frame for a complete one. Walking the
three-byte block headers decides both before anything is unpacked: one step for up to 128 KB of output.
"""

from collections.abc import Iterator
from typing import NamedTuple

from klamm.model.errors import CorruptBatch

WINDOW_BYTES_MIN = 8 * 1024 * 1024
"""The window every decoder should accept, by the recommendation of the format."""
WINDOW_BYTES_MAX = 128 * 1024 * 1024

_MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK_BYTES_MAX = 128 * 1024
_RAW, _RLE, _COMPRESSED = 0, 1, 2
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class ZstdFrame(NamedTuple):
    """One frame: its place in the data, and the most that its blocks can unpack to."""

    start: int
    end: int
    output_bytes_max: int


def walk(data: memoryview) -> Iterator[ZstdFrame]:
    """Every frame that holds data, in order; CorruptBatch when they do not fill `data` exactly."""
    position, end = 0, len(data)
    if not end:
        raise CorruptBatch("zstd: no data")
    try:
        while position < end:
            if _is_skippable(data, position):
                position += 8 + int.from_bytes(_take(data, position + 4, 4), "little")
                if position > end:
                    raise CorruptBatch("zstd: the data end in the middle of a skippable frame")
                continue
            frame = _frame(data, position)
            yield frame
            position = frame.end
    except IndexError:
        raise CorruptBatch("zstd: the data end in the middle") from None


def _frame(data: memoryview, start: int) -> ZstdFrame:
    if bytes(data[start : start + 4]) != _MAGIC:
        raise CorruptBatch("zstd: no frame begins where one should")
    descriptor = data[start + 4]
    single_segment = descriptor >> 5 & 1
    # Without a size field a single segment still has one byte of it.
    content_size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or single_segment
    position = start + 5 + (not single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3]
    # The two-byte form stores the size less 256.
    declared = int.from_bytes(_take(data, position, content_size_bytes), "little") + 256 * (content_size_bytes == 2)
    position += content_size_bytes
    output_bytes_max = 0
    last = 0
    while not last:
        header = int.from_bytes(_take(data, position, 3), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind > _COMPRESSED or size > BLOCK_BYTES_MAX:
            raise CorruptBatch("zstd: invalid block header")
        output_bytes_max += BLOCK_BYTES_MAX if kind == _COMPRESSED else size
        position += 3 + (1 if kind == _RLE else size)
    position += 4 * (descriptor >> 2 & 1)  # the checksum of the content, if the frame has one
    if position > len(data):
        raise CorruptBatch("zstd: the data end in the middle of a block")
    if content_size_bytes:
        if declared > output_bytes_max:
            raise CorruptBatch(f"zstd: a frame of {position - start} bytes cannot unpack to {declared}")
        output_bytes_max = declared
    return ZstdFrame(start, position, output_bytes_max)


def _is_skippable(data: memoryview, position: int) -> bool:
    return data[position] & 0xF0 == 0x50 and bytes(data[position + 1 : position + 4]) == b"\x2a\x4d\x18"


def _take(data: memoryview, position: int, size: int) -> memoryview:
    taken = data[position : position + size]
    if len(taken) < size:
        raise IndexError
    return taken
