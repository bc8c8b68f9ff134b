"""Batches that are too much for the loop's thread to look at, and the Produce requests that wait for them.

Unpacking a megabyte takes milliseconds, a bomb takes much longer. So packed batches beyond a few kilobytes are looked
at in threads, and a request is staged when all of its batches have been. Requests of one connection are staged in the
order they came, whichever of them had to wait: an idempotent producer's sequence numbers count on it. A connection has
one request in the threads at a time, so many bombs of one client are one bomb to the others.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView
from klamm.storage.batch_validation import validate
from klamm.storage.config import LogConfig
from klamm.storage.producer_state import Origin
from klamm.storage.thread_pools import Threads
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import asyncio

    from klamm.net import Channel

log = get_logger("records")

_T = TypeVar("_T")

THREADS = 2
CONNECTION_BYTES_MAX = 4 * 1024 * 1024
"""A connection whose waiting requests hold this much is not read before some of them are staged."""
TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""The same for all connections together: past it, each may have one request waiting."""

Validated = Mapping[int, BatchView | KlammError]
"""What became of batches, by the `id` of their part of the request: what is to be staged, or why it must not be."""


class BatchToCheck(NamedTuple):
    """A batch and all that `validate` asks about it."""

    part_id: int
    data: memoryview
    config: LogConfig
    now_ms: int
    name: str

    def check(self, *, inline: bool) -> BatchView:
        """The batch as it may be staged."""
        return validate(self.data, self.config, self.now_ms, Origin.CLIENT, self.name, inline=inline)


@dataclass(slots=True)
class WaitingProduce:
    """A request whose batches are being looked at, or that came behind one."""

    size: int
    find_batches: Callable[[], list[BatchToCheck]]
    """What must be looked at in a thread; asked when its turn has come."""
    stage: Callable[[Validated], None]


@dataclass(slots=True)
class ProduceQueue:
    """The requests of one connection that wait; in the order they came."""

    requests: deque[WaitingProduce] = field(default_factory=deque)
    size: int = 0


class RecordChecks:
    """The threads, and how much waits for them."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", threads: Threads) -> None:
        self._loop = loop
        self._make_threads = threads
        self._threads: Executor | None = None
        self.waiting_bytes = 0
        self._stopped = False
        self._staging: set[asyncio.Task[None]] = set()

    def add(self, channel: "Channel", queue: ProduceQueue, request: WaitingProduce) -> None:
        """Have a request staged after those before it, once its batches have been looked at."""
        queue.requests.append(request)
        queue.size += request.size
        self.waiting_bytes += request.size
        if len(queue.requests) == 1:
            self._begin(channel, queue)
        if queue.requests and (queue.size >= CONNECTION_BYTES_MAX or self.waiting_bytes >= TOTAL_BYTES_MAX):
            channel.pause_reading()

    def run(self, work: Callable[[], _T]) -> "asyncio.Future[_T]":
        """Do other work on records in one of the threads."""
        return self._loop.run_in_executor(self._pool(), work)

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Stage the rest of a request of many partitions, in later turns."""
        task = self._loop.create_task(work)
        self._staging.add(task)
        task.add_done_callback(self._staging.discard)

    def _pool(self) -> Executor:
        if self._threads is None:
            self._threads = self._make_threads(THREADS, "klamm-records")
        return self._threads

    def stop(self) -> None:
        """Start nothing more; what is under way ends by itself."""
        self._stopped = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, channel: "Channel", queue: ProduceQueue) -> None:
        """Go on with the first request that waits; those that need no thread are staged at once."""
        while queue.requests and not self._stopped:
            batches = queue.requests[0].find_batches()
            if batches:
                work = self._pool().submit(check_batches, batches)
                work.add_done_callback(_Report(self, channel, queue))
                return
            self._stage_first(channel, queue, {})

    def on_checked(self, channel: "Channel", queue: ProduceQueue, work: "Future[Validated]") -> None:
        """The batches of a connection's first request have been looked at."""
        if self._stopped or work.cancelled():
            return
        self._stage_first(channel, queue, work.result())
        self._begin(channel, queue)
        if not channel.closed:
            channel.resume_reading()

    def _stage_first(self, channel: "Channel", queue: ProduceQueue, validated: Validated) -> None:
        request = queue.requests.popleft()
        queue.size -= request.size
        self.waiting_bytes -= request.size
        try:
            request.stage(validated)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not keep those behind it waiting
            log.failure("a checked request could not be staged", error, peer=channel.peer_address)
            channel.close("its request failed")

    def call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """From any thread; a loop that is gone wants nothing any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Report:
    """Takes the end of work in a thread to the loop."""

    __slots__ = ("_channel", "_checks", "_queue")

    def __init__(self, checks: RecordChecks, channel: "Channel", queue: ProduceQueue) -> None:
        self._checks, self._channel, self._queue = checks, channel, queue

    def __call__(self, work: "Future[Validated]") -> None:
        self._checks.call_on_loop(self._checks.on_checked, self._channel, self._queue, work)


def check_batches(batches: list[BatchToCheck]) -> Validated:
    """Look at batches one after the other; runs in a thread."""
    validated: dict[int, BatchView | KlammError] = {}
    for batch in batches:
        try:
            validated[batch.part_id] = batch.check(inline=False)
        except KlammError as error:
            validated[batch.part_id] = error
        except Exception as error:  # noqa: BLE001 - the producer gets an answer, and the next batch its look
            log.failure("a batch could not be checked", error, partition=batch.name)
            validated[batch.part_id] = KlammError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return validated
