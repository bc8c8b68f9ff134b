"""Expensive pure calls, handed to the caller one by one, so that an event loop can run them in a thread.

A generator of steps reads the state between its calls, on the caller's thread; the calls themselves get immutable
values and touch nothing else. `run_steps` runs them in place, `klamm.registry.checks` off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PureCall:
    """A call that depends on its arguments alone."""

    function: Callable[[], Any]
    chars: int
    """Of the schema texts in it: a measure of how long it takes."""


Steps = Generator[PureCall, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """Run all calls in place, and return what the generator returns."""
    try:
        call = next(steps)
        while True:
            try:
                answer = call.function()
            except Exception as error:  # noqa: BLE001 - the generator's to handle
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        returned: T = end.value
        return returned
