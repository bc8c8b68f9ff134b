"""A node in a thread of this process with an event loop of its own; stopped cleanly, or as by a crash."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from klamm.net import FrameHandler, TurnLoop
from klamm.server.boot.config import NodeConfig
from klamm.server.node import KlammNode
from klamm.telemetry import Level, configure
from klamm.testing.fault_names import Seconds, parse_api, parse_error, parse_seconds, parse_times
from klamm.testing.faults import FaultyHandler, InjectedDelay, InjectedError

T = TypeVar("T")
TIMEOUT_S = 30.0


class Killed(Exception):
    """The failure of a node that the test killed."""


class _Pause:
    """Blocks a node's event loop with a callback that returns when `ended` is set."""

    def __init__(self) -> None:
        self.holds = threading.Event()
        self.ended = threading.Event()

    def hold(self) -> None:
        """Called on the loop."""
        self.holds.set()
        self.ended.wait()


class NodeThread:
    """One run of a node; `on_end` is called in its thread when the node has ended."""

    def __init__(
        self, config: NodeConfig, *, log_level: str = "warning", on_end: Callable[[], object] | None = None
    ) -> None:
        configure(Level[log_level.upper()])
        self._config = config
        self._on_end = on_end
        self._ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="klamm-broker", daemon=True)
        self._loop_started = threading.Event()
        self._pause: _Pause | None = None
        self.node: KlammNode
        self.loop: asyncio.AbstractEventLoop
        self.failure: BaseException | None = None
        """Why it ended, if it was not stopped."""
        self._faults: FaultyHandler | None = None
        """None until the node is composed."""
        self._killed = False

    def start(self) -> int:
        """Serve; returns the port."""
        self.launch()
        return self.wait_ready(TIMEOUT_S)

    def launch(self) -> None:
        """Start the thread without waiting until the node serves."""
        self._thread.start()

    def wait_ready(self, timeout_s: float | None) -> int:
        """Return the port once the node serves; raise the failure that keeps it from serving."""
        return self._ready.result(timeout_s)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=TurnLoop) as runner:
                runner.run(self._run_node())
        except BaseException as error:  # noqa: BLE001 - raised by wait_ready
            self.failure = error
        finally:
            if not self._ready.done():
                self._ready.set_exception(self.failure or RuntimeError("the broker was stopped before it served"))
            self._loop_started.set()
            if self._on_end is not None:
                self._on_end()

    async def _run_node(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.node = node = KlammNode(self._config, wrap_handler=self._make_fault_handler)
        self._loop_started.set()
        # A start may wait for a quorum that never comes: `stop` must be able to end it.
        starting = self.loop.create_task(node.start(), name="start")
        stop_requested = self.loop.create_task(node.stopping.wait(), name="stop")
        await asyncio.wait((starting, stop_requested), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            if starting.exception() is not None:
                await node.stop()
            await starting
            self._ready.set_result(node.addresses[self._config.broker_listeners[0].name][1])
            await stop_requested
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        if self._killed:
            await self._crash()
            return
        await node.stop()
        self.failure = node.failure

    async def _crash(self) -> None:
        """End as after kill -9: no deregistration, no clean-shutdown marker, no flush."""
        node = self.node
        node.failure = Killed("the test killed this node")
        # Sockets first, as a dying process would: a reply must not be sent for a write that is dropped below.
        node.net.stop()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)  # the cancelled tasks run their handlers
        with contextlib.suppress(Exception):
            await node.services.raft.stop()
        await self.loop.run_in_executor(None, partial(node.logs.close, clean=False, broker_epoch=-1))

    def stop(self, *, kill: bool = False) -> None:
        """Stop the node; `kill` stops it as a crash would."""
        self.thaw()  # a blocked loop would never see the request
        if self._thread.is_alive() and self._loop_started.wait(TIMEOUT_S):
            self._killed = kill
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node ended by itself
                self.loop.call_soon_threadsafe(self.node.stopping.set)
            self._thread.join(TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not end within {TIMEOUT_S:.0f} s")

    # Faults

    def freeze(self) -> None:
        """Block the event loop until `thaw`; return when it is blocked. Sockets stay open."""
        if self._pause is None:
            self._pause = pause = _Pause()
            self.loop.call_soon_threadsafe(pause.hold)
            if not pause.holds.wait(TIMEOUT_S):
                self.thaw()
                raise TimeoutError(f"the broker's loop was not blocked within {TIMEOUT_S:.0f} s")

    def thaw(self) -> None:
        """Unblock the event loop."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.ended.set()

    def slow(self, seconds: Seconds, api: str | int | None) -> None:
        """Delay requests."""
        fault = InjectedDelay(parse_seconds(seconds), None if api is None else parse_api(api).key)
        self.call(partial(self._add_delay, fault))

    def refuse(self, error: str | int, api: str | int | None, times: int | None) -> None:
        """Answer with an error."""
        fault = InjectedError(parse_error(error), None if api is None else parse_api(api).key, parse_times(times))
        self.call(partial(self._add_error, fault))

    def heal(self) -> None:
        """End pause, delays and errors."""
        self.thaw()
        if self._faults is not None:
            self.call(self._faults.heal)

    def _add_delay(self, fault: InjectedDelay) -> None:
        self._fault_handler().delays.append(fault)

    def _add_error(self, fault: InjectedError) -> None:
        self._fault_handler().errors.append(fault)

    def _fault_handler(self) -> FaultyHandler:
        if self._faults is None:
            raise RuntimeError("the broker has not started: it cannot have faults yet")
        return self._faults

    def _make_fault_handler(self, router: FrameHandler) -> FaultyHandler:
        # From the start, not with the first fault: a connection keeps the handler that it was opened with.
        self._faults = FaultyHandler(router, self.loop)
        return self._faults

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the node's loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)
