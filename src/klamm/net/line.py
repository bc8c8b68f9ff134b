"""One connection to another node for a steady stream of large answers, read where they arrive.

A `Peer` gives every asker a future and a copy; whoever copies a partition's log wants neither. A line receives into one
buffer of its own, and calls `on_frame` with each whole answer as soon as it is there. The bytes are borrowed until that
call returns.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

from klamm.net.channel import LOW_WATER_BYTES_MAX, LOW_WATER_BYTES_MIN
from klamm.net.sockets import gather
from klamm.telemetry.log import get_logger

log = get_logger("net")

BUFFER_BYTES = 64 * 1024
BUFFER_IDLE_BYTES_MAX = 1024 * 1024
"""A larger buffer is given back once it is empty and answers are small again."""
FRAME_BYTES_MAX = 256 << 20

_SIZE = struct.Struct(">i")

OnFrame = Callable[[memoryview], None]


class Line(asyncio.BufferedProtocol):
    """Bytes in, frames to `on_frame`; `on_lost` hears once that the connection is gone."""

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._needed = 4
        self._low_water = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the connection stands."""
        self._transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if hasattr(sock, "setsockopt"):
            self._sock = sock

    def set_receive_buffer(self, size: int) -> None:
        """Choose the kernel's receive buffer instead of letting it choose."""
        if self._sock is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def send(self, data: bytes) -> None:
        """Send a whole request."""
        assert self._transport is not None
        self._transport.write(data)

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - we know better what is still to come
        """asyncio's: where the next bytes go."""
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: so many bytes have come."""
        self._end += nbytes
        if self._end - self._start >= self._needed:
            self._take_frames()
        if not self.closed:
            self._prepare()

    def data_received(self, data: bytes) -> None:
        """The same for a transport that brings its own bytes."""
        while data and not self.closed:
            room = self.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)

    def _take_frames(self) -> None:
        view = self._view
        while True:
            present = self._end - self._start
            if present < 4:
                self._needed = 4
                return
            size = _SIZE.unpack_from(view, self._start)[0]
            if not 4 <= size <= FRAME_BYTES_MAX:
                self.close(f"an answer of {size} bytes cannot be one")
                return
            self._needed = 4 + size
            if present < self._needed:
                return
            begin = self._start + 4
            self._start = begin + size
            self._on_frame(view[begin : self._start])
            if self.closed:
                return

    def _prepare(self) -> None:
        """Put what is left at the front when nothing borrows the buffer, and let the kernel gather large answers."""
        present = self._end - self._start
        if not present:
            self._start = self._end = 0
            self._needed = 4
            if len(self._buffer) > BUFFER_IDLE_BYTES_MAX and self._low_water == 0:
                self._replace(BUFFER_BYTES, 0)
        missing = self._needed - present
        room = len(self._buffer) - self._end
        wanted = min(missing, room, LOW_WATER_BYTES_MAX) if missing >= LOW_WATER_BYTES_MIN else 0
        if wanted < LOW_WATER_BYTES_MIN:
            wanted = 0
        if wanted != self._low_water and self._sock is not None:
            self._low_water = wanted
            gather(self._sock, wanted or 1)

    def _make_room(self) -> None:
        """The buffer is full: move what is left to the front, into one twice as large when it is most of it."""
        present = self._end - self._start
        size = len(self._buffer)
        self._replace(size * 2 if present * 2 > size else size, present)

    def _replace(self, size: int, present: int) -> None:
        fresh = bytearray(size)
        fresh[:present] = self._view[self._start : self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)
        self._start, self._end = 0, present

    # The end

    def eof_received(self) -> None:
        """asyncio's: the other side sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the connection is gone."""
        self._lost(str(exc) if exc is not None else "the other side closed it")

    def close(self, reason: str = "closed") -> None:
        """Give the connection up."""
        if self._transport is not None:
            self._transport.abort()
        self._lost(reason)

    def _lost(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._on_lost(reason)
