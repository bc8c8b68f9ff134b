"""A whole node in a thread of this process, with a loop of its own: started in milliseconds, ended cleanly or not."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from klamm.net import TurnLoop
from klamm.server.boot.config import NodeConfig
from klamm.server.node import Node
from klamm.telemetry import Level, configure
from klamm.testing.fault_names import Seconds, api_named, error_named, seconds_of, times_of
from klamm.testing.faults import FaultyHandler, Refusing, Slowness

T = TypeVar("T")
PATIENCE_S = 30.0


class Killed(Exception):
    """What a node that was killed did not survive."""


class _Pause:
    """One standstill of a node's loop: a callback that does not return before it is ended."""

    def __init__(self) -> None:
        self.holds = threading.Event()
        self.ended = threading.Event()

    def hold(self) -> None:
        """Called on the loop."""
        self.holds.set()
        self.ended.wait()


class NodeThread:
    """One life of a node, from start to end; `on_end` is called, in its thread, when that has come."""

    def __init__(
        self, config: NodeConfig, *, log_level: str = "warning", on_end: Callable[[], object] | None = None
    ) -> None:
        configure(Level[log_level.upper()])
        self._config = config
        self._on_end = on_end
        self._ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="klamm-broker", daemon=True)
        self._born = threading.Event()
        self._pause: _Pause | None = None
        self.node: Node
        self.loop: asyncio.AbstractEventLoop
        self.failure: BaseException | None = None
        """Why it ended, if it was not told to."""
        self._faults: FaultyHandler | None = None
        self._killed = False

    def start(self) -> int:
        """Serve; returns the port."""
        self.launch()
        return self.wait_ready(PATIENCE_S)

    def launch(self) -> None:
        """Begin to serve, without waiting for it."""
        self._thread.start()

    def wait_ready(self, patience_s: float | None) -> int:
        """The port, once it serves; why it does not, when that is so."""
        return self._ready.result(patience_s)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=TurnLoop) as runner:
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits in start
            self.failure = error
        finally:
            if not self._ready.done():
                self._ready.set_exception(self.failure or RuntimeError("the broker was stopped before it served"))
            self._born.set()
            if self._on_end is not None:
                self._on_end()

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.node = node = Node(self._config)
        self._born.set()
        starting = self.loop.create_task(node.start(), name="start")
        told_to_stop = self.loop.create_task(node.stopping.wait(), name="stop")
        await asyncio.wait((starting, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            self._ready.set_result(node.addresses[self._config.broker_listeners[0].name][1])
            await told_to_stop
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        if self._killed:
            await self._die()
            return
        await node.stop()
        self.failure = node.failure

    async def _die(self) -> None:
        """As after kill -9: no farewell, no clean mark, nothing written that was not written."""
        node = self.node
        node.failure = Killed("the test killed this node")
        node._net.stop()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)
        with contextlib.suppress(Exception):
            await node._raft.stop()
        await self.loop.run_in_executor(None, lambda: node._logs.close(clean=False, broker_epoch=-1))

    def stop(self, *, kill: bool = False) -> None:
        """End it; `kill` ends it as a crash would."""
        self.thaw()
        if self._thread.is_alive() and self._born.wait(PATIENCE_S):
            self._killed = kill
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.node.stopping.set)
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not end within {PATIENCE_S:.0f} s")

    # Faults

    def freeze(self) -> None:
        """Let nothing happen until `thaw`: sockets stay open, nobody answers. Returns when the loop stands still."""
        if self._pause is None:
            self._pause = pause = _Pause()
            self.loop.call_soon_threadsafe(pause.hold)
            if not pause.holds.wait(PATIENCE_S):
                self.thaw()
                raise TimeoutError(f"the broker's loop did not stand still within {PATIENCE_S:.0f} s")

    def thaw(self) -> None:
        """Go on."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.ended.set()

    def slow(self, seconds: Seconds, api: str | int | None) -> None:
        """Let requests wait."""
        fault = Slowness(seconds_of(seconds), None if api is None else api_named(api).key)
        self.call(lambda: self._fault_handler().slowness.append(fault))

    def refuse(self, error: str | int, api: str | int | None, times: int | None) -> None:
        """Answer with an error."""
        fault = Refusing(error_named(error), None if api is None else api_named(api).key, times_of(times))
        self.call(lambda: self._fault_handler().refusals.append(fault))

    def heal(self) -> None:
        """Take slowness and refusals back."""
        self.thaw()
        if self._faults is not None:
            self.call(self._faults.heal)

    def _fault_handler(self) -> FaultyHandler:
        """Installed when the first fault is wanted; until then a broker is served without it."""
        if self._faults is None:
            self._faults = FaultyHandler(self.node._net.handler, self.loop)
            self.node._net.handler = self._faults
        return self._faults

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the node's loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)
