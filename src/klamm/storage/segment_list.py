"""The segments of one log in order: which one holds an offset, where a read begins and ends."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import overload

from klamm.model.errors import StorageFailure
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, FileSlice, OpenFiles
from klamm.storage.log_segment import LogSegment
from klamm.storage.txn_index import AbortedTxn
from klamm.storage.txn_verification import was_aborted

_HINTS_MAX = 256


class SegmentList:
    """At least one segment, ordered by base offset; the last is active."""

    def __init__(self, disk: Disk, files: OpenFiles, folder: str, segments: list[LogSegment]) -> None:
        self._disk = disk
        self._files = files
        self.folder = folder
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        self._hints: dict[int, tuple[LogSegment, int]] = {}
        """Next offset -> its segment and position, for recent reads: a sequential reader needs no search."""
        self.active = segments[-1]
        self._rolled_bytes = 0

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, i: int) -> LogSegment: ...
    @overload
    def __getitem__(self, i: slice) -> list[LogSegment]: ...
    def __getitem__(self, i: int | slice) -> LogSegment | list[LogSegment]:
        return self._all[i]

    @property
    def bases(self) -> list[int]:
        """The base offsets, ascending."""
        return list(self._bases)

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` files."""
        return sum(segment.size for segment in self._all)

    @property
    def appended_bytes(self) -> int:
        """A count of appended bytes: it grows with every append until the log is truncated, and has no fixed start."""
        return self._rolled_bytes + self.active.size

    def from_offset(self, offset: int) -> list[LogSegment]:
        """The segment that holds `offset`, and all after it."""
        return self._all[max(bisect_right(self._bases, offset) - 1, 0) :]

    def end_of(self, segment: LogSegment, log_end_offset: int) -> int:
        """The offset after the last one a segment may hold."""
        i = bisect_right(self._bases, segment.base_offset)
        return self._bases[i] if i < len(self._bases) else log_end_offset

    def add(self, base_offset: int, config: LogConfig, now_ms: int) -> LogSegment:
        """Begin a new active segment; when that fails, its files are removed."""
        segment = LogSegment(self._disk, self._files, self.folder, base_offset)
        try:
            segment.activate(config, now_ms, create=True)
        except (OSError, StorageFailure):
            segment.remove_files()
            raise
        # Counted when a segment is closed: an append changes its segment's size and nothing else.
        self._rolled_bytes += self.active.size
        self._all.append(segment)
        self._bases.append(base_offset)
        self.active = segment
        return segment

    def remove(self, segments: list[LogSegment]) -> None:
        """Delete segments and their files."""
        self._hints.clear()
        for segment in segments:
            i = self._bases.index(segment.base_offset)
            del self._all[i], self._bases[i]
            segment.remove_files()
        if self._all:
            self.active = self._all[-1]

    def drop_oldest(self, count: int) -> list[LogSegment]:
        """Remove the oldest segments from the list and return them; the caller removes their files."""
        assert count < len(self._all)
        dropped = self._all[:count]
        self._hints.clear()
        del self._all[:count], self._bases[:count]
        return dropped

    def replace(self, replaced: list[LogSegment], size: int, max_timestamp: tuple[int, int]) -> None:
        """Replace neighbours by one segment whose files have their final names."""
        segment = LogSegment(self._disk, self._files, self.folder, replaced[0].base_offset, size)
        segment.max_timestamp = max_timestamp
        at = self._bases.index(segment.base_offset)
        assert self._all[at : at + len(replaced)] == replaced
        self._hints.clear()
        self._all[at : at + len(replaced)] = [segment]
        self._bases[at : at + len(replaced)] = [segment.base_offset]

    def forget_hints(self) -> None:
        """Drop positions remembered from reads: they are no longer valid."""
        self._hints.clear()

    def relocate(self, folder: str) -> None:
        """Use a folder that was renamed."""
        self.folder = folder
        for segment in self._all:
            segment.relocate(folder)

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, log_end_offset: int, min_one: bool
    ) -> FileSlice | None:
        """Return the region of whole batches from the one that holds `offset` on, below `upper_offset`, of one segment.

        None when there is none, or when the first is larger than `max_bytes` and not `min_one`.
        """
        hint = self._hints.get(offset)
        # A hint at the very end of a closed segment is useless: the next batch is in another one.
        if hint is not None and (hint[1] < hint[0].size or hint[0] is self.active):
            segment, start = hint
        else:
            start_of_read = self._find(offset, upper_offset)
            if start_of_read is None:
                return None
            segment, start = start_of_read
        # The end of a closed segment is the base offset of the next, even if compaction has removed the last offsets.
        segment_end = log_end_offset if segment is self.active else self.end_of(segment, log_end_offset)
        # The usual case of a reader that is behind: everything up to the segment's end may be read, without a search.
        if upper_offset >= segment_end:
            end, next_offset = segment.size, segment_end
        else:
            location = segment.find(upper_offset)
            if location is None:
                end, next_offset = segment.size, segment_end
            elif location.base_offset < upper_offset:
                end, next_offset = location.position + location.size, location.last_offset + 1
            else:
                end, next_offset = location.position, location.base_offset
        if end - start > max_bytes:
            location = segment.find_beyond(start, start + max_bytes)
            if location is not None:
                # KIP-74: the first batch is returned even if it is larger than the limit, or the consumer would never
                # progress.
                if location.position == start and min_one:
                    end, next_offset = start + location.size, location.last_offset + 1
                else:
                    end, next_offset = location.position, location.base_offset
        if end <= start:
            return None
        hints = self._hints
        if len(hints) >= _HINTS_MAX:
            hints.clear()
        # At the end of a closed segment the next read begins in another segment, which a hint cannot name.
        if end < segment.size or segment is self.active:
            hints[next_offset] = (segment, end)
        return FileSlice(segment.open_file(), start, end - start, next_offset)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [start, end)."""
        transactions: list[AbortedTxn] = []
        for segment in self.from_offset(start):
            in_segment, complete = segment.txn_index.collect(start, end, partial(self._was_aborted, segment))
            transactions += in_segment
            if complete:
                break
        return transactions

    def _was_aborted(self, segment: LogSegment, txn: AbortedTxn) -> bool:
        return was_aborted(txn, segment, self.from_offset(txn.first_offset)[0])

    def _find(self, offset: int, upper_offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and position of the batch that holds `offset`, or of the next one that is left."""
        for segment in self.from_offset(offset):
            if segment.base_offset >= upper_offset:
                return None
            location = segment.find(offset)
            if location is not None:
                return (segment, location.position) if location.base_offset < upper_offset else None
        return None
