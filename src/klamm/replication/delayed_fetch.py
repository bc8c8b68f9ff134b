"""A Fetch that waits until its partitions have enough bytes (Kafka's fetch purgatory).

It reads again whenever one of them has changed; a wake-up may be too early and is cheap.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.replication.replica import Replica


class DelayedFetch:
    """A Fetch that found too little and waits on its partitions until there is more, or max_wait_ms has passed.

    `attempt(force)` reads again and replies if there is enough or `force` is set; True when it has replied.
    """

    __slots__ = ("_attempt", "_replicas", "_timer", "done")

    def __init__(self, attempt: Callable[[bool], bool], replicas: list["Replica"]) -> None:
        self._attempt = attempt
        self._replicas = replicas
        self._timer: asyncio.TimerHandle | None = None
        self.done = False

    def start(self, loop: asyncio.AbstractEventLoop, max_wait_ms: int) -> None:
        """Begin to wait."""
        for replica in self._replicas:
            replica.delayed_fetches[self] = None
        self._timer = loop.call_later(max_wait_ms / 1000, self._expire)

    def try_complete(self) -> None:
        """Read again: one of the partitions has changed."""
        # A turn collects delayed fetches first and completes them later: a connection may have been closed in between.
        if not self.done and self._attempt(False):
            self.cancel()

    def _expire(self) -> None:
        if not self.done:
            self._attempt(True)
            self.cancel()

    def cancel(self) -> None:
        """Stop waiting, without a reply."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        for replica in self._replicas:
            replica.delayed_fetches.pop(self, None)
