"""Reading any file of batches a piece at a time: segments, metadata snapshots."""

import os
from collections.abc import Iterator

from klamm.model.errors import CorruptBatch
from klamm.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchView
from klamm.storage.disk import Disk, SegmentFile

_CHUNK = 1 << 20


class BatchFile:
    """A file of batches; memory holds a megabyte of it, or one batch where that is larger."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self._file = SegmentFile(disk or Disk(), path)
        self.size = os.path.getsize(path)

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchView]]:
        """Yield batches with their positions; CorruptBatch where the bytes are none. The caller compares checksums."""
        chunk, start = memoryview(b""), position
        while position < self.size:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                chunk, start, at = self._read(_CHUNK, position), position, 0
                if len(chunk) < HEADER_SIZE:
                    raise CorruptBatch(f"{len(chunk)} bytes are too few for a batch")
            size = HEADER.unpack_from(chunk, at)[1] + LOG_OVERHEAD
            # Before anything is read by it: a damaged length must not decide how much memory is allocated.
            if size < HEADER_SIZE or position + size > self.size:
                # Told apart: preallocated or lost blocks read as zeros, which is not a damaged batch.
                zeros = not any(chunk[at : at + HEADER_SIZE])
                raise CorruptBatch("zeros follow" if zeros else f"no batch of {size} bytes fits here")
            if at + size > len(chunk):
                chunk, start, at = self._read(max(size, _CHUNK), position), position, 0
                if len(chunk) < size:
                    raise CorruptBatch("the file became shorter")
            yield position, BatchView(chunk[at : at + size])
            position += size

    def _read(self, length: int, position: int) -> memoryview:
        return memoryview(self._file.pread(min(length, self.size - position), position))
