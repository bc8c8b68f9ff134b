"""The metadata log as raft needs it: whole batches at the end, cut back, read from an offset, made durable.

`RaftLog` is the seam: `DiskRaftLog` keeps Kafka's segment files, `MemoryRaftLog` forgets what was not flushed, for
simulations.
"""

from bisect import bisect_right
from typing import Protocol

from klamm.records.batch import BatchView


class RaftLog(Protocol):
    """An append-only log of batches whose offsets and epochs are already set."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def end_offset(self) -> int:
        """The offset the next batch must have."""

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset written in it) pairs, ascending."""

    def append(self, batch: bytes | bytearray) -> None:
        """Write one batch at the end; it survives a crash of the machine only after `flush`."""

    def flush(self) -> None:
        """Make everything appended before this call durable; may run in a thread of its own."""

    def truncate_to(self, end_offset: int) -> None:
        """Drop all batches from `end_offset` on."""

    def start_at(self, offset: int) -> None:
        """Drop everything; the next batch has this offset."""

    def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`; segments wholly before it may go."""

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches, the first of which contains `offset`, at least one when there is one."""

    def close(self) -> None:
        """Flush and release the files."""


class MemoryRaftLog:
    """A log that lives in memory; `crash` loses what was not flushed."""

    def __init__(self) -> None:
        self._start = 0
        self._batches: list[bytes] = []
        self._bases: list[int] = []
        self._flushed = 0
        self._end = 0

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._start

    @property
    def end_offset(self) -> int:
        """The offset the next batch must have."""
        return self._end

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset written in it) pairs, ascending."""
        found: list[tuple[int, int]] = []
        for raw in self._batches:
            view = BatchView(raw)
            if not found or view.leader_epoch > found[-1][0]:
                found.append((view.leader_epoch, max(view.base_offset, self._start)))
        return tuple(found)

    def append(self, batch: bytes | bytearray) -> None:
        """Write one batch at the end."""
        view = BatchView(batch)
        if view.base_offset != self._end:
            raise AssertionError(f"batch at {view.base_offset} does not continue a log that ends at {self._end}")
        self._batches.append(bytes(batch))
        self._bases.append(view.base_offset)
        self._end = view.next_offset

    def flush(self) -> None:
        """Make everything appended durable."""
        self._flushed = self._end

    def truncate_to(self, end_offset: int) -> None:
        """Drop all batches from `end_offset` on."""
        while self._bases and self._bases[-1] >= end_offset:
            self._bases.pop()
            self._batches.pop()
        self._end = min(self._end, end_offset)
        self._flushed = min(self._flushed, self._end)

    def start_at(self, offset: int) -> None:
        """Drop everything; the next batch has this offset."""
        self._batches.clear()
        self._bases.clear()
        self._start = self._end = self._flushed = offset

    def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`."""
        keep = max(bisect_right(self._bases, offset) - 1, 0)
        del self._batches[:keep], self._bases[:keep]
        self._start = max(self._start, offset)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches, the first of which contains `offset`."""
        if not self._start <= offset < self._end:
            return b""
        index = bisect_right(self._bases, offset) - 1
        found = bytearray(self._batches[index])
        for batch in self._batches[index + 1 :]:
            if len(found) + len(batch) > max_bytes:
                break
            found += batch
        return bytes(found)

    def close(self) -> None:
        """Flush."""
        self.flush()

    def crash(self) -> None:
        """Lose what a machine would lose."""
        self.truncate_to(self._flushed)
