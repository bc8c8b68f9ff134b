"""Large buffers that were used and may be used again: fresh memory costs more than the bytes put into it. Pure."""

from __future__ import annotations


class Spares:
    """Remembers a few buffers; those that somebody still looks at are left alone."""

    __slots__ = ("_buffers", "_most")

    def __init__(self, most: int) -> None:
        self._buffers: list[bytearray] = []
        self._most = most

    def give(self, buffer: bytearray) -> None:
        """Remember a buffer; of too many, the smallest is forgotten."""
        self._buffers.append(buffer)
        if len(self._buffers) > self._most:
            self._buffers.remove(min(self._buffers, key=len))

    def take(self, size: int = 0) -> bytearray | None:
        """A buffer of at least `size` bytes that nobody looks at, the one used last if it may be; None for none."""
        for index in range(len(self._buffers) - 1, -1, -1):
            buffer = self._buffers[index]
            if len(buffer) >= size and _free(buffer):
                return self._buffers.pop(index)
        return None


def _free(buffer: bytearray) -> bool:
    """Whether no view of it is left: a bytearray refuses to change its size while there is one."""
    try:
        last = buffer.pop()
    except (BufferError, IndexError):  # an empty one is of no use
        return False
    buffer.append(last)  # into the room that the other just left: nothing is moved
    return True
