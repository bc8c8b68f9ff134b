"""Threads as an argument: who makes the pools in which slow work runs, so that a simulation can run it itself."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeAlias

Threads: TypeAlias = Callable[[int, str], Executor]
"""(how many, what they are called) -> a pool."""


def real_threads(count: int, name: str) -> Executor:
    """Threads of this process."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)
