# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share; some C names have no Python form
"""Batches to columns: records written into buffers of Arrow's shape, without a Python object per record.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in columns.pyi.
"""

from __future__ import annotations

from klamm.records.kernels.errors import beyond_64_bits, corrupt_record, trailing_bytes

try:
    import cython
except ImportError:
    from klamm.records.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.klamm.records.kernels.layout import *
    from cython.cimports.klamm.records.kernels.primitives import *
    from cython.cimports.libc.string import memcpy
else:
    from klamm.records.kernels.layout import *
    from klamm.records.kernels.primitives import *

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    p: cython.p_uchar,
    end: cython.Py_ssize_t,
    n: cython.longlong,
    fields: cython.p_longlong,
    header: cython.p_longlong,
    sums: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Add up the sizes that `measure_records` returns.

    Returns the position after the last record, or -1 with the index of the broken one in `sums[5]`.
    """
    pos: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    i: cython.longlong = 0
    j: cython.longlong = 0
    for i in range(n):
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            sums[5] = i
            return -1
        if fields[KEY_SIZE] > 0:
            sums[0] += fields[KEY_SIZE]
        if fields[VALUE_SIZE] > 0:
            sums[1] += fields[VALUE_SIZE]
        if fields[HEADER_COUNT]:
            sums[2] += fields[HEADER_COUNT]
            at = fields[HEADERS_AT]
            for j in range(fields[HEADER_COUNT]):  # noqa: B007
                # Cannot fail: `read_record` has parsed the same headers.
                at = read_header(p, at, pos, header)
                sums[3] += header[NAME_SIZE]
                if header[HEADER_VALUE_SIZE] > 0:
                    sums[4] += header[HEADER_VALUE_SIZE]
    return pos


def measure_records(data: bytes | bytearray | memoryview, count: int) -> tuple:
    """How much room the columns of `count` records need, for `fill_columns` to put them there.

    Returns (key bytes, value bytes, headers, header name bytes, header value bytes).
    """
    p: cython.p_uchar
    fields: cython.longlong[8]
    header: cython.longlong[4]
    sums: cython.longlong[6]
    i: cython.int = 0
    held: object = memoryview(data)  # while it lives, a bytearray cannot be resized under the pointer
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    if cython.compiled:
        p = readable(held, 0)
    else:
        p = data if type(data) is bytes else bytes(data)
        fields = [0] * RECORD_FIELDS
        header = [0] * HEADER_FIELDS
        sums = [0] * 6
    for i in range(6):
        sums[i] = 0
    if end < UNLOCKED_BYTES_MIN:
        pos = _measure(p, end, n, fields, header, sums)
    else:
        with cython.nogil:
            pos = _measure(p, end, n, fields, header, sums)
    if pos < 0:
        raise corrupt_record(sums[5], n)
    if pos != end:
        raise trailing_bytes(n, end - pos)
    return sums[0], sums[1], sums[2], sums[3], sums[4]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_cell(
    p: cython.p_uchar,
    at: cython.longlong,
    size: cython.longlong,
    row: cython.Py_ssize_t,
    validity: cython.p_uchar,
    offsets: cython.p_int,
    data: cython.p_uchar,
    capacity: cython.longlong,
) -> cython.bint:
    """Append one value of a binary column at `row`; False, and nothing is changed, when there is no room for it."""
    start: cython.longlong = offsets[row]
    if size > 0:
        if size > capacity - start:
            return False
        if cython.compiled:
            memcpy(data + start, p + at, size)
        else:
            data[start : start + size] = p[at : at + size]
        start += size
    if size >= 0:  # the bits of a new column are zero, so a null leaves its bit alone
        validity[row >> 3] |= 1 << (row & 7)
    offsets[row + 1] = start
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    p: cython.p_uchar,
    end: cython.Py_ssize_t,
    n: cython.longlong,
    base: cython.p_longlong,
    longs: cython.pp_longlong,
    ints: cython.pp_int,
    bits: cython.pp_uchar,
    data: cython.pp_uchar,
    sizes: cython.p_longlong,
    done: cython.p_longlong,
    fields: cython.p_longlong,
    header: cython.p_longlong,
) -> cython.int:
    """Write rows while there is room; 0, or 1 for a broken record, 2 for a timestamp or offset beyond 64 bits.

    `base` is the first offset and timestamp, whether all have the time of appending, and that time. Of the columns,
    `longs` are offsets and timestamps, `ints` the offsets of keys, values, header lists, names and header values;
    `bits`, `data` and `sizes` the validity, bytes and their number of keys, values, names and header values; `sizes[4]`
    is the number of headers. `done` counts on: rows, headers, records, bytes.
    """
    row: cython.Py_ssize_t = done[0]
    next_header: cython.Py_ssize_t = done[1]
    i: cython.longlong = done[2]
    pos: cython.Py_ssize_t = done[3]
    after: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    j: cython.longlong = 0
    fits: cython.bint = True
    wrong: cython.int = 0
    # A while loop, because a call that ran out of room is continued by the next one in the middle of the batch.
    while i < n:
        after = read_record(p, pos, end, fields, header)
        if after < 0:
            wrong = 1
            break
        if not sums_fit(fields, base[0], base[1]):
            wrong = 2
            break
        longs[0][row] = base[0] + fields[OFFSET_DELTA]
        longs[1][row] = base[3] if base[2] else base[1] + fields[TIMESTAMP_DELTA]
        # Nothing of a record counts before all its cells fit: `done` is moved behind it only then.
        fits = next_header + fields[HEADER_COUNT] <= sizes[4]
        fits = fits and _put_cell(p, fields[KEY_AT], fields[KEY_SIZE], row, bits[0], ints[0], data[0], sizes[0])
        fits = fits and _put_cell(p, fields[VALUE_AT], fields[VALUE_SIZE], row, bits[1], ints[1], data[1], sizes[1])
        if fits and fields[HEADER_COUNT]:
            at = fields[HEADERS_AT]
            for j in range(fields[HEADER_COUNT]):
                at = read_header(p, at, after, header)
                fits = _put_cell(
                    p, header[NAME_AT], header[NAME_SIZE], next_header + j, bits[2], ints[3], data[2], sizes[2]
                )
                fits = fits and _put_cell(
                    p,
                    header[HEADER_VALUE_AT],
                    header[HEADER_VALUE_SIZE],
                    next_header + j,
                    bits[3],
                    ints[4],
                    data[3],
                    sizes[3],
                )
                if not fits:
                    break
        if not fits:
            break
        next_header += fields[HEADER_COUNT]
        row += 1
        ints[2][row] = next_header
        pos = after
        i += 1
    done[0] = row
    done[1] = next_header
    done[2] = i
    done[3] = pos
    return wrong


def fill_columns(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    first_row: int,
    first_header: int,
    rows: int,
    headers: int,
    columns: tuple,
    record: int = 0,
    position: int = 0,
) -> tuple:
    """Write `count` records as rows from `first_row` of Arrow-shaped buffers, as far as there is room for their bytes.

    `columns` are bytearrays for `rows` rows and `headers` headers: offsets, timestamps, key validity, key offsets, key
    data, the same three for values, header list offsets, the same three for header names and for header values.
    Validity must be zero and offsets right up to `first_row`, as earlier calls left them. Returns the records done,
    the position behind them and the headers written so far: with these it goes on after room was made.
    """
    p: cython.p_uchar
    fields: cython.longlong[8]
    header: cython.longlong[4]
    base: cython.longlong[4]
    sizes: cython.longlong[5]
    done: cython.longlong[4]
    longs: cython.p_longlong[2]
    ints: cython.p_int[5]
    bits: cython.p_uchar[4]
    cells: cython.p_uchar[4]
    held: object = memoryview(data)  # while it lives, a bytearray cannot be resized under the pointer
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    n_rows: cython.longlong = rows
    n_headers: cython.longlong = headers
    wrong: cython.int = 0
    if (
        len(columns) != 15
        or not 0 <= first_row <= rows - count
        or not 0 <= first_header <= headers
        or not 0 <= record <= count
        or not 0 <= position <= len(data)
    ):
        raise ValueError("the rows do not fit the columns")
    if cython.compiled:
        p = readable(held, 0)
    else:
        p = data if type(data) is bytes else bytes(data)
        fields, header, base, sizes, done = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0] * 4, [0] * 5, [0] * 4
        longs, ints, bits, cells = [b""] * 2, [b""] * 5, [b""] * 4, [b""] * 4
    # Every size is checked here, because the loop writes without bounds checks.
    longs[0] = writable_longs(columns[0], n_rows)
    longs[1] = writable_longs(columns[1], n_rows)
    bits[0] = writable(columns[2], (n_rows + 7) // 8)
    bits[1] = writable(columns[5], (n_rows + 7) // 8)
    bits[2] = writable(columns[9], (n_headers + 7) // 8)
    bits[3] = writable(columns[12], (n_headers + 7) // 8)
    ints[0] = writable_ints(columns[3], n_rows + 1)
    ints[1] = writable_ints(columns[6], n_rows + 1)
    ints[2] = writable_ints(columns[8], n_rows + 1)
    ints[3] = writable_ints(columns[10], n_headers + 1)
    ints[4] = writable_ints(columns[13], n_headers + 1)
    cells[0] = writable(columns[4], 0)
    cells[1] = writable(columns[7], 0)
    cells[2] = writable(columns[11], 0)
    cells[3] = writable(columns[14], 0)
    # Arrow's offsets are 32 bits wide, so no more of a larger buffer can be used.
    sizes[0] = min(len(columns[4]), 0x7FFFFFFF)
    sizes[1] = min(len(columns[7]), 0x7FFFFFFF)
    sizes[2] = min(len(columns[11]), 0x7FFFFFFF)
    sizes[3] = min(len(columns[14]), 0x7FFFFFFF)
    sizes[4] = n_headers
    base[0] = base_offset
    base[1] = base_timestamp
    base[2] = log_append_time is not None
    base[3] = log_append_time or 0
    done[0] = first_row + record
    done[1] = first_header
    done[2] = record
    done[3] = position
    if end < UNLOCKED_BYTES_MIN:
        wrong = _fill(p, end, n, base, longs, ints, bits, cells, sizes, done, fields, header)
    else:
        with cython.nogil:
            wrong = _fill(p, end, n, base, longs, ints, bits, cells, sizes, done, fields, header)
    if wrong == 1:
        raise corrupt_record(done[2], n)
    if wrong == 2:
        raise beyond_64_bits(done[2])
    if done[2] == n and done[3] != end:
        raise trailing_bytes(n, end - done[3])
    return done[2], done[3], done[1]
