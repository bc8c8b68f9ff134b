"""The time index: from a timestamp to an offset before which no batch is that late.

    12 bytes per entry: timestamp i64 · relative offset i32

An entry means: up to this offset, no batch has a larger timestamp. Timestamps and offsets only grow; the last entry of
a closed segment holds its largest timestamp.
"""

import struct
from bisect import bisect_right
from mmap import mmap

from klamm.storage.offset_index import used_bytes

ENTRY = struct.Struct(">qi")
ENTRY_SIZE = 12
_UNPACK = ENTRY.unpack_from
_TIMESTAMP = struct.Struct(">q").unpack_from


class TimeIndex:
    """Sorted (timestamp, offset) entries over a buffer; appendable when the buffer is a bytearray."""

    __slots__ = ("base_offset", "buffer", "flushed", "last_timestamp", "size")

    def __init__(self, base_offset: int, buffer: "bytearray | mmap | bytes" = b"") -> None:
        self.base_offset = base_offset
        self.buffer = buffer
        # A lone zero entry is real: a record of time 0 at the base offset.
        self.size = (
            used_bytes(buffer, ENTRY) if len(buffer) >= 2 * ENTRY_SIZE else len(buffer) // ENTRY_SIZE * ENTRY_SIZE
        )
        self.flushed = 0
        self.last_timestamp = self.last()[0]

    def __len__(self) -> int:
        return self.size // ENTRY_SIZE

    def entry(self, i: int) -> tuple[int, int]:
        """Entry `i` as (timestamp, offset)."""
        timestamp, relative = _UNPACK(self.buffer, i * ENTRY_SIZE)
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int]:
        """The largest timestamp seen and the last offset of its batch; (-1, base offset) when there is none."""
        return self.entry(self.size // ENTRY_SIZE - 1) if self.size else (-1, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Note a new largest timestamp; an older or equal one changes nothing."""
        # Entries must ascend in both columns for the binary search, so an equal timestamp adds none.
        if timestamp > self.last_timestamp:
            self.buffer += ENTRY.pack(timestamp, offset - self.base_offset)  # type: ignore[operator]
            self.size += ENTRY_SIZE
            self.last_timestamp = timestamp

    def floor(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry (timestamp, offset) at or before `timestamp`: a search starts there."""
        buffer = self.buffer
        count = bisect_right(range(self.size // ENTRY_SIZE), timestamp, key=lambda i: _TIMESTAMP(buffer, i * 12)[0])
        return self.entry(count - 1) if count else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or after `offset`."""
        count = self.size // ENTRY_SIZE
        while count and self.entry(count - 1)[1] >= offset:
            count -= 1
        self.size = count * ENTRY_SIZE
        del self.buffer[self.size :]  # type: ignore[union-attr]
        self.flushed = min(self.flushed, self.size)
        self.last_timestamp = self.last()[0]
