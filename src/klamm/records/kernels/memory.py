# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True

"""Memory for bytes that are about to be written.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in memory.pyi.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from klamm.records.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""


def blank(size: int) -> bytearray:
    """Room for `size` bytes about to be written; compiled, they have no defined value, so nothing is spent on it."""
    if size < 0:
        raise ValueError(f"a size of {size} bytes is negative")
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:  # noqa: RET505
        return bytearray(size)
