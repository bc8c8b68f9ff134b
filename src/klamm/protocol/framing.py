"""Where a connection's bytes arrive and are cut into frames: four bytes of size, then that many bytes.

Pure: it knows no socket. Its owner reads into `room`, says how many bytes came, and handles the frames that are whole:

    buffer.add(sock.recv_into(buffer.room()))
    for start, end in buffer.take_frames():
        handle(buffer.view, start, end)

An owner that stops in the middle puts the rest back (`put_back`) and takes it later. Promises: `room` is never empty,
since a read into nothing looks like the end of the connection; frames come out as they came in; a frame lies in `view`
unchanged until the next `room`; memory grows with the bytes that really came, never with a size that a peer declared.
"""

import struct

BUFFER_BYTES = 32 * 1024
"""A new buffer."""

BUFFER_BUSY_BYTES = 128 * 1024
"""A buffer that a read filled doubles up to this size: more frames per read, fewer moved in pieces."""

LARGE_BYTES = 64 * 1024
"""A frame that lacks this much is read to its end and no further, so that the next one begins at the front."""

LOW_WATER_BYTES_MAX = 1024 * 1024
"""While a large frame is on its way the kernel wakes the reader per this many bytes rather than per segment."""

_SIZE = struct.Struct(">i")


class ReceiveBuffer:
    """Bytes in, frames out. `view` holds them; another buffer takes its place when it grows."""

    __slots__ = ("_end", "_frame_max", "_frame_min", "_large", "_start", "_stop", "complaint", "lacking", "view")

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
        self.complaint = ""
        """Why the bytes that follow are no frame."""

    @property
    def pending(self) -> int:
        """Bytes that came and belong to no frame taken yet."""
        return self._end - self._start

    @property
    def low_water(self) -> int:
        """Bytes worth waiting for, no more than there will be room for; 0 for any."""
        if self.lacking < LARGE_BYTES:
            return 0
        pending, capacity = self._end - self._start, len(self.view)
        room = (2 * capacity if 2 * pending > capacity else capacity) - pending
        size = min(self.lacking, room, LOW_WATER_BYTES_MAX)
        return size if size >= LARGE_BYTES else 0

    def add(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._end += count

    def take_frames(self) -> list[tuple[int, int]]:
        """Where in `view` every whole frame begins and ends, without its size.

        A size that no frame can have ends the stream: `complaint` says so, and nothing more can be taken.
        """
        view, start, end = self.view, self._start, self._end
        frames: list[tuple[int, int]] = []
        self.lacking = 0
        while end - start >= 4:
            size: int = _SIZE.unpack_from(view, start)[0]
            if size < self._frame_min or size > self._frame_max:
                self.complaint = self._size_complaint(size)
                break
            stop = start + 4 + size
            if stop > end:
                self.lacking = stop - end
                break
            frames.append((start + 4, stop))
            start = stop
        self._start = start
        return frames

    def put_back(self, end: int) -> None:
        """Of the frames last taken, those behind the one that ends at `end` were not handled."""
        self._start = end
        self.lacking = 0
        self.complaint = ""

    def room(self) -> memoryview:
        """Where the next bytes go, never empty; frames handed out before stop being valid.

        Ask for it when every frame was taken: those that were not are kept, and cost a larger buffer.
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
        return self._room_behind(capacity)

    def _room_behind(self, capacity: int) -> memoryview:
        """Room behind the beginning of a frame."""
        present = self._end - self._start
        needed = 4 + _SIZE.unpack_from(self.view, self._start)[0] if present >= 4 else 4
        if self._start + needed > capacity or self._end == capacity:
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

    def _size_complaint(self, size: int) -> str:
        if size > self._frame_max:
            return f"a frame of {size} bytes is larger than the limit of {self._frame_max}"
        return f"a frame of {size} bytes cannot be one"
