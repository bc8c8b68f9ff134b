"""The one thread of the blocking faces: an event loop for all blocking clients of the process.

It starts with the first of them and ends with the last. After a fork the child begins with a thread of its own. A
`BlockingFace` is what they have in common.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

from klamm.client.errors import IllegalStateError

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

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine; interrupted (Ctrl-C), the coroutine is cancelled too."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking client cannot be used from its own callbacks' loop; use the async one there")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
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


class Lived(Protocol):
    """Something asynchronous that is started and closed."""

    async def start(self) -> Any:
        """Begin."""

    async def close(self) -> None:
        """Leave."""


class BlockingFace:
    """Something asynchronous for code without an event loop: it lives on the loop's thread until `close`."""

    def __init__(self, lived: Lived, name: str) -> None:
        self._lived = lived
        self._name = name
        self._thread: LoopThread | None = acquire()
        try:
            self._run(lived.start())
        except BaseException as error:
            self.__exit__(type(error), error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._leave(self._lived.close)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the loop's thread."""
        if self._thread is None:
            work.close()
            raise IllegalStateError(f"the {self._name} is closed")
        return self._wait(self._thread, work)

    def _wait(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        return thread.run(work)

    def _leave(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The end, whatever becomes of `closing`; a second time is none."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(closing())
            finally:
                release(thread)
