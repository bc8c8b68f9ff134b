"""Requests with many elements take several turns of the loop, so that other connections have theirs in between.

A handler whose work grows with its request is a generator: after each element, or a few, it yields how many it has
handled, and it returns the response. The router lets it go on until SLICE_ELEMENTS are done. Most requests end there
and are answered at once; a longer one gives way after every so many, while its connection is not read on.
A handler that is a coroutine anyhow counts its elements with a `Pace`.
"""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]
"""The work of a handler: yields how many elements it has handled since it last did, returns the response."""

SLICE_ELEMENTS = 250
"""Elements of a request that are handled before others have their turn: one to three milliseconds."""


def run_slice(steps: Steps[T]) -> None:
    """Handle one slice; StopIteration, with the response, when that was the last one."""
    spent = 0
    while spent < SLICE_ELEMENTS:
        spent += next(steps)


async def run_in_slices(steps: Steps[T]) -> T:
    """Do all of the work, giving way between slices."""
    while True:
        try:
            run_slice(steps)
        except StopIteration as end:
            response: T = end.value
            return response
        await asyncio.sleep(0)


def cut(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in slices."""
    for start in range(0, len(items), SLICE_ELEMENTS):
        yield items[start : start + SLICE_ELEMENTS]


class Pace:
    """Counts the elements that a coroutine has handled and gives way when a slice is full."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self, elements: int = 1) -> None:
        """Note that so many elements are done."""
        self._spent += elements
        if self._spent >= SLICE_ELEMENTS:
            self._spent = 0
            await asyncio.sleep(0)
