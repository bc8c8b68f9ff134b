"""A turn of the event loop, so that what many sockets brought is written and answered together.

Every socket that is ready is read and its frames are handled; then, once, the turn ends: what was staged is committed
(the `commit` hook), and each connection that has replies sends them in one go. A connection that has handled frames
since the last commit is not read again before the next one, so bytes that a handler borrowed from a receive buffer
stay untouched until the turn has committed them.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from klamm.net.poller import Poller


class Flushable(Protocol):
    """Something that sends what it has gathered when the turn ends."""

    def flush(self) -> None:
        """Send what is queued."""

    def close(self, reason: str) -> None:
        """Send nothing more."""


class LoopTurn:
    """Gathers the connections with replies and ends the turn once; not safe across threads."""

    __slots__ = ("_commit", "_committing", "_dirty", "_loop", "_on_failure", "_poller", "number", "scheduled")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        commit: Callable[[], None] | None = None,
        poller: Poller | None = None,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._commit = commit or _commit_nothing
        self._on_failure: Callable[[BaseException], None] = _raise
        self._dirty: list[Flushable] = []
        self._committing = False
        self.scheduled = False
        self.number = 0
        """How many turns have committed."""

    def on_commit(self, commit: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        """Set what must be done before any reply of a turn leaves, and what is called when it fails."""
        self._commit = commit
        self._on_failure = on_failure

    def mark(self, channel: Flushable) -> None:
        """Have `channel` flushed at the end of this turn."""
        # Each channel once a turn: it marks itself only while its `dirty` is not set.
        self._dirty.append(channel)
        if not self.scheduled and not self._committing:  # a reply made ready by the commit leaves right behind it
            self.schedule()

    def schedule(self) -> None:
        """End the turn even if nothing is to be sent, because something was staged."""
        if not self.scheduled:
            self.scheduled = True
            # While the poller calls connections it ends the turn itself, right behind the last of them.
            if self._poller is None or not self._poller.dispatching:
                self._loop.call_soon(self.end)

    def end(self) -> None:
        """Commit, then send; nothing happens when the turn has ended already."""
        if not self.scheduled:
            return
        # Cleared before the commit: what its callbacks stage needs a turn of its own.
        self.scheduled = False
        self._committing = True
        try:
            self._commit()
        except Exception as error:  # noqa: BLE001 - after any failure the replies of this turn would be untrue
            dirty, self._dirty = self._dirty, []
            for channel in dirty:
                channel.close("commit failed")
            self._on_failure(error)
            return
        finally:
            self._committing = False
            self.number += 1
        dirty, self._dirty = self._dirty, []
        for channel in dirty:
            channel.flush()


def _commit_nothing() -> None:
    """The hook until `on_commit` sets one."""


def _raise(error: BaseException) -> None:
    raise error
