"""Parses and compares schemas off the event loop: a large schema must not keep other requests waiting."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from klamm.registry.store.steps import Steps

T = TypeVar("T")

_THREADS: Final = 2
_THREAD_CHARS: Final = 8192
"""Shorter schemas are handled in place: the way to a thread and back takes longer than they do."""
_SLICE_S: Final = 0.005
"""In place, other requests get their turn after so long."""


class SchemaChecks:
    """Runs steps with a few threads of their own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="klamm-schemas")

    def close(self) -> None:
        """Begin no more calls; one that runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, steps: Steps[T]) -> T:
        """Run all calls, and return what the generator returns."""
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        try:
            call = next(steps)
            while True:
                try:
                    if call.chars >= _THREAD_CHARS:
                        answer = await loop.run_in_executor(self._threads, call.function)
                    else:
                        answer = call.function()
                except Exception as error:  # noqa: BLE001 - the generator's to handle
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
                if time.perf_counter() - began > _SLICE_S:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
        except StopIteration as end:
            returned: T = end.value
            return returned
