"""A turn of the event loop, so that what many sockets brought is written and answered together.

Every socket that is ready is read and its frames are handled; then, once, the turn ends: what was staged is written
(the `before_flush` hook), and each connection that has replies sends them in one go. A connection that has handled
frames in a turn is not read again before the turn ends, so bytes that a handler borrowed from a receive buffer stay
untouched until they are written.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from klamm.net.poller import Poller


class Flushable(Protocol):
    """Something that sends what it has queued when the turn ends."""

    def flush(self) -> None:
        """Send what is queued."""

    def close(self, reason: str) -> None:
        """Send nothing more."""


class LoopTurn:
    """Collects the connections with replies and ends the turn once; not safe across threads."""

    __slots__ = (
        "_before_flush",
        "_began_events",
        "_dirty",
        "_ending",
        "_loop",
        "_on_failure",
        "_poller",
        "began",
        "number",
        "scheduled",
        "wrote",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_flush: Callable[[], object] | None = None,
        poller: Poller | None = None,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._before_flush = before_flush or _do_nothing
        self._on_failure: Callable[[BaseException], None] = _raise
        self._dirty: list[Flushable] = []
        self._ending = False
        self.scheduled = False
        self.number = 0
        """How many turns have ended."""
        self.began = 0.0
        """The first time of a turn that is known, by the loop's clock."""
        self._began_events: object = None
        self.wrote: object = None
        """What the hook before the last flush returned: true if it wrote records."""

    def before_flush(self, hook: Callable[[], object], on_failure: Callable[[BaseException], None]) -> None:
        """Set what must be done before any reply of a turn leaves, and what is called when it fails."""
        self._before_flush = hook
        self._on_failure = on_failure

    def mark(self, channel: Flushable) -> None:
        """Have `channel` flushed at the end of this turn."""
        # Each channel once a turn: it marks itself only while its `dirty` is not set.
        self._dirty.append(channel)
        if not self.scheduled and not self._ending:  # a reply made ready by the hook is sent by the same `end`
            self.schedule()

    def note_began(self, now: float) -> float:
        """Note the time as the turn's first one, unless there is an earlier one; return it.

        The clock is not read in every turn: it is known from its start on if the turn is timed, else from the first
        request on that is timed.
        """
        # By the list of ready sockets: `number` counts turns that had something to write or send.
        events = self._poller.dispatching if self._poller is not None else None
        if events is None or events is not self._began_events:
            self._began_events = events
            self.began = now
        return self.began

    def schedule(self) -> None:
        """End the turn even if nothing is to be sent, because something was staged."""
        if not self.scheduled:
            self.scheduled = True
            # While the poller calls connections it ends the turn itself, right behind the last of them.
            if self._poller is None or not self._poller.dispatching:
                self._loop.call_soon(self.end)

    def end(self) -> None:
        """Write, then send; nothing happens when the turn has ended already."""
        if not self.scheduled:
            return
        # Cleared before the hook: what its callbacks stage needs a turn of its own.
        self.scheduled = False
        self._ending = True
        try:
            self.wrote = self._before_flush()
        except Exception as error:  # noqa: BLE001 - after any failure the replies of this turn would be untrue
            dirty, self._dirty = self._dirty, []
            for channel in dirty:
                channel.close("write at the end of the turn failed")
            self._on_failure(error)
            return
        finally:
            self._ending = False
            self.number += 1
        dirty, self._dirty = self._dirty, []
        for channel in dirty:
            channel.flush()


def _do_nothing() -> None:
    """The hook until `before_flush` sets one."""


def _raise(error: BaseException) -> None:
    raise error
