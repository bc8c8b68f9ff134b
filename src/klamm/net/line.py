"""One connection to another node for a steady stream of large answers, read where they arrive.

A `Peer` makes a future and a copy per request; a follower that copies a partition's log needs neither. A line receives
into one buffer of its own, and calls `on_frame` with each whole answer as soon as it is there. The bytes are borrowed
until that call returns.
"""

import asyncio
import socket
from collections.abc import Callable

from klamm.net.sockets import set_receive_low_water
from klamm.protocol.framing import BorrowedFrames

BUFFER_IDLE_BYTES_MAX = 1024 * 1024
"""A larger buffer is freed once it is empty and answers are small again."""
FRAME_BYTES_MIN = 4
FRAME_BYTES_MAX = 256 << 20

OnFrame = Callable[[memoryview], None]


class Line(asyncio.BufferedProtocol):
    """Bytes in, frames to `on_frame`; `on_lost` is called once, when the connection is gone."""

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None
        self._received = BorrowedFrames(FRAME_BYTES_MIN, FRAME_BYTES_MAX)
        self._low_water = 0
        self._is_encrypted = False
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the connection is established."""
        self._transport = transport  # type: ignore[assignment]
        # The simulation's transport has no socket to set options of.
        sock = transport.get_extra_info("socket")
        if hasattr(sock, "setsockopt"):
            self._sock = sock
            # Over TLS the kernel counts encrypted bytes, some of which asyncio has read: it could wait for ever.
            self._is_encrypted = transport.get_extra_info("ssl_object") is not None

    def set_receive_buffer(self, size: int) -> None:
        """Set the size of the kernel's receive buffer, which ends its automatic tuning."""
        if self._sock is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def send(self, data: bytes) -> None:
        """Send a whole request."""
        assert self._transport is not None
        self._transport.write(data)

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame on its way decides
        """asyncio's: where the next bytes go."""
        return self._received.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's: so many bytes have come."""
        received = self._received
        received.add(nbytes)
        view = received.view
        for start, end in received.take_frames():
            self._on_frame(view[start:end])
            # Frames of a connection that was given up must not be applied: their requests are repeated elsewhere.
            if self.closed:
                return
        if received.problem:
            self.close(received.problem)
        else:
            self._set_low_water()

    def data_received(self, data: bytes) -> None:
        """The same for a transport that brings its own bytes."""
        while data and not self.closed:
            buffer = self.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)

    def _set_low_water(self) -> None:
        """Let the kernel collect large answers, and free a large buffer when answers are small again."""
        size = self._received.low_water
        # Twice in a row without a large answer: a stream of them keeps its buffer.
        if not size and not self._low_water:
            self._received.shrink(BUFFER_IDLE_BYTES_MAX)
        if size != self._low_water and self._sock is not None and not self._is_encrypted:
            self._low_water = size
            set_receive_low_water(self._sock, size or 1)

    # The end

    def eof_received(self) -> None:
        """asyncio's: the other side sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the connection is gone."""
        self._report_lost(str(exc) if exc is not None else "the other side closed it")

    def close(self, reason: str = "closed") -> None:
        """Close the connection."""
        if self._transport is not None:
            # Not `close`, which first sends what is queued: the other side may be the reason that nothing moves.
            self._transport.abort()
        self._report_lost(reason)

    def _report_lost(self, reason: str) -> None:
        # Once: asyncio calls `connection_lost` after an abort, too.
        if not self.closed:
            self.closed = True
            self._on_lost(reason)
