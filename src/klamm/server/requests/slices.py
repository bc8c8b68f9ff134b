"""Requests with many elements take several turns of the loop, so that other connections are served in between.

A handler whose work grows with its request is a generator: after every few elements it yields how many it has handled,
and it returns the response. The router runs it until SLICE_ELEMENTS are done. Most requests end within the first slice;
a longer one yields to the loop after every slice, and its connection is not read meanwhile. A handler that is a
coroutine counts its elements with a `Pace`.
"""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SliceSteps = Generator[int, None, T]
"""The work of a handler: yields the number of elements handled since the last yield, returns the response."""

SLICE_ELEMENTS = 250
"""Elements of a slice: one to three milliseconds of work."""


def run_slice(steps: SliceSteps[T]) -> None:
    """Run one slice; raises StopIteration with the response when it was the last one."""
    # Elements differ in cost; a handler yields more than 1 for those that cost more.
    spent = 0
    while spent < SLICE_ELEMENTS:
        spent += next(steps)


async def run_in_slices(steps: SliceSteps[T]) -> T:
    """Run all slices, yielding to the loop in between."""
    while True:
        try:
            run_slice(steps)
        except StopIteration as end:
            response: T = end.value
            return response
        await asyncio.sleep(0)


def cut(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split items into slices."""
    for start in range(0, len(items), SLICE_ELEMENTS):
        yield items[start : start + SLICE_ELEMENTS]


class Pace:
    """Counts the elements that a coroutine has handled and yields to the loop after every slice."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self, elements: int = 1) -> None:
        """Count handled elements."""
        self._spent += elements
        if self._spent >= SLICE_ELEMENTS:
            self._spent = 0
            await asyncio.sleep(0)
