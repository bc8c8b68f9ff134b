"""Deadlines by name: ten thousand sessions need one timer of the loop, and a heartbeat costs one dictionary write."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

# With fewer cancelled entries than this a rebuild costs more than it frees.
_STALE_MAX = 64


class Deadlines:
    """Set, move and cancel deadlines; take those that have passed.

    A deadline that moves later leaves its place in the heap and is put right when that place comes up.
    """

    __slots__ = ("_at", "_heap", "_sequence")

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._at

    def set(self, key: Hashable, deadline_ms: int | None) -> None:
        """Move `key` to a deadline, or cancel it with None."""
        if deadline_ms is None:
            self._at.pop(key, None)
            # Cancelled keys stay in the heap until they come up; rebuilding bounds what they occupy.
            if len(self._heap) > 2 * len(self._at) + _STALE_MAX:
                self._rebuild()
            return
        known = self._at.get(key)
        self._at[key] = deadline_ms
        # A later deadline needs no new entry: the old one comes up first and is then pushed again.
        if known is None or deadline_ms < known:
            self._push(deadline_ms, key)

    def _push(self, deadline_ms: int, key: Hashable) -> None:
        # Keys need not be comparable: the sequence decides between equal deadlines, the one set first wins.
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, key))

    def _rebuild(self) -> None:
        self._heap = [(deadline, i, key) for i, (key, deadline) in enumerate(self._at.items())]
        self._sequence = len(self._heap)
        heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When to call `due` next: not later than the first deadline."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Hashable]:
        """Remove and return the keys whose deadline has passed, earliest first."""
        due: list[Hashable] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, _, key = heappop(heap)
            deadline = self._at.get(key)
            # Cancelled, or moved earlier: then the later entry is left over after the earlier one has fired.
            if deadline is None:
                continue
            if deadline <= now_ms:
                del self._at[key]
                due.append(key)
            else:
                self._push(deadline, key)
        return due
