"""Requests that wait: a Produce for its acknowledgement, a Fetch for enough bytes.

Each knows the one thing to do when its condition holds or its time is up, does it once, and is then forgotten
everywhere. Waking is cheap and may be too early: the waiter looks again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from klamm.model.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.replication.replica import Replica


class QuickAck(Protocol):
    """A reply to acks=all that is made and waits for the high watermark."""

    @property
    def required_offset(self) -> int:
        """The high watermark that releases it."""

    @property
    def deadline_ms(self) -> int:
        """When its client stops waiting, on the forward clock."""

    def send(self) -> None:
        """The records are committed."""

    def fail(self, error: ErrorCode) -> None:
        """They are not, or nobody knows."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """What a Produce staged on one replica, until it is written and, for acks=all, committed."""

    replica: "Replica"
    waiter: "AckWaiter"
    required_offset: int
    base_offset: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None

    def settle(self, error: ErrorCode = ErrorCode.NONE, message: str | None = None) -> None:
        """The fate of the append is known."""
        self.error = error
        self.message = message
        self.waiter.settled(self)


class AckWaiter:
    """A Produce that is answered when all it staged is acknowledged, or its timeout has passed.

    While it is `gathering` more may be added: it is not over before `start`, whatever is acknowledged until then.
    """

    __slots__ = ("_complete", "_done", "_gathering", "_open", "_timer", "acks_all")

    def __init__(self, complete: Callable[[], None], *, acks_all: bool, gathering: bool = False) -> None:
        self._complete = complete
        self._open: dict[PendingAppend, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._done = False
        self._gathering = gathering
        self.acks_all = acks_all

    def add(self, pending: PendingAppend) -> None:
        """Wait for this one too."""
        self._open[pending] = None

    def start(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        """Begin to wait, all appends being added; at once over when none is open."""
        self._gathering = False
        if not self._open:
            self._finish()
        elif self.acks_all:
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expire)

    def settled(self, pending: PendingAppend) -> None:
        """One append is decided."""
        self._open.pop(pending, None)
        if not self._open and not self._gathering:
            self._finish()

    def _expire(self) -> None:
        for pending in list(self._open):
            pending.replica.ack_waiters.pop(pending, None)
            pending.error = ErrorCode.REQUEST_TIMED_OUT
        self._open.clear()
        self._finish()

    def cancel(self) -> None:
        """Nobody waits for the answer any more; what was staged stays staged."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()

    def _finish(self) -> None:
        if not self._done:
            self.cancel()
            self._complete()


class FetchWaiter:
    """A Fetch that found too little and waits on its partitions until there is more, or max_wait_ms has passed.

    `attempt(force)` reads again and answers if there is enough or `force` is set; True when it has answered.
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
            replica.fetch_waiters[self] = None
        self._timer = loop.call_later(max_wait_ms / 1000, self._expire)

    def look_again(self) -> None:
        """Something changed on one of the partitions."""
        if not self.done and self._attempt(False):
            self.cancel()

    def _expire(self) -> None:
        if not self.done:
            self._attempt(True)
            self.cancel()

    def cancel(self) -> None:
        """Stop waiting; nothing is answered."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        for replica in self._replicas:
            replica.fetch_waiters.pop(self, None)
