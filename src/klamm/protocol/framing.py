"""A byte stream cut into frames: four bytes of size, then that many bytes.

A `FrameReader` owns the buffer a socket reads into, so that a frame that arrives whole is never copied:

    view = frames.get_buffer()
    for frame in frames.buffer_updated(sock.recv_into(view)):
        ...

Frames are writable views of that buffer and hold until the next `get_buffer`. The buffer grows with the bytes that
really came, never with the size a peer announced.
"""

import struct

from klamm.model.errors import RemoteProtocolError

_SIZE = struct.Struct(">i")
_START_BYTES = 64 * 1024
_KEEP_BYTES = 2 * 1024 * 1024  # a larger buffer is given back once it is empty
_CHEAP_MOVE_BYTES = 4096


class FrameReader:
    """Turns what a connection received into frames; knows no socket."""

    __slots__ = ("_buffer", "_end", "_size_max", "_start", "_start_bytes", "_view")

    def __init__(self, size_max: int = 100 * 1024 * 1024, buffer_bytes: int = _START_BYTES) -> None:
        self._size_max = size_max
        self._start_bytes = max(buffer_bytes, 16)
        self._buffer = bytearray(self._start_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are here."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Room for more bytes, never empty; frames handed out before stop being valid."""
        held = self._end - self._start
        if not held and len(self._buffer) > _KEEP_BYTES:
            self._move_to(bytearray(self._start_bytes))
        elif self._start and (held <= _CHEAP_MOVE_BYTES or self._end == len(self._buffer)):
            self._view[:held] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, held
        if self._end == len(self._buffer):
            self._grow()
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """Take `count` bytes put into the buffer; returns the frames that are now whole, without their size."""
        self._end += count
        frames = []
        start, end = self._start, self._end
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(self._buffer, start)
            if not 0 <= size <= self._size_max:
                raise RemoteProtocolError(f"a frame of {size} bytes; at most {self._size_max} are accepted")
            stop = start + 4 + size
            if stop > end:
                break
            frames.append(self._view[start + 4 : stop])
            start = stop
        self._start = start
        return frames

    def receive(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes that were read elsewhere; returns copies of the frames that are now whole."""
        frames: list[bytes] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            frames += map(bytes, self.buffer_updated(count))
            rest = rest[count:]
        return frames

    def _grow(self) -> None:
        """Make room for the frame that fills the buffer, at most eight times what has come of it."""
        wanted = 4 + int(_SIZE.unpack_from(self._buffer)[0])
        self._move_to(bytearray(min(wanted, 8 * len(self._buffer))))

    def _move_to(self, buffer: bytearray) -> None:
        """Go on in another buffer; frames of the old one keep it alive."""
        held = self._end - self._start
        buffer[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, held


def frame(*pieces: bytes | bytearray | memoryview) -> bytes:
    """One frame of the given pieces, size first."""
    return _SIZE.pack(sum(map(len, pieces))) + b"".join(pieces)
