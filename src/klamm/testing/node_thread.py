"""A whole node in a thread of this process, with a loop of its own: started in milliseconds, ended cleanly or not."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from klamm.model.errors import ErrorCode
from klamm.net import TurnLoop
from klamm.server.config import embedded_properties, parse_config
from klamm.server.node import Node
from klamm.telemetry import Level, configure
from klamm.testing.faults import FaultyHandler, Refusing, Slowness, api_named

T = TypeVar("T")
PATIENCE_S = 30.0


class Killed(Exception):
    """What a node that was killed did not survive."""


class NodeThread:
    """One life of a node, from start to end."""

    def __init__(self, data: str, port: int, overrides: Mapping[str, str], *, log_level: str = "warning") -> None:
        configure(Level[log_level.upper()])
        pairs = [f"{key}={value}" for key, value in overrides.items()]
        self._config = parse_config(embedded_properties(data, port), pairs, source="the test's settings")
        self._ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, name="klamm-broker", daemon=True)
        self._frozen = threading.Event()
        self._frozen.set()
        self.node: Node
        self.loop: asyncio.AbstractEventLoop
        self._faults: FaultyHandler | None = None
        self._killed = False

    def start(self) -> int:
        """Serve; returns the port."""
        self._thread.start()
        return self._ready.result(PATIENCE_S)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=TurnLoop) as runner:
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits in start
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.node = Node(self._config)
        await self.node.start()
        self._ready.set_result(self.node.addresses[self._config.broker_listeners[0].name][1])
        await self.node.stopping.wait()
        if self._killed:
            await self._die()
        else:
            await self.node.stop()

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
        if self._thread.is_alive():
            self._killed = kill
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.node.stopping.set)
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not end within {PATIENCE_S:.0f} s")

    # Faults

    def freeze(self) -> None:
        """Let nothing happen until `thaw`: sockets stay open, nobody answers."""
        if self._frozen.is_set():
            self._frozen.clear()
            self.loop.call_soon_threadsafe(self._frozen.wait)

    def thaw(self) -> None:
        """Go on."""
        self._frozen.set()

    def slow(self, seconds: float, api: str | None) -> None:
        """Let requests wait."""
        key = None if api is None else api_named(api).key
        self.call(lambda: self._fault_handler().slowness.append(Slowness(seconds, key)))

    def refuse(self, error: str, api: str | None, times: int | None) -> None:
        """Answer with an error."""
        code = ErrorCode[error]
        key = None if api is None else api_named(api).key
        self.call(lambda: self._fault_handler().refusals.append(Refusing(code, key, times)))

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
