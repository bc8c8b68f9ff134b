"""A callback on the event loop, in its next iteration or at a time; scheduling it twice runs it once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopTimer:
    """Calls `callback` in the loop's next iteration or at the earliest time scheduled. Only on the loop's thread."""

    __slots__ = ("_callback", "_loop", "_soon", "_stopped", "_timer")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._soon = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def soon(self) -> None:
        """Call back in the next iteration."""
        if not self._soon and not self._stopped:
            self._soon = True
            self._loop.call_soon(self._run)

    def at(self, when: float) -> None:
        """Call back at a time of the loop's clock, or earlier."""
        if self._stopped:
            return
        if self._timer is not None:
            # The earlier call wins; the callback asks for a later one itself if it is still needed.
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._expire)

    def stop(self) -> None:
        """Never call back again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        # Not called back at once: what is due in the same iteration is collected into one call.
        self._timer = None
        self.soon()

    def _run(self) -> None:
        self._soon = False
        if not self._stopped:
            self._callback()
