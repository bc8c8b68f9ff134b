"""The little of the `cython` module that interpreted kernels touch, for machines without Cython.

Types appear in the kernels only as annotations, which are never evaluated; what is left are decorators and a flag.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

F = TypeVar("F")

compiled = False


def cfunc(function: F) -> F:
    """A C function; here an ordinary one."""
    return function


def inline(function: F) -> F:
    """A function worth expanding where it is called; here an ordinary one."""
    return function


def exceptval(*_: Any, **__: Any) -> Callable[[F], F]:
    """How a C function reports exceptions; Python's way needs no telling."""
    return cfunc


class _Nogil(AbstractContextManager[None]):
    """`@nogil` over a C function and `with nogil` around C code; here nothing changes."""

    def __call__(self, function: F) -> F:
        return function

    def __exit__(self, *_: object) -> None:
        return


nogil = _Nogil()
