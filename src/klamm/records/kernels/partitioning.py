# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share
"""Where a record goes by its key: Kafka's murmur2, for one key and for the rows of a table.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in partitioning.pyi.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from klamm.records.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.klamm.records.kernels.layout import *
    from cython.cimports.klamm.records.kernels.primitives import *
else:
    from klamm.records.kernels.layout import *
    from klamm.records.kernels.primitives import *

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(p: cython.p_uchar, at: cython.longlong, size: cython.longlong) -> cython.ulonglong:
    """Kafka's murmur2 of `size` bytes at `at`, as an unsigned 32-bit number."""
    h: cython.ulonglong = 0
    k: cython.ulonglong = 0
    mask: cython.ulonglong = 1
    i: cython.longlong = 0
    words: cython.longlong = size // 4
    rest: cython.longlong = size - 4 * words
    mask = (mask << 32) - 1  # larger literals would be Python objects
    # Kafka's seed, 0x9747B28C, halved for the same reason.
    h = 0x4BA3D946
    h = (h << 1) ^ (size & mask)
    for i in range(words):  # noqa: B007
        k = p[at] | (p[at + 1] << 8) | (p[at + 2] << 16)
        if cython.compiled:
            k |= cython.cast(cython.ulonglong, p[at + 3]) << 24
        else:
            k |= p[at + 3] << 24
        k = (k * 0x5BD1E995) & mask
        k ^= k >> 24
        k = (k * 0x5BD1E995) & mask
        h = (h * 0x5BD1E995) & mask
        h ^= k
        at += 4
    if rest > 2:
        h ^= p[at + 2] << 16
    if rest > 1:
        h ^= p[at + 1] << 8
    if rest > 0:
        h ^= p[at]
        h = (h * 0x5BD1E995) & mask
    h ^= h >> 13
    h = (h * 0x5BD1E995) & mask
    h ^= h >> 15
    return h


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    key: bytes = data if type(data) is bytes else bytes(memoryview(data))
    if cython.compiled:
        return _murmur2(cython.cast(cython.p_uchar, cython.cast(cython.p_char, key)), 0, len(key))
    else:  # noqa: RET505
        return _murmur2(key, 0, len(key))


def partition_rows(rows: int, keys: object, partitions: int, out: bytearray, counts: bytearray) -> int:
    """The partition of each of `rows` keys of an Arrow column, as Java's producer chooses it; -1 where the key is null.

    `keys` is as `encode_columns` takes it. `out` takes an int32 per row, `counts` an int64 per partition. Returns how
    many keys are null.
    """
    n: cython.longlong = rows
    i: cython.longlong = 0
    among: cython.ulonglong = partitions
    nulls: cython.longlong = 0
    chosen: cython.int = 0
    cell: cython.longlong[2]
    bits: cython.p_uchar = readable(b"", 0)
    first: cython.longlong = keys[3]
    has_nulls: cython.bint = keys[0] is not None
    capacity: cython.longlong = len(keys[2])
    if n < 0 or partitions < 1 or first < 0:
        raise ValueError("an Arrow column begins before its buffers")
    offsets: cython.p_int = readable_ints(keys[1], first + n + 1)
    data: cython.p_uchar = readable(keys[2], 0)
    placed: cython.p_int = writable_ints(out, n)
    count: cython.p_longlong = writable_longs(counts, partitions)
    fits: cython.bint = True
    if has_nulls:
        bits = readable(keys[0], (first + n + 7) // 8)
    if not cython.compiled:
        cell = [0] * CELL_FIELDS
    with cython.nogil:
        for i in range(n):
            if has_nulls and is_null(bits, first + i):
                placed[i] = -1
                nulls += 1
                continue
            fits = read_cell(offsets, first + i, capacity, cell)
            if not fits:
                break
            # Java's toPositive: the sign bit is cleared, not negated.
            chosen = (_murmur2(data, cell[CELL_AT], cell[CELL_SIZE]) & 0x7FFFFFFF) % among
            placed[i] = chosen
            count[chosen] += 1
    if not fits:
        raise ValueError("the offsets of an Arrow column leave its data")
    return nulls


def group_rows(rows: int, placed: bytearray, starts: bytearray, order: bytearray) -> None:
    """Row numbers in the order of their partitions, rows of one partition in the order they came.

    `placed` has an int32 per row (none below 0), `starts` an int64 per partition, its first place in `order`, which
    takes an int64 per row. `starts` ends up where each partition's rows end.
    """
    n: cython.longlong = rows
    i: cython.longlong = 0
    partitions: cython.longlong = len(starts) // 8
    chosen: cython.longlong = 0
    p: cython.p_int = writable_ints(placed, n)
    s: cython.p_longlong = writable_longs(starts, partitions)
    o: cython.p_longlong = writable_longs(order, n)
    fits: cython.bint = True
    with cython.nogil:
        for i in range(n):
            chosen = p[i]
            if chosen < 0 or chosen >= partitions or s[chosen] < 0 or s[chosen] >= n:
                fits = False
                break
            o[s[chosen]] = i
            s[chosen] += 1
    if not fits:
        raise ValueError("the rows do not fit their partitions")
