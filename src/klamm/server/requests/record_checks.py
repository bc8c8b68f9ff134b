"""Validates compressed batches in threads, and holds the Produce requests that wait for it.

Decompressing a megabyte takes milliseconds, a decompression bomb much longer. So compressed batches beyond a few
kilobytes are validated in threads, and a request is staged when all of its batches are. Requests of one connection are
staged in the order they arrived, because an idempotent producer's sequence numbers depend on it. A connection has one
request in the threads at a time, so that one client's bombs do not delay all others.
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

# Few: they compete with the loop for cores.
THREADS = 2
CONNECTION_BYTES_MAX = 4 * 1024 * 1024
"""A connection whose waiting requests reach this size is not read until some of them are staged."""
TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""The same for all connections together: beyond it, each may have one waiting request."""

Validated = Mapping[int, BatchView | KlammError]
"""The batch to stage or the error that refuses it, by the `id` of its part of the request."""


class BatchToCheck(NamedTuple):
    """A batch and the other arguments of `validate`."""

    part_id: int
    data: memoryview
    config: LogConfig
    now_ms: int
    name: str

    def check(self, *, inline: bool) -> BatchView:
        """Return the batch as it is to be staged; KlammError when it is invalid."""
        return validate(self.data, self.config, self.now_ms, Origin.CLIENT, self.name, inline=inline)


@dataclass(slots=True)
class WaitingProduce:
    """A request whose batches are being validated, or that arrived after such a one."""

    size: int
    find_batches: Callable[[], list[BatchToCheck]]
    """Returns the batches to validate in a thread; called when all earlier requests are staged."""
    stage: Callable[[Validated], None]


@dataclass(slots=True)
class ProduceQueue:
    """The waiting requests of one connection, in the order they arrived."""

    requests: deque[WaitingProduce] = field(default_factory=deque)
    size: int = 0


class RecordChecks:
    """The validation threads, and the bytes that wait for them."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", threads: Threads) -> None:
        self._loop = loop
        self._make_threads = threads
        self._threads: Executor | None = None
        self.waiting_bytes = 0
        self._stopped = False
        self._staging: set[asyncio.Task[None]] = set()

    def add(self, channel: "Channel", queue: ProduceQueue, request: WaitingProduce) -> None:
        """Queue a request: it is staged once earlier ones are and its batches are validated."""
        queue.requests.append(request)
        queue.size += request.size
        self.waiting_bytes += request.size
        # Only the first request of a queue is in the threads; the others begin when it is staged.
        if len(queue.requests) == 1:
            self._begin(channel, queue)
        # `_begin` may have staged everything already, and then there is nothing to wait for.
        if queue.requests and (queue.size >= CONNECTION_BYTES_MAX or self.waiting_bytes >= TOTAL_BYTES_MAX):
            channel.pause_reading()

    def run(self, work: Callable[[], _T]) -> "asyncio.Future[_T]":
        """Run other work on records in one of the threads."""
        return self._loop.run_in_executor(self._pool(), work)

    def stage_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Stage the rest of a request with many partitions, in later turns."""
        task = self._loop.create_task(work)
        self._staging.add(task)
        task.add_done_callback(self._staging.discard)

    def _pool(self) -> Executor:
        # Created on first use: most nodes never get a batch that is too large for the loop.
        if self._threads is None:
            self._threads = self._make_threads(THREADS, "klamm-records")
        return self._threads

    def stop(self) -> None:
        """Start nothing more; work that runs in a thread ends by itself."""
        self._stopped = True
        if self._threads is not None:
            # Without waiting: a decompression bomb must not delay the stop.
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, channel: "Channel", queue: ProduceQueue) -> None:
        """Submit the batches of the first waiting request; requests that need no thread are staged at once."""
        while queue.requests and not self._stopped:
            # Found only now: leadership and configs may have changed while the request waited.
            batches = queue.requests[0].find_batches()
            if batches:
                work = self._pool().submit(check_batches, batches)
                work.add_done_callback(_Report(self, channel, queue))
                return
            self._stage_first(channel, queue, {})

    def on_checked(self, channel: "Channel", queue: ProduceQueue, work: "Future[Validated]") -> None:
        """Stage the first request of a connection: its batches are validated."""
        # Replies that are still open end with their connections.
        if self._stopped or work.cancelled():
            return
        self._stage_first(channel, queue, work.result())
        self._begin(channel, queue)
        # Reading may have been paused in `add`; resuming a connection that was not paused does nothing.
        if not channel.closed:
            channel.resume_reading()

    def _stage_first(self, channel: "Channel", queue: ProduceQueue, validated: Validated) -> None:
        request = queue.requests.popleft()
        queue.size -= request.size
        self.waiting_bytes -= request.size
        try:
            request.stage(validated)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not keep those behind it waiting
            log.failure("validated Produce request could not be staged", error, peer=channel.peer_address)
            channel.close("request failed")

    def call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back on the loop, from any thread; does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Report:
    """Hands the result of a thread to the loop."""

    __slots__ = ("_channel", "_checks", "_queue")

    def __init__(self, checks: RecordChecks, channel: "Channel", queue: ProduceQueue) -> None:
        self._checks, self._channel, self._queue = checks, channel, queue

    def __call__(self, work: "Future[Validated]") -> None:
        self._checks.call_on_loop(self._checks.on_checked, self._channel, self._queue, work)


def check_batches(batches: list[BatchToCheck]) -> Validated:
    """Validate batches one after the other; runs in a thread."""
    validated: dict[int, BatchView | KlammError] = {}
    for batch in batches:
        try:
            validated[batch.part_id] = batch.check(inline=False)
        except KlammError as error:
            validated[batch.part_id] = error
        except Exception as error:  # noqa: BLE001 - the producer gets a response, and the next batch is validated
            log.failure("batch validation failed", error, partition=batch.name)
            validated[batch.part_id] = KlammError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return validated
