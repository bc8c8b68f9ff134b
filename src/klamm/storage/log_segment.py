"""One segment: a `.log` file of consecutive batches with its indexes beside it.

The active segment is open for writing and keeps its indexes in memory. A closed one opens its files when it is read; a
shared cache closes them again, so ten thousand segments need few file descriptors.
"""

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from klamm.model.errors import CorruptBatch, StorageFailure
from klamm.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchView
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, OpenFiles, SegmentFile, write_all
from klamm.storage.index_rebuild import build_indexes, log_rebuild
from klamm.storage.offset_index import OffsetIndex, map_file
from klamm.storage.time_index import TimeIndex
from klamm.storage.txn_index import TxnIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
DELETED_SUFFIX = ".deleted"
NEVER = 2**63 - 1

_HOP = struct.Struct(">qi11xi")
"""Base offset, batch length, last offset delta: the header fields needed to walk from batch to batch."""
_HOP_CHUNK = 8192
_unpack_hop = _HOP.unpack_from
_SCAN_CHUNK = 1 << 20


class BatchLocation(NamedTuple):
    """Where a batch is in a file, and its offsets."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def offset_name(offset: int) -> str:
    """Return the name of a segment's files: twenty digits, as in Kafka."""
    return f"{offset:020d}"


class LogSegment:
    """A contiguous piece of a log. `size` is the number of valid bytes, which may be less than a preallocated file."""

    __slots__ = (
        "_disk",
        "_files",
        "_first_timestamp",
        "_max_timestamp",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "file",
        "folder",
        "index",
        "roll_at_clock_ms",
        "roll_at_timestamp",
        "size",
        "time_index",
        "txn_index",
    )

    def __init__(self, disk: Disk, files: OpenFiles, folder: str, base_offset: int, size: int = 0) -> None:
        self._disk = disk
        self._files = files
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
        self.txn_index = TxnIndex(disk, self.path(TXN_INDEX_SUFFIX))
        # Set while the segment is active, None once it is closed.
        self.file: SegmentFile | None = None
        self.index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None
        self._max_timestamp: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self.bytes_since_index = 0
        self.created_ms = 0
        self.roll_at_timestamp = NEVER
        self.roll_at_clock_ms = NEVER

    def path(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return os.path.join(self.folder, offset_name(self.base_offset) + suffix)

    def __repr__(self) -> str:
        return f"LogSegment({self.path(LOG_SUFFIX)!r}, size={self.size})"

    # --- opening and closing -----------------------------------------------------------------------------------------

    def activate(self, config: LogConfig, now_ms: int, *, create: bool = False, rebuild: bool = False) -> None:
        """Open for appending. `rebuild` begins with empty indexes that a scan will fill."""
        self.file = SegmentFile(self._disk, self.path(LOG_SUFFIX), writable=True, create=create)
        if create and config.preallocate:
            try:
                self._disk.posix_fallocate(self.file.fd, 0, config.segment_bytes)
            except OSError as error:
                raise StorageFailure(f"cannot preallocate {self.file.path}: {error}") from error
        index = bytearray() if create or rebuild else bytearray(self._read(INDEX_SUFFIX))
        times = bytearray() if create or rebuild else bytearray(self._read(TIME_INDEX_SUFFIX))
        self.index = OffsetIndex(self.base_offset, index)
        self.time_index = TimeIndex(self.base_offset, times)
        # Kafka preallocates index files with zeros, which `size` does not count; appends must not come after them.
        del index[self.index.size :], times[self.time_index.size :]
        # None defers the lookup, and the check of what it returns, to the first use.
        self._max_timestamp = self.time_index.last() if create or rebuild else None
        self.created_ms = now_ms
        self.close_cached()

    def deactivate(self) -> None:
        """Write the indexes and release what only the active segment holds."""
        self.finish()
        self.release()

    def finish(self) -> None:
        """Bring the files into the form of a closed segment; StorageFailure or OSError leaves it active."""
        assert self.time_index is not None
        assert self.file is not None
        # The last entry of a closed segment must hold its largest timestamp: retention by time reads nothing else.
        self.time_index.maybe_append(*self.max_timestamp)
        self.write_indexes()
        # A preallocated file, or the rest of a write that failed.
        if self._disk.fstat(self.file.fd).st_size > self.size:
            self._disk.ftruncate(self.file.fd, self.size)

    def release(self) -> None:
        """Release what only the active segment holds; call `finish` first."""
        # The open file goes to the cache: readers at the tail come back to it at once.
        self._files.get((self, LOG_SUFFIX), self.open_file)
        self.file = None
        self.index = None
        self.time_index = None

    def write_indexes(self) -> None:
        """Bring the index files of the active segment up to date (not synced: a crash rebuilds them)."""
        assert self.index is not None
        assert self.time_index is not None
        for index, suffix in ((self.index, INDEX_SUFFIX), (self.time_index, TIME_INDEX_SUFFIX)):
            try:
                fd = self._disk.open(self.path(suffix), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    # Only the new entries: an index is written many times while its segment is active.
                    write_all(self._disk, fd, memoryview(index.buffer)[index.flushed : index.size], index.flushed)
                    self._disk.ftruncate(fd, index.size)
                finally:
                    self._disk.close(fd)
            except OSError as error:
                raise StorageFailure(f"cannot write {self.path(suffix)}: {error}") from error
            index.flushed = index.size

    def open_file(self) -> SegmentFile:
        """Return the `.log` file, opened if need be."""
        if self.file is not None:
            return self.file
        file: SegmentFile = self._files.get((self, LOG_SUFFIX), self._open_log_file)
        return file

    def offset_index(self) -> OffsetIndex:
        """Return the offset index, mapped if need be."""
        if self.index is not None:
            return self.index
        index: OffsetIndex = self._files.get((self, INDEX_SUFFIX), self._map_offset_index)
        return index

    def times(self) -> TimeIndex:
        """Return the time index, mapped if need be."""
        if self.time_index is not None:
            return self.time_index
        index: TimeIndex = self._files.get((self, TIME_INDEX_SUFFIX), self._map_time_index)
        return index

    def _open_log_file(self) -> SegmentFile:
        return SegmentFile(self._disk, self.path(LOG_SUFFIX))

    def _map_offset_index(self) -> OffsetIndex:
        return OffsetIndex(self.base_offset, map_file(self._disk, self.path(INDEX_SUFFIX)))

    def _map_time_index(self) -> TimeIndex:
        return TimeIndex(self.base_offset, map_file(self._disk, self.path(TIME_INDEX_SUFFIX)))

    def close_cached(self) -> None:
        """Drop the files of this segment from the cache of open files."""
        # The transaction index keeps no file open.
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._files.forget((self, suffix))

    def relocate(self, folder: str) -> None:
        """Use a folder that was renamed."""
        self.folder = folder
        self.txn_index.path = self.path(TXN_INDEX_SUFFIX)
        self.close_cached()

    def mark_deleted(self) -> list[str]:
        """Rename the files to `.deleted`, so that no restart uses them again; return what is to be removed later."""
        self.close_cached()
        self.file = None
        renamed = []
        for suffix in SUFFIXES:
            try:
                self._disk.rename(self.path(suffix), self.path(suffix) + DELETED_SUFFIX)
                renamed.append(self.path(suffix) + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
        return renamed

    def modified_ms(self) -> int:
        """Return when the `.log` file was last written."""
        return self._disk.fstat(self.open_file().fd).st_mtime_ns // 1_000_000

    def remove_files(self) -> None:
        """Delete the segment; readers that still hold its file keep their bytes."""
        self.close_cached()
        self.file = None
        for suffix in SUFFIXES:
            self._disk.remove_if_exists(self.path(suffix))

    # --- timestamps --------------------------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of the first batch that has it; (-1, base offset) when empty."""
        if self._max_timestamp is None:
            self._max_timestamp = self._last_time()
        return self._max_timestamp

    @max_timestamp.setter
    def max_timestamp(self, value: tuple[int, int]) -> None:
        self._max_timestamp = value

    def _last_time(self) -> tuple[int, int]:
        """Return the last entry of the time index, verified: retention deletes by it."""
        timestamp, offset = self.times().last()
        if (
            self.size
            and len(self.times())
            and not self._matches_timestamp(timestamp, offset)
            and self.rebuild_indexes("its last time")
        ):
            return self.times().last()
        return timestamp, offset

    def time_floor(self, timestamp: int) -> int:
        """Return an offset up to which no batch is later than `timestamp`, except perhaps the one that holds it."""
        entry = self.times().floor(timestamp)
        if entry is not None and not self._matches_timestamp(*entry) and self.rebuild_indexes(f"time {entry[0]}"):
            entry = self.times().floor(timestamp)
        return self.base_offset if entry is None else entry[1]

    def _matches_timestamp(self, timestamp: int, offset: int) -> bool:
        """Return whether the batch that holds an offset has this largest timestamp."""
        try:
            location = self.find(offset) if offset >= self.base_offset else None
            if location is None or location.base_offset > offset:
                return False
            return BatchView(self.open_file().pread(HEADER_SIZE, location.position)).max_timestamp == timestamp
        except CorruptBatch:
            return False

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch of a closed segment, -1 when it is empty."""
        if self._first_timestamp is None:
            first = next(self.headers(0), None)
            self._first_timestamp = first.max_timestamp if first is not None else -1
        return self._first_timestamp

    def note_first_timestamp(self, timestamp: int, config: LogConfig, jitter_ms: int) -> None:
        """Set when the segment is due to roll: in record time, or by the clock when records carry no timestamps."""
        due_ms = config.roll_ms - jitter_ms
        if timestamp >= 0:
            self.roll_at_timestamp, self.roll_at_clock_ms = timestamp + due_ms, NEVER
        else:
            self.roll_at_timestamp, self.roll_at_clock_ms = NEVER, self.created_ms + due_ms

    # --- finding batches ---------------------------------------------------------------------------------------------

    def find(self, offset: int) -> BatchLocation | None:
        """Return the first batch that ends at or after `offset`; None when the segment holds none."""
        start = self.offset_index().lookup(offset)
        try:
            location = self._find_from(start, offset, NEVER)
        except CorruptBatch:
            if not start or not self.rebuild_indexes(f"the entry for offset {offset}"):
                raise
        else:
            # An entry names a batch that ends at or before `offset`. One that begins after it would hide records.
            # Without an index entry (start 0) there is nothing to doubt: the walk began at the first batch.
            if not start or location is None or location.position > start or location.base_offset <= offset:
                return location
            if not self.rebuild_indexes(f"the entry for offset {offset}"):
                raise CorruptBatch(f"{self.path(INDEX_SUFFIX)} leads past offset {offset}")
        return self._find_from(self.offset_index().lookup(offset), offset, NEVER)

    def find_beyond(self, start: int, limit: int) -> BatchLocation | None:
        """Return the first batch from `start` on that ends beyond the position `limit`."""
        return self._find_from(max(start, self.boundary_before(limit)), NEVER, limit)

    def boundary_before(self, position: int) -> int:
        """Return where a batch begins at or before a file position: the nearest index entry, or 0."""
        entry = self.offset_index().floor(position)
        if entry is not None and not self._points_to(*entry):
            entry = (
                self.offset_index().floor(position)
                if self.rebuild_indexes(f"the entry for position {entry[1]}")
                else None
            )
        return 0 if entry is None else entry[1]

    def _points_to(self, offset: int, position: int) -> bool:
        """Return whether the batch that begins at a position ends with an offset."""
        head = self.open_file().pread(_HOP.size, position) if 0 <= position < self.size else b""
        if len(head) < _HOP.size:
            return False
        base_offset, _, delta = _unpack_hop(head)
        return bool(base_offset + delta == offset)

    def rebuild_indexes(self, reason: str) -> bool:
        """Rebuild the indexes from the batches after a wrong entry; False when the batches are damaged, too."""
        try:
            offset_index, times = build_indexes(self)
        except CorruptBatch:
            return False
        self.close_cached()
        for index, suffix in ((offset_index, INDEX_SUFFIX), (times, TIME_INDEX_SUFFIX)):
            try:
                self._disk.replace_file(self.path(suffix), bytes(index.buffer), sync=False)
            except OSError as error:
                raise StorageFailure(f"cannot write {self.path(suffix)}: {error}") from error
            index.flushed = index.size
        if self.file is not None:
            self.index, self.time_index = offset_index, times
        log_rebuild(self.path(INDEX_SUFFIX), reason)
        return True

    def next_offset(self) -> int:
        """Return the offset after the last batch, walking from the last index entry; CorruptBatch for a torn tail."""
        index = self.offset_index()
        start = index.entry(len(index) - 1)[1] if len(index) else 0
        last = self.base_offset - 1
        for location in self.walk(start):
            last = location.last_offset
        return last + 1

    def _find_from(self, position: int, offset: int, limit: int) -> BatchLocation | None:
        """Return the first batch from a batch boundary on that ends at or after `offset` or beyond position `limit`.

        The same as a loop over `walk`, without an object per batch: every read of small batches comes through here.
        """
        file = self.open_file()
        end = self.size
        # A chunk holds the headers of many small batches, or one of a large batch: the rest of that is skipped, not
        # read.
        while position < end:
            chunk = file.pread(min(_HOP_CHUNK, end - position), position)
            at, usable = 0, len(chunk) - _HOP.size
            if usable < 0:
                break
            while at <= usable:
                base_offset, length, delta = _unpack_hop(chunk, at)
                size = length + LOG_OVERHEAD
                if size < HEADER_SIZE or delta < 0 or position + at + size > end:
                    raise CorruptBatch(f"{file.path} has no valid batch at {position + at}")
                if base_offset + delta >= offset or position + at + size > limit:
                    return BatchLocation(position + at, size, base_offset, base_offset + delta)
                at += size
            position += at
        if position != end:
            raise CorruptBatch(f"{file.path} ends inside the batch at {position}")
        return None

    def walk(self, position: int) -> Iterator[BatchLocation]:
        """Yield the batches from a batch boundary on, by their lengths alone; CorruptBatch at an impossible length."""
        while position < self.size:
            location = self._find_from(position, -1, NEVER)
            assert location is not None
            yield location
            position += location.size

    def headers(self, position: int) -> Iterator[BatchView]:
        """Yield the headers of the batches from a batch boundary on; the records are not read."""
        file = self.open_file()
        while position + HEADER_SIZE <= self.size:
            batch = BatchView(file.pread(HEADER_SIZE, position))
            yield batch
            position += batch.size

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield complete batches from a batch boundary on, with their positions.

        Ends without an error where no complete batch fits; the caller compares the end with the size. An impossible
        length ends it too: nothing after it can be located.
        """
        file = self.open_file()
        end = self.size if end is None else end
        chunk = memoryview(b"")
        chunk_start = position
        while position + HEADER_SIZE <= end:
            at = position - chunk_start
            if at + HEADER_SIZE > len(chunk):
                chunk = memoryview(file.pread(min(_SCAN_CHUNK, end - position), position))
                chunk_start, at = position, 0
                if len(chunk) < HEADER_SIZE:
                    return
            size = HEADER.unpack_from(chunk, at)[1] + LOG_OVERHEAD
            if size < HEADER_SIZE or position + size > end:
                return
            if at + size > len(chunk):
                chunk = memoryview(file.pread(max(min(_SCAN_CHUNK, end - position), size), position))
                chunk_start, at = position, 0
                if len(chunk) < size:
                    return
            yield position, chunk[at : at + size]
            position += size

    def _read(self, suffix: str) -> bytes:
        try:
            return self._disk.read_file(self.path(suffix))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageFailure(f"cannot read {self.path(suffix)}: {error}") from error
