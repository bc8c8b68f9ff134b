"""A byte stream from a broker cut into answers that may be kept: records are read from them long after.

Unlike `protocol.framing`, whose frames are valid until the next read, a large answer gets a buffer of its own and is
handed over with it, uncopied. The buffer grows with the bytes that really came, never with the size announced; one that
nobody looks at any more is used again, since fresh memory costs more than the bytes put into it.
"""

import struct

from klamm.model.errors import RemoteProtocolError

_SIZE = struct.Struct(">i")
_SMALL_BYTES = 64 * 1024
_GROWTH = 8
_KEPT = 4
"""Large buffers remembered, to be used again."""


class AnswerReader:
    """Turns what a connection received into answers; knows no socket.

    view = reader.room()
    for answer in reader.received(sock.recv_into(view)): ...
    """

    __slots__ = (
        "_end",
        "_kept",
        "_large",
        "_large_end",
        "_large_size",
        "_large_view",
        "_size_max",
        "_small",
        "_small_view",
    )

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._small = bytearray(_SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._end = 0
        self._kept: list[bytearray] = []
        self._large: bytearray | None = None
        self._large_view = memoryview(b"")
        self._large_end = 0
        self._large_size = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is None:
            return self._small_view[self._end :]
        if self._large_end == len(self._large):
            self._grow(min(self._large_size, _GROWTH * len(self._large)))
        return self._large_view[self._large_end :]

    def received(self, count: int) -> list[memoryview]:
        """Take `count` bytes put into the room; returns the answers that are now whole, without their size."""
        if self._large is not None:
            self._large_end += count
            if self._large_end < self._large_size:
                return []
            answer = self._large_view[: self._large_size]
            self._keep(self._large)
            self._large, self._large_view = None, memoryview(b"")
            return [answer]
        self._end += count
        answers: list[memoryview] = []
        start, end = 0, self._end
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(self._small, start)
            if not 4 <= size <= self._size_max:
                raise RemoteProtocolError(f"an answer of {size} bytes; 4 to {self._size_max} are accepted")
            stop = start + 4 + size
            if stop > end:
                if stop - start > _SMALL_BYTES:
                    self._begin_large(size, start + 4, end)
                    start = end
                break
            answers.append(memoryview(bytes(self._small_view[start + 4 : stop])))
            start = stop
        if start:
            held = end - start
            if held:
                self._small[:held] = self._small[start:end]
            self._end = held
        return answers

    def _begin_large(self, size: int, start: int, end: int) -> None:
        held = end - start
        self._large = self._unused(size) or bytearray(min(size, max(_GROWTH * held, 4 * _SMALL_BYTES)))
        self._large_view = memoryview(self._large)
        self._large_view[:held] = self._small_view[start:end]
        self._large_end, self._large_size = held, size

    def _unused(self, size: int) -> bytearray | None:
        """A buffer of an earlier answer that is large enough and that nobody looks at."""
        for index, buffer in enumerate(self._kept):
            if len(buffer) >= size and _free(buffer):
                return self._kept.pop(index)
        return None

    def _keep(self, buffer: bytearray) -> None:
        """Remember a buffer; of too many, the smallest is forgotten."""
        self._kept.append(buffer)
        if len(self._kept) > _KEPT:
            self._kept.remove(min(self._kept, key=len))

    def _grow(self, size: int) -> None:
        grown = bytearray(size)
        view = memoryview(grown)
        view[: self._large_end] = self._large_view[: self._large_end]
        self._large, self._large_view = grown, view


def _free(buffer: bytearray) -> bool:
    """Whether no view of it is left: a bytearray refuses to change its size while there is one."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
