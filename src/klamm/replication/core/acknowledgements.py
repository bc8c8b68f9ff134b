"""The replies that wait on one replica until its log has their records: written, or committed as well.

Pure. A reply joins one of two queues when its records are staged, and names the offset it needs. Replies leave a queue
in the order in which they joined it, each completed exactly once: by `succeed` when the log or the high watermark has
reached the offset, by `fail` when it never will, or not in time. The form of a reply and its connection belong to the
caller.
"""

from collections import deque
from typing import Protocol, TypeVar

from klamm.model.errors import ErrorCode

NEVER_MS = 1 << 62
"""The deadline of a reply that does not expire."""


class PendingReply(Protocol):
    """The reply to an append, or to several of one turn, that must not leave before their records are safe."""

    required_offset: int
    """The offset after its records: where the log, or the high watermark, must be."""

    def succeed(self) -> None:
        """Send success: the records are written or committed, whichever was waited for."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Send an error: they are not, or it is not known whether they are."""


class ExpiringReply(PendingReply, Protocol):
    """A pending reply whose client waits only for so long."""

    deadline_ms: int
    """When it fails with REQUEST_TIMED_OUT, on the monotonic clock."""


_Reply = TypeVar("_Reply", bound=PendingReply)


class Acknowledgements:
    """The pending replies of one replica in two queues.

    With flush.messages "written" means synced: the caller reports an offset as written once the device has it.
    """

    __slots__ = ("until_committed", "until_written")

    def __init__(self) -> None:
        self.until_written: deque[PendingReply] = deque()
        """Replies to acks=0 and acks=1. On the quick path also to acks=all while this replica is alone in the ISR."""
        self.until_committed: deque[ExpiringReply] = deque()
        """Replies to acks=all that need the high watermark; off the quick path all of them."""

    def __len__(self) -> int:
        return len(self.until_written) + len(self.until_committed)

    def on_written(self, offset: int) -> None:
        """Complete the replies that need the log up to `offset`."""
        waiting = self.until_written
        # `succeed` may add replies; they need offsets beyond this one, so the loop ends before them.
        while waiting and waiting[0].required_offset <= offset:
            waiting.popleft().succeed()

    def on_committed(self, high_watermark: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """Complete the replies that need the high watermark up to here; with `error` if too few were in sync for it."""
        waiting = self.until_committed
        if error:
            while waiting and waiting[0].required_offset <= high_watermark:
                waiting.popleft().fail(error)
            return
        while waiting and waiting[0].required_offset <= high_watermark:
            waiting.popleft().succeed()

    def take_above(self, offset: int) -> list[PendingReply]:
        """Remove and return the replies that need more than `offset`, for the caller to complete."""
        return [*_take_above(self.until_written, offset), *_take_above(self.until_committed, offset)]

    def fail_above(self, offset: int, error: ErrorCode, message: str | None = None) -> None:
        """Fail the replies that need more than `offset`, beyond which the log is lost."""
        for reply in self.take_above(offset):
            reply.fail(error, message)

    def fail_uncommitted(self, error: ErrorCode) -> None:
        """Fail the replies that need the high watermark: it will not move for them."""
        waiting = list(self.until_committed)
        # Cleared first: the callback of a failed reply may register another one.
        self.until_committed.clear()
        for reply in waiting:
            reply.fail(error)

    def fail_all(self, error: ErrorCode) -> None:
        """Fail every reply: this node leads the partition no longer."""
        waiting = list(self.until_written)
        self.until_written.clear()
        for reply in waiting:
            reply.fail(error)
        self.fail_uncommitted(error)

    def expire(self, now_ms: int) -> None:
        """Fail the replies whose deadline has passed; their records stay in the log."""
        waiting = self.until_committed
        # All of them are compared: every client has its own timeout, so deadlines are not in the order of offsets.
        due = [reply for reply in waiting if reply.deadline_ms <= now_ms]
        if not due:
            return
        kept = [reply for reply in waiting if reply.deadline_ms > now_ms]
        waiting.clear()
        waiting.extend(kept)
        for reply in due:
            reply.fail(ErrorCode.REQUEST_TIMED_OUT)


def _take_above(waiting: deque[_Reply], offset: int) -> list[_Reply]:
    """Remove and return the replies of a queue that need more than `offset`."""
    # Not from the end backwards: a reply for several appends has grown its offset past those of its neighbours.
    lost = [reply for reply in waiting if reply.required_offset > offset]
    if lost:
        kept = [reply for reply in waiting if reply.required_offset <= offset]
        waiting.clear()
        waiting.extend(kept)
    return lost
