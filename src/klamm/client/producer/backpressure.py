"""Backpressure: callers wait here while buffer.memory is full, until batches were delivered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from klamm.client.errors import BufferFullError
from klamm.client.producer.core.accumulator import Accumulator


class Backpressure:
    """Those who wait for memory, each until so little of it is used."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait(self, below: int, limit_s: float, deadline: float, wake: Callable[[], None]) -> None:
        """Until at most `below` bytes are used, or nothing is; BufferFullError at `deadline`, `limit_s` after it began.

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

    def let_in(self) -> None:
        """Memory was freed: those for whom it is enough try again."""
        if not self._waiters:
            return
        used = self._accumulator.used
        for below, waiter in list(self._waiters):
            if (used <= below or not used) and not waiter.done():
                waiter.set_result(None)

    def let_all_in(self) -> None:
        """Wake all waiters: no memory will be freed any more."""
        for _, waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)
