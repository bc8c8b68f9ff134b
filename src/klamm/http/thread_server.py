"""Serves an application from a thread of a process that does something else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from klamm.http.server import ServedApp, serve

_MARGIN_S: Final = 2.0


@contextlib.contextmanager
def serve_in_thread(served: ServedApp, name: str) -> Iterator[None]:
    """Serve while the block runs; requests wait in the socket's queue until the server has started."""
    # Made here, so that a block that ends at once stops a server that has not begun.
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop, stopping = runner.get_loop(), asyncio.Event()

    def run() -> None:
        with runner:
            runner.run(serve([served], _announce_nothing, stopping))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # the server failed, and its loop is closed
            loop.call_soon_threadsafe(stopping.set)
        thread.join(served.close_s + _MARGIN_S)
        served.listening.close()


def _announce_nothing() -> None:
    pass
