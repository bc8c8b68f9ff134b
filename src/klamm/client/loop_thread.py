"""The one thread of the blocking faces: an event loop for all blocking clients of the process.

It starts with the first of them and ends with the last, but not while a caller waits for it. After a fork the child
begins with a thread of its own; clients made before it are the parent's. A `BlockingFace` is what they have in common.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar

from klamm.client.errors import IllegalStateError

T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """A loop that also connects at exit, when a pool starts no more threads to look up addresses in."""

    def run_in_executor(  # type: ignore[override] # typeshed's TypeVarTuple says the same
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function in a thread, or here when the interpreter has ended its threads."""
        try:
            return super().run_in_executor(executor, func, *args)
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except OSError as error:
            done.set_exception(error)
        return done


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self.loop = _Loop()
        self.users = 0
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
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have a coroutine run; RuntimeError in this thread, which would wait for itself."""
        try:
            self.refuse_itself()
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def refuse_itself(self) -> None:
        """RuntimeError when called in this thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking client cannot be used from its own callbacks' loop; use the async one there")

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
        if _shared is None:
            _shared = LoopThread()
        _shared.users += 1
        return _shared


def hold(thread: LoopThread) -> bool:
    """One user more of a thread; False when it has ended."""
    with _lock:
        if thread.users:
            thread.users += 1
        return thread.users > 0


def release(thread: LoopThread) -> None:
    """One user less; the last one ends it."""
    global _shared  # noqa: PLW0603
    with _lock:
        thread.users -= 1
        if thread.users:
            return
        if _shared is thread:
            _shared = None
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
        self._leaving = False
        self._gone = f"the {name} is closed"
        self._thread: LoopThread | None = acquire()
        _fork_hooks[:] = [hook for hook in _fork_hooks if hook() is not None]
        _fork_hooks.append(weakref.WeakMethod(self._orphan))
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
        """The result of a coroutine of the loop's thread, which does not end before."""
        thread = self._thread
        if thread is None or not hold(thread):
            work.close()
            raise IllegalStateError(self._gone)
        try:
            return self._wait(thread, work)
        finally:
            release(thread)

    def _wait(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        return thread.run(work)

    def _leave(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The end, whatever becomes of `closing`; a second time, from whichever thread, is none."""
        thread = self._thread
        if thread is None:
            return
        thread.refuse_itself()
        with _lock:
            if self._leaving:
                return
            self._leaving = True
        try:
            self._run(closing())
        finally:
            self._thread = None
            release(thread)

    def _orphan(self) -> None:
        """Called in a forked child: the client belongs to the parent process."""
        self._thread = None
        self._gone = f"the {self._name} was made before the process forked: make one in the child"


_fork_hooks: list[weakref.WeakMethod[Callable[[], None]]] = []
"""What to call in a forked child, for every face that is still referenced."""


def _after_fork() -> None:
    """Reset the state in a forked child: its only thread neither runs the loop nor releases locks held by others."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None
    for hook in _fork_hooks:
        if (orphan := hook()) is not None:
            orphan()


os.register_at_fork(after_in_child=_after_fork)
