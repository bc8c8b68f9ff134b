"""An event loop whose time is a number: nothing waits, and the same seed runs the same callbacks in the same order.

All processes of a simulation share one loop. Whatever is scheduled while a process runs belongs to that process, so
that a kill can drop it all and a pause can hold it back. Callbacks of one process run in the order in which asyncio
would run them; processes meet only on the network, whose delays are drawn by chance.
"""

import asyncio
import asyncio.events
import heapq
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from simulation.tls import begin_tls

Callback = Callable[..., object]
TASKS_KEPT = 4096
"""Tasks remembered before those that are done are forgotten."""


class Process:
    """One simulated process, from start to its end: what it scheduled, and whether it may run."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.held: list[Handle] = []
        self.clock_rate = 1.0
        """How fast time goes by where it runs: its timers go by that."""
        self.default_threads: Any = None
        """Where work without a pool of its own runs."""
        self.probe: Callable[[], None] | None = None
        """Called after every event of the process: where invariants are looked at."""

    def __repr__(self) -> str:
        return self.name


class Handle:
    """A callback that will run, unless it is cancelled or its process ends first."""

    __slots__ = ("_when", "args", "callback", "process")

    def __init__(self, callback: Callback | None, args: tuple[Any, ...], process: Process, when: float) -> None:
        self.callback = callback
        self.args = args
        self.process = process
        self._when = when

    def when(self) -> float:
        """The time it is due."""
        return self._when

    def cancel(self) -> None:
        """Do not run."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it will not run."""
        return self.callback is None


class SimLoop(asyncio.AbstractEventLoop):
    """Virtual time. `run` executes events until something holds it; `events` counts them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.outside = Process("world", "world")
        self.process = self.outside
        self.events = 0
        self.digest = 0
        """A checksum of what happened so far: two runs of a seed agree on it after every event."""
        self.failures: list[str] = []
        """Failures that no code handled."""
        self.net: Any = None
        self.in_job = False
        self._now = 0.0
        self._sequence = 0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool], *, events: int = 1 << 60, until: float = 1e18) -> None:
        """Execute events until `stop()`, or there were so many, or time is `until`."""
        last = self.events + events
        ready, timers = self._ready, self._timers
        pop = heapq.heappop
        before = asyncio.events._get_running_loop()
        asyncio.events._set_running_loop(self)
        try:
            while self.events < last and not stop():
                if ready:
                    handle = ready.popleft()
                elif timers and timers[0][0] <= until:
                    when, _, handle = pop(timers)
                    if handle.callback is None:
                        continue
                    self._now = max(self._now, when)
                else:
                    self._now = max(self._now, min(until, 1e17))
                    return
                callback, process = handle.callback, handle.process
                if callback is None or not process.alive:
                    continue
                if process.paused:
                    process.held.append(handle)
                    continue
                self.events += 1
                self.process = process
                try:
                    callback(*handle.args)
                except Exception as error:  # noqa: BLE001 - a finding, not ours to handle
                    self.fail(f"a callback of {process} raised", error)
                if process.probe is not None:
                    process.probe()
        finally:
            self.process = self.outside
            asyncio.events._set_running_loop(before)

    def add_to_digest(self, data: bytes) -> None:
        """Let the digest depend on something."""
        self.digest = zlib.crc32(data, self.digest)

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Keep a failure that no code handled."""
        text = what if error is None else f"{what}: {error!r}\n{''.join(traceback.format_exception(error))}"
        self.failures.append(text)

    def kill(self, process: Process) -> None:
        """End a process: nothing it scheduled runs any more."""
        if process.alive:
            process.alive = False
            process.held.clear()

    def pause(self, process: Process) -> None:
        """Let a process stand still, as SIGSTOP does."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let it go on with everything that has come due."""
        if process.paused:
            process.paused = False
            self._ready.extend(process.held)
            process.held.clear()

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any], name: str | None = None) -> "asyncio.Task[Any]":
        """Start a task that belongs to a process."""
        before, self.process = self.process, process
        try:
            return self.create_task(work, name=name)
        finally:
            self.process = before

    def call_in(self, process: Process, delay: float, callback: Callback, *args: Any) -> Handle:
        """Have a callback of a process run after a delay."""
        return self.call_in_at(process, self._now + delay, callback, *args)

    def call_in_at(self, process: Process, when: float, callback: Callback, *args: Any) -> Handle:
        """Have a callback of a process run at a time, and in the order of these calls where times are equal."""
        handle = Handle(callback, args, process, when)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now

    def call_soon(self, callback: Callback, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        """Run after everything that is ready."""
        handle = Handle(callback, args, self.process, self._now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callback, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        """Run when so many seconds have passed."""
        return self.call_in(self.process, max(delay, 0.0) / self.process.clock_rate, callback, *args)

    def call_at(self, when: float, callback: Callback, *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        """Run at a point in time."""
        return self.call_later(when - self._now, callback, *args)

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> "asyncio.Task[Any]":
        """Start a coroutine; it belongs to the process that runs now."""
        task = asyncio.Task(coro, loop=self, name=name)
        self._tasks.append(task)
        if len(self._tasks) > TASKS_KEPT:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Slow work, done in one piece at a later instant."""
        future = self.create_future()
        pool = executor if executor is not None else self.process.default_threads

        def settle(done: Any) -> None:
            if future.cancelled():
                return
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        pool.submit(func, *args).add_done_callback(settle)
        return future

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, **_: Any
    ) -> Any:
        """Connect over the simulated network, and begin TLS."""
        process = self.process

        def connect(factory: Any) -> Any:
            return self.net.connect(process, factory, host, port, encrypted=ssl is not None)

        if ssl is None:
            return await connect(protocol_factory)
        return await begin_tls(self, connect, protocol_factory, ssl, host)

    def add_reader(self, fd: Any, callback: Callback, *args: Any) -> None:  # type: ignore[override]
        """Call back whenever a simulated socket can be read."""
        self.net.watch(fd, "reader", Handle(callback, args, self.process, self._now))

    def remove_reader(self, fd: Any) -> bool:
        """Read no more."""
        return bool(self.net.watch(fd, "reader", None))

    def add_writer(self, fd: Any, callback: Callback, *args: Any) -> None:  # type: ignore[override]
        """Call back whenever a simulated socket can be written."""
        self.net.watch(fd, "writer", Handle(callback, args, self.process, self._now))

    def remove_writer(self, fd: Any) -> bool:
        """Write no more."""
        return bool(self.net.watch(fd, "writer", None))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A failure that asyncio found: a task that was not awaited, a future that was not read."""
        if not self._closed:
            self.fail(str(context.get("message")), context.get("exception"))

    def get_debug(self) -> bool:
        """Never: debugging is done by replaying."""
        return False

    def is_running(self) -> bool:
        """While `run` runs."""
        return True

    def is_closed(self) -> bool:
        """After `close`."""
        return self._closed

    def close(self) -> None:
        """Let go of everything, quietly: tasks of killed processes end here."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self.process = Process("none", "nowhere")
        self.process.alive = False
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done():
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001, S110 - the loop is closed, there is no caller
                    pass
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()
