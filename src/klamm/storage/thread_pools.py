"""Thread pools as an argument, so that a simulation can run slow work on its own schedule."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeAlias

Threads: TypeAlias = Callable[[int, str], Executor]
"""(number of threads, prefix of their names) -> a pool."""


def real_threads(count: int, name: str) -> Executor:
    """Return a pool of real threads."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)
