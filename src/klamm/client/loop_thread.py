"""The event-loop thread that all blocking clients of a process share, and their base class.

It starts with the first client and ends with the last, but not while a caller waits for it. After a fork the child
starts a thread of its own; clients created before belong to the parent.
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
    """A loop that can connect at interpreter exit, when an executor starts no more threads for getaddrinfo."""

    def run_in_executor(  # type: ignore[override] # typeshed's TypeVarTuple says the same
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function in a thread, or in this one when the interpreter is shutting down."""
        try:
            return super().run_in_executor(executor, func, *args)
        except RuntimeError:
            # "cannot schedule new futures after interpreter shutdown"; before that it is another error.
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
        # A daemon: a program that does not close its client must end. `at_exit` delivers records before that.
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
        """Schedule a coroutine; RuntimeError when called on this thread, which would wait for itself."""
        try:
            self.check_caller()
        except RuntimeError:
            work.close()  # or Python warns that it was never awaited
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def check_caller(self) -> None:
        """RuntimeError when called on this thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking client cannot be used on its own event-loop thread; use the async client")

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)


_lock = threading.Lock()
_shared: LoopThread | None = None


def acquire() -> LoopThread:
    """The shared thread, with one user more; started for the first."""
    global _shared  # noqa: PLW0603 - one per process
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        _shared.users += 1
        return _shared


def retain(thread: LoopThread) -> bool:
    """Add a user to a thread; False when it has ended."""
    with _lock:
        if thread.users:
            thread.users += 1
        return thread.users > 0


def release(thread: LoopThread) -> None:
    """Remove a user; the thread ends with the last one."""
    global _shared  # noqa: PLW0603
    with _lock:
        thread.users -= 1
        if thread.users:
            return
        if _shared is thread:
            _shared = None
    thread.stop()  # outside of the lock: it joins the thread, whose callbacks may acquire


class AsyncClient(Protocol):
    """An asynchronous client: started and closed on the event loop."""

    async def start(self) -> Any:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""


class BlockingClient:
    """An asynchronous client for code without an event loop: it runs on the shared thread until `close`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self._name = name
        self._leaving = False
        self._gone = f"the {name} is closed"
        self._thread: LoopThread | None = acquire()
        # Hooks of clients that were collected are dropped here, so that the list stays as long as there are clients.
        _fork_hooks[:] = [hook for hook in _fork_hooks if hook() is not None]
        _fork_hooks.append(weakref.WeakMethod(self._disown))
        try:
            self._run(client.start())
        except BaseException as error:
            self.__exit__(type(error), error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and release the thread."""
        self._leave(self._client.close)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the shared thread, which does not end before it."""
        # A local: another thread may close this client meanwhile and set the attribute to None.
        thread = self._thread
        if thread is None or not retain(thread):
            work.close()
            raise IllegalStateError(self._gone)
        try:
            return self._wait(thread, work)
        finally:
            release(thread)

    def _wait(self, thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
        return thread.run(work)

    def _leave(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `closing` and release the thread, also when it raises; a second call, from any thread, does nothing."""
        thread = self._thread
        if thread is None:
            return
        thread.check_caller()
        with _lock:
            if self._leaving:
                return
            self._leaving = True
        try:
            self._run(closing())
        finally:
            self._thread = None
            release(thread)

    def _disown(self) -> None:
        """Called in a forked child: the client belongs to the parent process."""
        self._thread = None
        self._gone = f"the {self._name} was created before the process forked: create one in the child"


_fork_hooks: list[weakref.WeakMethod[Callable[[], None]]] = []
"""Called in a forked child, for every client that is still referenced."""


def _after_fork() -> None:
    """Reset the state in a forked child: the loop's thread does not exist there, and a held lock stays held."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None
    for hook in _fork_hooks:
        if (orphan := hook()) is not None:
            orphan()


os.register_at_fork(after_in_child=_after_fork)
