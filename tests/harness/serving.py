"""Ending a small server of a test without leaving a connection to the garbage collector."""

import asyncio
from collections.abc import Collection
from typing import Any

_TURNS = 5
"""Within so few turns of the loop a connection that was accepted has its task."""


async def end_serving(server: asyncio.Server, tasks: Collection[asyncio.Task[Any]]) -> None:
    """Take no more connections, and end those that are there; `tasks` are who serves them, and close what they have.

    One that was accepted a moment ago has no task yet, and would be left behind.
    """
    server.close()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    await end_all(tasks)


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel all of them, and wait until they have ended."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
