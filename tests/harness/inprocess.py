"""A node inside the test's own process, in a thread with its own loop: for tests that must reach behind the socket."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.node import KlammNode

PATIENCE_S = 30.0


class NodeThread:
    """A whole node on a free port; `run` calls a function on its loop, where all its state lives."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self._config = parse_config(embedded_properties(str(folder / "data"), 0), overrides)
        self._ready: concurrent.futures.Future[KlammNode] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.node: KlammNode

    async def _main(self) -> None:
        try:
            node = KlammNode(self._config)
            await node.start()
        except BaseException as error:
            self._ready.set_exception(error)
            raise
        self._ready.set_result(node)
        self._loop = asyncio.get_running_loop()
        await node.stopping.wait()
        await node.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        self.node = self._ready.result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.node.stopping.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    @property
    def port(self) -> int:
        return self.node.addresses["PLAINTEXT"][1]

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(node, ...)` on the node's loop and return what it returns."""

        async def call() -> Any:
            return function(self.node, *args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    def run_until(self, function: Callable[[KlammNode], Awaitable[Any]]) -> Any:
        """Call `function(node)` on the node's loop and return what its awaitable comes to."""

        async def call() -> Any:
            return await function(self.node)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)
