"""A byte stream from a broker cut into answers that may be kept: records are read from them long after.

Unlike `net.receive_buffer`, whose frames are valid until the next read, a large answer gets a buffer of its own and is
handed over with it, uncopied. The buffer grows with the bytes that really came, never with the size announced; one that
nobody looks at any more is used again, since fresh memory costs more than the bytes put into it.
"""

import struct

from klamm.client.core.buffer_pool import Spares
from klamm.model.errors import RemoteProtocolError

_SIZE = struct.Struct(">i")
_TLS_ALERT = b"\x15\x03"
"""How a server that expects TLS begins its answer to what is none."""
_SMALL_BYTES = 64 * 1024
_GROWTH = 8
_KEPT = 6
"""Large buffers remembered, to be used again."""


class AnswerReader:
    """Turns what a connection received into answers; knows no socket.

    view = reader.room()
    for answer in reader.received(sock.recv_into(view)): ...
    """

    __slots__ = (
        "_begun",
        "_end",
        "_large",
        "_large_end",
        "_large_size",
        "_large_view",
        "_size_max",
        "_small",
        "_small_view",
        "_spares",
    )

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._begun = False
        self._small = bytearray(_SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._end = 0
        self._spares = Spares(_KEPT)
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
        # A buffer that was used before may be larger: what comes after this answer belongs to the next.
        return self._large_view[self._large_end : self._large_size]

    @property
    def lacking(self) -> int:
        """Bytes still to come of a large answer, 0 when none is under way."""
        return 0 if self._large is None else self._large_size - self._large_end

    def received(self, count: int) -> list[memoryview]:
        """Take `count` bytes put into the room; returns the answers that are now whole, without their size."""
        if self._large is not None:
            self._large_end += count
            if self._large_end < self._large_size:
                return []
            answer = self._large_view[: self._large_size]
            self._spares.give(self._large)
            self._large, self._large_view = None, memoryview(b"")
            return [answer]
        self._end += count
        answers: list[memoryview] = []
        start, end = 0, self._end
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(self._small, start)
            if not self._begun:
                self._begun = True
                if self._small.startswith(_TLS_ALERT):
                    raise RemoteProtocolError("it speaks TLS: security.protocol=SSL is needed here")
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
        self._large = self._spares.take(size) or bytearray(min(size, max(_GROWTH * held, 4 * _SMALL_BYTES)))
        self._large_view = memoryview(self._large)
        self._large_view[:held] = self._small_view[start:end]
        self._large_end, self._large_size = held, size

    def _grow(self, size: int) -> None:
        grown = bytearray(size)
        view = memoryview(grown)
        view[: self._large_end] = self._large_view[: self._large_end]
        self._large, self._large_view = grown, view
