"""Backpressure: callers wait here while buffer.memory is full, until batches were delivered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from klamm.client.errors import BufferFullError
from klamm.client.producer.core.accumulator import Accumulator


class Backpressure:
    """Callers that wait for memory, with the usage that each waits for."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait(self, below: int, limit_s: float, deadline: float, wake: Callable[[], None]) -> None:
        """Wait until at most `below` bytes are used; BufferFullError at `deadline`, `limit_s` after the call began.

        `wake` wakes the sender: no batch may linger while callers wait for memory. Another caller may take it first.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (below, waiter)
        self._accumulator.flushing += 1
        self._waiters.append(entry)
        wake()
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise BufferFullError(
                f"buffer.memory={self._accumulator.memory_bytes} stayed full for max.block.ms={limit_s * 1000:g}"
            ) from None
        finally:
            self._accumulator.flushing -= 1
            if entry in self._waiters:
                self._waiters.remove(entry)

    def wake_waiters(self) -> None:
        """Wake the callers for which enough memory was freed."""
        if not self._waiters:
            return
        used = self._accumulator.used
        for below, waiter in list(self._waiters):
            # `not used`: rows of a table larger than buffer.memory are accepted when nothing else is buffered.
            if (used <= below or not used) and not waiter.done():
                waiter.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiters: no memory will be freed any more."""
        for _, waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)
