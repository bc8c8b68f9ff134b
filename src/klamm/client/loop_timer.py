"""One thing to be done on the loop, soon or at a time; asking for it again before it was done changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` in the loop's next turn or at the earliest time asked for. Only on the loop's thread."""

    __slots__ = ("_loop", "_ring", "_soon", "_stopped", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._soon = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stopped(self) -> bool:
        """Whether it rings no more."""
        return self._stopped

    def soon(self) -> None:
        """Ring in the next turn."""
        if not self._soon and not self._stopped:
            self._soon = True
            self._loop.call_soon(self._now)

    def at(self, when: float) -> None:
        """Ring at a time of the loop's clock, or earlier."""
        if self._stopped:
            return
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._timed)

    def stop(self) -> None:
        """Never ring again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _timed(self) -> None:
        self._timer = None
        self.soon()

    def _now(self) -> None:
        self._soon = False
        if not self._stopped:
            self._ring()
