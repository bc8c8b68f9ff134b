"""The one framer: a stream of bytes cut into frames, four bytes of size and then that many bytes.

Brokers, peers and clients receive through one of two buffers. `BorrowedFrames` hands out positions in its own memory,
for an owner that is done with a frame before it reads again; `OwnedFrames` hands out memory that may be kept. Both are
pure: the owner reads into `free_space` and reports how many bytes came. Both promise that it is never empty, since a
read into nothing looks like the end of the connection; that frames come out as they went in, however the stream was
cut; and that memory grows with the bytes that really came, never with a size that a peer declared.
"""

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from klamm.model.errors import RemoteProtocolError

PREFIX_BYTES = 4
"""The size in front of a frame, which does not count itself."""

BUFFER_BYTES = 32 * 1024
"""A new buffer."""

BUFFER_BUSY_BYTES = 128 * 1024
"""A buffer that a read filled doubles up to this size: more frames per read, fewer moved in pieces."""

LARGE_BYTES = 64 * 1024
"""A frame that lacks this much is read to its end and no further, so that the next one begins at the front."""

LOW_WATER_BYTES_MAX = 1024 * 1024
"""While a large frame is on its way the kernel wakes the reader per this many bytes rather than per segment."""

_SIZE = struct.Struct(">i")
_SMALL_BYTES = 64 * 1024
"""Owned frames up to this size are received together and copied out; a larger one gets memory of its own."""
# Memory follows the bytes: a peer must have sent an eighth of what is allocated for its frame.
_GROWTH = 8


encode_prefix: Final = _SIZE.pack
"""The prefix of a frame of that size, for an owner that sends the parts of a frame without joining them."""

encode_response_start: Final = struct.Struct(">ii").pack
"""The prefix and the correlation id of a response; the size counts the correlation id, but not itself."""


def encode_frame(parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """One frame made of `parts`, which are copied once."""
    return b"".join((_SIZE.pack(sum(map(len, parts))), *parts))


def describe_size(size: int, size_min: int, size_max: int) -> str:
    """The refusal of a frame whose declared size is out of bounds."""
    if size > size_max:
        return f"a frame of {size} bytes is larger than the limit of {size_max}"
    return f"a frame of {size} bytes is smaller than the least of {size_min}"


class BorrowedFrames:
    """Frames that lie in `view` unchanged until the next `free_space`; another buffer takes its place when it grows.

        frames.add(sock.recv_into(frames.free_space()))
        for start, end in frames.take_frames():
            handle(frames.view, start, end)

    An owner that stops in the middle puts the rest back (`put_back`) and takes it later.
    """

    __slots__ = ("_end", "_frame_max", "_frame_min", "_large", "_start", "_stop", "lacking", "problem", "view")

    def __init__(self, frame_bytes_min: int, frame_bytes_max: int) -> None:
        self._frame_min = frame_bytes_min
        self._frame_max = frame_bytes_max
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self._start = 0  # of the bytes that no frame was taken from yet
        self._end = 0  # of the bytes that came
        self._stop = BUFFER_BYTES  # of the next read into an empty buffer
        self._large = 0  # bytes of the large frame that is on its way, or was the last to come
        self.lacking = 0
        """Bytes still to come of a frame whose size is known; 0 when none is on its way."""
        self.problem = ""
        """Why the bytes that follow are no frame."""

    def limit(self, frame_bytes_min: int, frame_bytes_max: int) -> None:
        """Change the bounds for the frames that are taken from now on."""
        self._frame_min = frame_bytes_min
        self._frame_max = frame_bytes_max

    @property
    def pending(self) -> int:
        """Bytes that came and belong to no frame taken yet."""
        return self._end - self._start

    @property
    def low_water(self) -> int:
        """Bytes worth waiting for, no more than will fit; 0 for any."""
        if self.lacking < LARGE_BYTES:
            return 0
        pending, capacity = self._end - self._start, len(self.view)
        free = (2 * capacity if 2 * pending > capacity else capacity) - pending
        # The kernel must not wait for more than fits the buffer, or it would never wake the reader.
        size = min(self.lacking, free, LOW_WATER_BYTES_MAX)
        return size if size >= LARGE_BYTES else 0

    def add(self, count: int) -> None:
        """Take `count` bytes that were put into the free space."""
        self._end += count

    def take_frames(self) -> list[tuple[int, int]]:
        """Where in `view` every whole frame begins and ends, without its size.

        A size that no frame can have ends the stream: `problem` has the reason, and nothing more can be taken.
        """
        view, start, end = self.view, self._start, self._end
        frames: list[tuple[int, int]] = []
        self.lacking = 0
        # This loop runs for every request of a broker, so the size of the prefix is a literal.
        while end - start >= 4:
            size: int = _SIZE.unpack_from(view, start)[0]
            if size < self._frame_min or size > self._frame_max:
                self.problem = describe_size(size, self._frame_min, self._frame_max)
                break
            stop = start + 4 + size
            if stop > end:
                self.lacking = stop - end
                break
            frames.append((start + 4, stop))
            start = stop
        self._start = start
        return frames

    def count_frames(self) -> int:
        """Return how many whole frames could be taken."""
        count, start = 0, self._start
        while self._end - start >= PREFIX_BYTES:
            size: int = _SIZE.unpack_from(self.view, start)[0]
            start += PREFIX_BYTES + size
            # A size that no frame can have ends the stream, as for `take_frames`.
            if start > self._end or not self._frame_min <= size <= self._frame_max:
                break
            count += 1
        return count

    def put_back(self, end: int) -> None:
        """Of the frames last taken, those behind the one that ends at `end` were not handled."""
        self._start = end
        self.lacking = 0
        self.problem = ""

    def free_space(self) -> memoryview:
        """Where the next bytes go, never empty; frames handed out before stop being valid.

        Call it when every frame was taken: those that were not are kept, and cost a larger buffer.
        """
        capacity = len(self.view)
        if self._start == self._end:
            if self._large:
                # After a large frame the next is likely as large: read to its end, and none has to be moved.
                self._stop, self._large = min(self._large, capacity), 0
            elif self._end == capacity:
                if capacity < BUFFER_BUSY_BYTES:
                    self._move(2 * capacity)
                self._stop = len(self.view)
            self._start = self._end = 0
            return self.view[: self._stop]
        return self._space_behind_frame(capacity)

    def _space_behind_frame(self, capacity: int) -> memoryview:
        """The space behind the beginning of a frame."""
        present = self._end - self._start
        needed = PREFIX_BYTES
        if present >= PREFIX_BYTES:
            needed += _SIZE.unpack_from(self.view, self._start)[0]
        if self._start + needed > capacity or self._end == capacity:
            # `needed` is what the peer declares: the buffer doubles only when half of it is filled.
            crowded = needed > capacity and present * 2 > capacity
            filled = self._end == capacity < BUFFER_BUSY_BYTES
            self._move(2 * capacity if crowded or filled or present == capacity else capacity)
            capacity = len(self.view)
        self._stop = capacity
        if needed - present >= LARGE_BYTES:
            self._large = needed
            return self.view[self._end : min(self._start + needed, capacity)]
        return self.view[self._end :]

    def _move(self, capacity: int) -> None:
        """Put the bytes that are left at the front, of a larger buffer if need be."""
        present = self._end - self._start
        rest = self.view[self._start : self._end]
        if capacity != len(self.view):
            self.view = memoryview(bytearray(capacity))
        self.view[:present] = rest
        self._start, self._end = 0, present

    def shrink(self, capacity_max: int) -> None:
        """Give a buffer larger than that back if nothing is in it."""
        if self._start == self._end and len(self.view) > capacity_max:
            self.view = memoryview(bytearray(BUFFER_BYTES))
            self._start = self._end = self._large = 0
            self._stop = BUFFER_BYTES


class FrameBufferPool(Protocol):
    """Keeps buffers to use again, since fresh memory costs more than the bytes put into it."""

    def take(self, size: int) -> bytearray | None:
        """A buffer of at least `size` bytes that is in use nowhere, or None."""

    def give(self, buffer: bytearray) -> None:
        """Offer a buffer for later use; views of it may still exist."""


class OwnedFrames:
    """Frames that may be kept: a small one is copied, a large one is handed over with the memory it was received into.

        count = sock.recv_into(frames.free_space())
        for frame in frames.receive(count):
            handle(frame)

    A size out of bounds is RemoteProtocolError, after which the stream has no more frames.
    """

    __slots__ = (
        "_end",
        "_frame_max",
        "_frame_min",
        "_large",
        "_large_end",
        "_large_size",
        "_large_view",
        "_pool",
        "_small",
        "_small_view",
    )

    def __init__(self, frame_bytes_min: int, frame_bytes_max: int, pool: FrameBufferPool | None = None) -> None:
        self._frame_min = frame_bytes_min
        self._frame_max = frame_bytes_max
        self._pool = pool
        self._small = bytearray(_SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._end = 0
        self._large: bytearray | None = None
        self._large_view = memoryview(b"")
        self._large_end = 0
        self._large_size = 0

    @property
    def lacking(self) -> int:
        """Bytes still to come of a large frame, 0 when none is on its way."""
        return 0 if self._large is None else self._large_size - self._large_end

    def free_space(self) -> memoryview:
        """Where the next bytes go, never empty."""
        if self._large is None:
            return self._small_view[self._end :]
        if self._large_end == len(self._large):
            self._grow(min(self._large_size, _GROWTH * len(self._large)))
        # A buffer from the pool may be larger: bytes behind this frame belong to the next and must not land here.
        return self._large_view[self._large_end : self._large_size]

    def receive(self, count: int) -> list[memoryview]:
        """Take `count` bytes that were put into the free space; the frames that are whole now, without their size."""
        if self._large is not None:
            return self._receive_large(count)
        self._end += count
        frames: list[memoryview] = []
        start, end = 0, self._end
        while end - start >= PREFIX_BYTES:
            size: int = _SIZE.unpack_from(self._small, start)[0]
            if size < self._frame_min or size > self._frame_max:
                raise RemoteProtocolError(describe_size(size, self._frame_min, self._frame_max))
            stop = start + PREFIX_BYTES + size
            if stop > end:
                # It can never become whole in the small buffer.
                if stop - start > _SMALL_BYTES:
                    self._begin_large(size, start + PREFIX_BYTES, end)
                    start = end
                break
            frames.append(memoryview(bytes(self._small_view[start + PREFIX_BYTES : stop])))
            start = stop
        if start:
            held = end - start
            if held:
                self._small[:held] = self._small[start:end]
            self._end = held
        return frames

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """The same for bytes that lie elsewhere: copy them into the free space, as often as it takes."""
        rest, frames = memoryview(data), []
        while rest:
            space = self.free_space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            frames += self.receive(count)
            rest = rest[count:]
        return frames

    def _receive_large(self, count: int) -> list[memoryview]:
        assert self._large is not None
        self._large_end += count
        if self._large_end < self._large_size:
            return []
        frame = self._large_view[: self._large_size]
        if self._pool is not None:
            # The frame handed out below keeps a view: the pool reuses the buffer when that view is gone.
            self._pool.give(self._large)
        self._large, self._large_view = None, memoryview(b"")
        return [frame]

    def _begin_large(self, size: int, start: int, end: int) -> None:
        """Move the beginning of a large frame to memory of its own, not yet as large as the frame claims to be."""
        held = end - start
        reused = self._pool.take(size) if self._pool is not None else None
        self._large = reused or bytearray(min(size, max(_GROWTH * held, 4 * _SMALL_BYTES)))
        self._large_view = memoryview(self._large)
        self._large_view[:held] = self._small_view[start:end]
        self._large_end, self._large_size = held, size

    def _grow(self, size: int) -> None:
        grown = bytearray(size)
        view = memoryview(grown)
        view[: self._large_end] = self._large_view[: self._large_end]
        self._large, self._large_view = grown, view
