"""The offset index: from an offset to the file position at which to start searching.

    8 bytes per entry: relative offset i32 · file position i32

An entry names the last offset of a batch and the position where that batch starts; there is one per
index.interval.bytes. The active segment's entries live in a bytearray in the file's own format and reach the disk when
the segment rolls, closes or is checkpointed; a closed segment's file is mapped.
"""

import struct
from bisect import bisect_left, bisect_right
from mmap import mmap

from klamm.storage.disk import Disk

ENTRY = struct.Struct(">ii")
ENTRY_SIZE = 8
_UNPACK = ENTRY.unpack_from
_INT = struct.Struct(">i").unpack_from


class OffsetIndex:
    """Sorted (relative offset, position) entries over a buffer; appendable when the buffer is a bytearray."""

    __slots__ = ("base_offset", "buffer", "flushed", "size")

    def __init__(self, base_offset: int, buffer: "bytearray | mmap | bytes" = b"") -> None:
        self.base_offset = base_offset
        self.buffer = buffer
        self.size = used_bytes(buffer, ENTRY)
        self.flushed = 0

    def __len__(self) -> int:
        return self.size // ENTRY_SIZE

    def entry(self, i: int) -> tuple[int, int]:
        """Entry `i` as (offset, position)."""
        relative, position = _UNPACK(self.buffer, i * ENTRY_SIZE)
        return self.base_offset + relative, position

    def append(self, offset: int, position: int) -> None:
        """Add the entry of a batch that ends with `offset` and starts at `position`."""
        self.buffer += ENTRY.pack(offset - self.base_offset, position)  # type: ignore[operator]
        self.size += ENTRY_SIZE

    def lookup(self, offset: int) -> int:
        """Return the position of the last indexed batch that ends at or before `offset`; 0 when there is none."""
        buffer = self.buffer
        count = bisect_right(
            range(self.size // ENTRY_SIZE), offset - self.base_offset, key=lambda i: _INT(buffer, i * 8)[0]
        )
        return _INT(buffer, count * 8 - 4)[0] if count else 0

    def floor(self, position: int) -> tuple[int, int] | None:
        """Return the last entry (offset, position) at or before a file position; None when there is none."""
        buffer = self.buffer
        count = bisect_right(range(self.size // ENTRY_SIZE), position, key=lambda i: _INT(buffer, i * 8 + 4)[0])
        return self.entry(count - 1) if count else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of batches that end at or after `offset`."""
        # From the end: a truncation removes few entries of many.
        count = self.size // ENTRY_SIZE
        while count and self.entry(count - 1)[0] >= offset:
            count -= 1
        self.size = count * ENTRY_SIZE
        del self.buffer[self.size :]  # type: ignore[union-attr]
        self.flushed = min(self.flushed, self.size)

    def sane(self, log_size: int) -> bool:
        """Return whether the last entry is plausible: a cheap check for files that belong to another log."""
        if not self.size:
            return True
        relative, position = _UNPACK(self.buffer, self.size - ENTRY_SIZE)
        return bool(relative >= 0 and 0 <= position < log_size)


def map_file(disk: Disk, path: str) -> "mmap | bytes":
    """Map a file for reading; an empty or missing one is empty bytes."""
    try:
        fd = disk.open(path, 0)
    except FileNotFoundError:
        return b""
    try:
        return disk.map(fd) if disk.fstat(fd).st_size else b""
    finally:
        disk.close(fd)


def used_bytes(buffer: "bytearray | mmap | bytes", entry: struct.Struct) -> int:
    """Return how many bytes hold entries: Kafka preallocates the active index, and a crash leaves the zeros behind.

    Entries grow, so all that are zeros come last.
    """
    count = len(buffer) // entry.size
    # Binary search for the first all-zero entry: reading a preallocated 10 MB file would cost more than the scan.
    nothing = entry.unpack(bytes(entry.size))
    if not count or entry.unpack_from(buffer, (count - 1) * entry.size) != nothing:
        return count * entry.size
    first = bisect_left(range(count), True, key=lambda i: entry.unpack_from(buffer, i * entry.size) == nothing)
    return first * entry.size
