"""Threads without threads: slow work is done in one piece at an instant chance chooses, in the loop's own thread."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from simulation.loop import Handle, Process, SimLoop


class SimThreads(Executor):
    """A pool of one process. Work that is submitted from inside other work is done at once, since that would wait."""

    def __init__(self, loop: SimLoop, process: Process, count: int, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._process = process
        self._one_by_one = count == 1
        self._delay = delay
        self._free_at = 0.0
        self._pending: dict[Future[Any], Handle] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it later."""
        future: Future[Any] = Future()
        loop = self._loop
        if loop.in_job:
            self._run(future, fn, args, kwargs)
            return future
        when = loop.time() + self._delay()
        if self._one_by_one:
            when = self._free_at = max(when, self._free_at)
        self._pending[future] = loop.call_in(self._process, when - loop.time(), self._run, future, fn, args, kwargs)
        return future

    def _run(self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._pending.pop(future, None)
        nested, self._loop.in_job = self._loop.in_job, True
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised to the caller through the future
            self._loop.in_job = nested
            future.set_exception(error)
        else:
            self._loop.in_job = nested
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what was submitted, now."""
        for future, handle in list(self._pending.items()):
            args = handle.args
            handle.cancel()
            self._pending.pop(future, None)
            if wait and args:
                self._run(*args)
