"""Large buffers kept for reuse: allocating fresh pages costs more than copying the bytes into them. Pure."""

from __future__ import annotations


class BufferPool:
    """Keeps a few buffers; one that still has a view is not returned by `take`."""

    __slots__ = ("_buffers", "_most")

    def __init__(self, most: int) -> None:
        self._buffers: list[bytearray] = []
        self._most = most

    def give(self, buffer: bytearray) -> None:
        """Keep a buffer; of too many, the smallest is dropped."""
        self._buffers.append(buffer)
        if len(self._buffers) > self._most:
            self._buffers.remove(min(self._buffers, key=len))

    def take(self, size: int = 0) -> bytearray | None:
        """Return a buffer of at least `size` bytes without views, the one used last if possible; None for none."""
        # The last one used is the likeliest to be in the CPU's caches.
        for index in range(len(self._buffers) - 1, -1, -1):
            buffer = self._buffers[index]
            if len(buffer) >= size and _is_free(buffer):
                return self._buffers.pop(index)
        return None


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left: a bytearray refuses to change its size while there is one."""
    try:
        last = buffer.pop()
    except (BufferError, IndexError):  # an empty buffer cannot be tested, and is of no use
        return False
    buffer.append(last)  # into the byte that pop() freed: nothing is moved
    return True
