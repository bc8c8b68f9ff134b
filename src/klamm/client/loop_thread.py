"""The one thread of the blocking face: an event loop for all blocking clients of the process.

It starts with the first of them and ends with the last. After a fork the child begins with a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.users = 0
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._main, name="klamm-client", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine; interrupted (Ctrl-C), the coroutine is cancelled too."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking client cannot be used from its own callbacks' loop; use the async one there")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)


_lock = threading.Lock()
_shared: LoopThread | None = None


def acquire() -> LoopThread:
    """The process's loop thread, one user more."""
    global _shared  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = LoopThread()
        _shared.users += 1
        return _shared


def release(thread: LoopThread) -> None:
    """One user less; the last one ends it."""
    global _shared  # noqa: PLW0603
    with _lock:
        thread.users -= 1
        if thread.users:
            return
        if _shared is thread:
            _shared = None
    if thread.pid == os.getpid():
        thread.stop()
