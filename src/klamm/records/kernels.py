# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F821, SIM108, SIM113 - names come from kernels.pxd; C loops read better spelt out
"""Everything done once per record, kept apart because it is compiled.

The install compiles this file with Cython; the same file runs as plain Python where it was not. Both forms give equal
results, and both treat the bytes as hostile: a length is compared with the bytes that are left before anything is read
or allocated, and whatever does not add up is CorruptBatch. It is one file, long as it is, because the parser is
inlined into each loop only within one translation unit. Types for checkers are in kernels.pyi.

A record is: varint size, then attributes i8 · varlong timestamp delta · varint offset delta · varint key length, key ·
varint value length, value · varint header count, and per header varint key length, key · varint value length, value.
Varints are zig-zag; length -1 is null.
"""

from __future__ import annotations

import sys
from hashlib import blake2b

from klamm.model.errors import CorruptBatch
from klamm.records.crc import crc32c

try:
    import cython
except ImportError:
    from klamm.records import cython_shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM
    from cython.cimports.libc.string import memcpy

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""

# One parsed record is handed about in a scratch array of eight integers:
#   0 timestamp delta · 1 offset delta · 2 key position · 3 key length · 4 value position · 5 value length
#   6 position of the headers · 7 header count
# and one header as 0 key position · 1 key length · 2 value position · 3 value length. Literal indexes, because a name
# would be a dictionary lookup in the compiled form.


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.p_longlong,
    slot: cython.Py_ssize_t,
    shift_max: cython.int,
) -> cython.Py_ssize_t:
    """Read one zig-zag varint into `out[slot]`; the position after it, or -1 when there is none before `end`."""
    u: cython.ulonglong = 0
    b: cython.ulonglong = 0
    shift: cython.int = 0
    while pos < end and shift <= shift_max:
        b = p[pos]
        pos += 1
        if shift == 63 and b > 1:
            return -1
        u |= (b & 0x7F) << shift
        if b < 0x80:
            if cython.compiled:
                out[slot] = cython.cast(cython.longlong, u >> 1) ^ -cython.cast(cython.longlong, u & 1)
            else:
                out[slot] = (u >> 1) ^ -(u & 1)
            return pos
        shift += 7
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _span(
    p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, out: cython.p_longlong, slot: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Read a length and step over that many bytes: position and length into two slots, the end or -1 returned."""
    pos = _varint(p, pos, end, out, slot + 1, 28)
    if pos < 0 or out[slot + 1] < -1 or out[slot + 1] > end - pos:
        return -1
    out[slot] = pos
    if out[slot + 1] > 0:
        pos += out[slot + 1]
    return pos


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _header(
    p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, out: cython.p_longlong
) -> cython.Py_ssize_t:
    """Step over one header; a header without a key does not exist."""
    pos = _span(p, pos, end, out, 0)
    if pos < 0 or out[1] < 0:
        return -1
    return _span(p, pos, end, out, 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _record(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.p_longlong,
    header: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Parse the record at `pos` completely; the position after it, or -1 when its bytes do not add up."""
    i: cython.longlong = 0
    count: cython.longlong = 0
    pos = _varint(p, pos, end, out, 0, 28)
    if pos < 0 or out[0] < 1 or out[0] > end - pos:
        return -1
    end = pos + out[0]
    pos = _varint(p, pos + 1, end, out, 0, 63)
    if pos < 0:
        return -1
    pos = _varint(p, pos, end, out, 1, 28)
    if pos < 0 or out[1] < 0 or out[1] > 0x7FFFFFFF:
        return -1
    pos = _span(p, pos, end, out, 2)
    if pos < 0:
        return -1
    pos = _span(p, pos, end, out, 4)
    if pos < 0:
        return -1
    pos = _varint(p, pos, end, out, 7, 28)
    if pos < 0 or out[7] < 0 or out[7] > end - pos:
        return -1
    out[6] = pos
    count = out[7]
    for i in range(count):  # noqa: B007 - a C loop when compiled
        pos = _header(p, pos, end, header)
        if pos < 0:
            return -1
    return end if pos == end else -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64_max() -> cython.longlong:
    """2^63 - 1, in steps of C: the literal would be a Python object, and each comparison with it a slow one."""
    half: cython.longlong = 1
    half <<= 62
    return half - 1 + half


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sums_fit(record: cython.p_longlong, base_offset: cython.longlong, base_timestamp: cython.longlong) -> cython.bint:
    """Whether base and delta add up within 64 bits; in C an overflow would pass unseen."""
    top: cython.longlong = _int64_max()
    if base_offset > top - record[1]:
        return False
    if record[0] > 0:
        return base_timestamp <= top - record[0]
    return base_timestamp >= -(top + record[0]) - 1


def _corrupt(index: int, count: int) -> CorruptBatch:
    return CorruptBatch(f"record {index} of {count} does not fit the bytes that should hold it")


def _trailing(count: int, left: int) -> CorruptBatch:
    return CorruptBatch(f"{left} bytes are left after the batch's {count} records")


def _beyond(index: int) -> CorruptBatch:
    return CorruptBatch(f"record {index} has a timestamp or offset beyond 64 bits")


@cython.cfunc
def _decode_headers(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong) -> tuple:
    """The headers of a record that `_record` has found sound, as (name, value or None) pairs."""
    i: cython.longlong = 0
    f: cython.longlong[4]
    if not cython.compiled:
        f = [0] * 4
    headers: list = []
    for i in range(count):  # noqa: B007
        pos = _header(p, pos, end, f)
        if pos < 0:
            raise CorruptBatch("a record changed while it was read")
        name = p[f[0] : f[0] + f[1]].decode("utf-8", "surrogateescape")
        value = None if f[3] < 0 else p[f[2] : f[2] + f[3]]
        headers.append((name, value))
    return tuple(headers)


@cython.cfunc
def _row(kind: object, offset: object, timestamp: object, key: object, value: object, headers: tuple) -> object:
    """One decoded record. None of its parts can refer back to it, so the garbage collector need not look at it."""
    if cython.compiled:
        if kind is None:
            row = (offset, timestamp, key, value, headers)
        else:
            row = PyType_GenericAlloc(cython.cast(type, kind), 5)
            Py_INCREF(offset)
            PyTuple_SET_ITEM(row, 0, offset)
            Py_INCREF(timestamp)
            PyTuple_SET_ITEM(row, 1, timestamp)
            Py_INCREF(key)
            PyTuple_SET_ITEM(row, 2, key)
            Py_INCREF(value)
            PyTuple_SET_ITEM(row, 3, value)
            Py_INCREF(headers)
            PyTuple_SET_ITEM(row, 4, headers)
        PyObject_GC_UnTrack(row)
    else:
        row = (offset, timestamp, key, value, headers)
        if kind is not None:
            row = tuple.__new__(kind, row)
    return row


def decode_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None = None,
    kind: type | None = None,
) -> list:
    """The `count` records that fill `data`, as (offset, timestamp, key, value, headers) tuples.

    `log_append_time`, when given, is every record's timestamp: the batch was stamped as a whole. `kind` is a named
    tuple of these five fields to make instead of plain tuples.
    """
    if kind is not None and (not issubclass(kind, tuple) or kind.__itemsize__ == 0 or kind.__dictoffset__ != 0):
        raise TypeError("records are made as named tuples")
    p: cython.p_uchar
    f: cython.longlong[8]
    h: cython.longlong[4]
    view: cython.const[cython.uchar][::1]
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    i: cython.longlong = 0
    first_offset: cython.longlong = base_offset
    first_timestamp: cython.longlong = base_timestamp
    stamped: cython.bint = log_append_time is not None
    append_time: cython.longlong = log_append_time if stamped else 0
    timestamp: cython.longlong = 0
    shared_timestamp: cython.longlong = 0
    stamp: object = 0
    records: list = []
    if cython.compiled:
        view = data
        p = cython.cast(cython.p_uchar, cython.address(view[0])) if end else cython.NULL
    else:
        p = data if type(data) is bytes else bytes(data)
        f = [0] * 8
        h = [0] * 4
    for i in range(n):
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            raise _corrupt(i, n)
        if not _sums_fit(f, first_offset, first_timestamp):
            raise _beyond(i)
        timestamp = append_time if stamped else first_timestamp + f[0]
        if timestamp != shared_timestamp:  # neighbours mostly share a millisecond: one integer object serves them
            shared_timestamp = timestamp
            stamp = timestamp
        records.append(
            _row(
                kind,
                first_offset + f[1],
                stamp,
                None if f[3] < 0 else p[f[2] : f[2] + f[3]],
                None if f[5] < 0 else p[f[4] : f[4] + f[5]],
                () if f[7] == 0 else _decode_headers(p, f[6], pos, f[7]),
            )
        )
    if pos != end:
        raise _trailing(n, end - pos)
    return records


def walk_records(data: bytes | bytearray | memoryview, count: int) -> tuple:
    """Check the `count` records that fill `data` without building any.

    Returns (indexes of records without a key, whether offset deltas are 0, 1, 2 ..., last offset delta,
    smallest timestamp delta, largest timestamp delta, index of the first record with the largest).
    """
    p: cython.p_uchar
    f: cython.longlong[8]
    h: cython.longlong[4]
    view: cython.const[cython.uchar][::1]
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    i: cython.longlong = 0
    consecutive: cython.bint = True
    last_offset: cython.longlong = -1
    smallest: cython.longlong = 0
    largest: cython.longlong = 0
    largest_at: cython.longlong = 0
    keyless: list = []
    if cython.compiled:
        view = data
        p = cython.cast(cython.p_uchar, cython.address(view[0])) if end else cython.NULL
    else:
        p = data if type(data) is bytes else bytes(data)
        f = [0] * 8
        h = [0] * 4
    for i in range(n):
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            raise _corrupt(i, n)
        if f[3] < 0:
            keyless.append(i)
        if f[1] != i:
            consecutive = False
        last_offset = f[1]
        if i == 0 or f[0] < smallest:
            smallest = f[0]
        if i == 0 or f[0] > largest:
            largest = f[0]
            largest_at = i
    if pos != end:
        raise _trailing(n, end - pos)
    return keyless, bool(consecutive), last_offset, smallest, largest, largest_at


# From 64 KB of records on, the lock of the interpreter is given up while they are worked on: below that, getting it
# back may cost more than the work.


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    p: cython.p_uchar,
    end: cython.Py_ssize_t,
    n: cython.longlong,
    f: cython.p_longlong,
    h: cython.p_longlong,
    sums: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Add up what `measure_records` tells; the position after the last record, or -1 with the bad one's index in
    `sums[5]`.
    """
    pos: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    i: cython.longlong = 0
    j: cython.longlong = 0
    for i in range(n):
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            sums[5] = i
            return -1
        if f[3] > 0:
            sums[0] += f[3]
        if f[5] > 0:
            sums[1] += f[5]
        if f[7]:
            sums[2] += f[7]
            at = f[6]
            for j in range(f[7]):  # noqa: B007
                at = _header(p, at, pos, h)
                sums[3] += h[1]
                if h[3] > 0:
                    sums[4] += h[3]
    return pos


def measure_records(data: bytes | bytearray | memoryview, count: int) -> tuple:
    """How much room the columns of `count` records need, for `fill_columns` to put them there.

    Returns (key bytes, value bytes, headers, header name bytes, header value bytes).
    """
    p: cython.p_uchar
    f: cython.longlong[8]
    h: cython.longlong[4]
    sums: cython.longlong[6]
    i: cython.int = 0
    view: cython.const[cython.uchar][::1]
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    if cython.compiled:
        view = data
        p = cython.cast(cython.p_uchar, cython.address(view[0])) if end else cython.NULL
    else:
        p = data if type(data) is bytes else bytes(data)
        f = [0] * 8
        h = [0] * 4
        sums = [0] * 6
    for i in range(6):
        sums[i] = 0
    if end < 65536:
        pos = _measure(p, end, n, f, h, sums)
    else:
        with cython.nogil:
            pos = _measure(p, end, n, f, h, sums)
    if pos < 0:
        raise _corrupt(sums[5], n)
    if pos != end:
        raise _trailing(n, end - pos)
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
    if size >= 0:
        validity[row >> 3] |= 1 << (row & 7)
    offsets[row + 1] = start
    return True


@cython.cfunc
def _writable(buffer: object, size: cython.longlong) -> cython.p_uchar:
    """Where the bytes of a writable buffer of at least `size` bytes lie."""
    view: cython.uchar[::1]
    if cython.compiled:
        view = buffer
        if len(view) < size:
            raise ValueError("a column buffer is smaller than measured")
        return cython.address(view[0]) if len(view) else cython.NULL
    else:  # noqa: RET505 - the branch that is not compiled
        view = memoryview(buffer)
        if len(view) < size:
            raise ValueError("a column buffer is smaller than measured")
        return view


@cython.cfunc
def _writable_ints(buffer: object, size: cython.longlong) -> cython.p_int:
    """As `_writable`, for `size` 32-bit integers."""
    if cython.compiled:
        return cython.cast(cython.p_int, _writable(buffer, 4 * size))
    else:  # noqa: RET505
        return _writable(buffer, 4 * size).cast("i")


@cython.cfunc
def _writable_longs(buffer: object, size: cython.longlong) -> cython.p_longlong:
    """As `_writable`, for `size` 64-bit integers."""
    if cython.compiled:
        return cython.cast(cython.p_longlong, _writable(buffer, 8 * size))
    else:  # noqa: RET505
        return _writable(buffer, 8 * size).cast("q")


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
    f: cython.p_longlong,
    h: cython.p_longlong,
) -> cython.int:
    """Write records as rows while there is room; 0, or what is wrong: 1 a record, 2 its place in time or in the log.

    `base` is the first offset and timestamp, whether all have the time of appending, and that time. Of the columns,
    `longs` are offsets and timestamps, `ints` the offsets of keys, values, header lists, names and header values;
    `bits`, `data` and `sizes` the validity, bytes and their number of keys, values, names and header values; `sizes[4]`
    is the number of headers. `done` counts on: rows, headers, records, bytes.
    """
    row: cython.Py_ssize_t = done[0]
    header: cython.Py_ssize_t = done[1]
    i: cython.longlong = done[2]
    pos: cython.Py_ssize_t = done[3]
    after: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    j: cython.longlong = 0
    fits: cython.bint = True
    wrong: cython.int = 0
    while i < n:
        after = _record(p, pos, end, f, h)
        if after < 0:
            wrong = 1
            break
        if not _sums_fit(f, base[0], base[1]):
            wrong = 2
            break
        longs[0][row] = base[0] + f[1]
        longs[1][row] = base[3] if base[2] else base[1] + f[0]
        fits = header + f[7] <= sizes[4]
        fits = fits and _put_cell(p, f[2], f[3], row, bits[0], ints[0], data[0], sizes[0])
        fits = fits and _put_cell(p, f[4], f[5], row, bits[1], ints[1], data[1], sizes[1])
        if fits and f[7]:
            at = f[6]
            for j in range(f[7]):
                at = _header(p, at, after, h)
                fits = _put_cell(p, h[0], h[1], header + j, bits[2], ints[3], data[2], sizes[2])
                fits = fits and _put_cell(p, h[2], h[3], header + j, bits[3], ints[4], data[3], sizes[3])
                if not fits:
                    break
        if not fits:
            break
        header += f[7]
        row += 1
        ints[2][row] = header
        pos = after
        i += 1
    done[0] = row
    done[1] = header
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
    f: cython.longlong[8]
    h: cython.longlong[4]
    base: cython.longlong[4]
    sizes: cython.longlong[5]
    done: cython.longlong[4]
    longs: cython.p_longlong[2]
    ints: cython.p_int[5]
    bits: cython.p_uchar[4]
    cells: cython.p_uchar[4]
    view: cython.const[cython.uchar][::1]
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
        view = data
        p = cython.cast(cython.p_uchar, cython.address(view[0])) if end else cython.NULL
    else:
        p = data if type(data) is bytes else bytes(data)
        f, h, base, sizes, done = [0] * 8, [0] * 4, [0] * 4, [0] * 5, [0] * 4
        longs, ints, bits, cells = [b""] * 2, [b""] * 5, [b""] * 4, [b""] * 4
    longs[0] = _writable_longs(columns[0], n_rows)
    longs[1] = _writable_longs(columns[1], n_rows)
    bits[0] = _writable(columns[2], (n_rows + 7) // 8)
    bits[1] = _writable(columns[5], (n_rows + 7) // 8)
    bits[2] = _writable(columns[9], (n_headers + 7) // 8)
    bits[3] = _writable(columns[12], (n_headers + 7) // 8)
    ints[0] = _writable_ints(columns[3], n_rows + 1)
    ints[1] = _writable_ints(columns[6], n_rows + 1)
    ints[2] = _writable_ints(columns[8], n_rows + 1)
    ints[3] = _writable_ints(columns[10], n_headers + 1)
    ints[4] = _writable_ints(columns[13], n_headers + 1)
    cells[0] = _writable(columns[4], 0)
    cells[1] = _writable(columns[7], 0)
    cells[2] = _writable(columns[11], 0)
    cells[3] = _writable(columns[14], 0)
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
    if end < 65536:
        wrong = _fill(p, end, n, base, longs, ints, bits, cells, sizes, done, f, h)
    else:
        with cython.nogil:
            wrong = _fill(p, end, n, base, longs, ints, bits, cells, sizes, done, f, h)
    if wrong == 1:
        raise _corrupt(done[2], n)
    if wrong == 2:
        raise _beyond(done[2])
    if done[2] == n and done[3] != end:
        raise _trailing(n, end - done[3])
    return done[2], done[3], done[1]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(v: cython.longlong) -> cython.Py_ssize_t:
    u: cython.ulonglong = 0
    size: cython.Py_ssize_t = 1
    if cython.compiled:
        u = cython.cast(cython.ulonglong, v << 1) ^ cython.cast(cython.ulonglong, v >> 63)
    else:
        u = (v << 1) ^ (v >> 63)
    while u >= 0x80:
        u >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(q: cython.p_uchar, pos: cython.Py_ssize_t, v: cython.longlong) -> cython.Py_ssize_t:
    u: cython.ulonglong = 0
    if cython.compiled:
        u = cython.cast(cython.ulonglong, v << 1) ^ cython.cast(cython.ulonglong, v >> 63)
    else:
        u = (v << 1) ^ (v >> 63)
    while u >= 0x80:
        q[pos] = (u & 0x7F) | 0x80
        u >>= 7
        pos += 1
    q[pos] = u
    return pos + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _apart(timestamp: cython.longlong, base: cython.longlong) -> cython.bint:
    """Whether the distance of a timestamp from the base fits 64 bits."""
    if base < 0:
        return timestamp <= _int64_max() + base
    return timestamp >= -_int64_max() - 1 + base


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_raw(
    q: cython.p_uchar,
    pos: cython.Py_ssize_t,
    data: cython.p_uchar,
    at: cython.longlong,
    size: cython.longlong,
) -> cython.Py_ssize_t:
    """As `_put_span`, for bytes at a place in memory."""
    pos = _put_varint(q, pos, size)
    if size > 0:
        if cython.compiled:
            memcpy(q + pos, data + at, size)
        else:
            q[pos : pos + size] = data[at : at + size]
        pos += size
    return pos


@cython.cfunc
@cython.inline
def _put_span(q: cython.p_uchar, pos: cython.Py_ssize_t, data: bytes, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """A length and that many bytes; size -1 is null."""
    pos = _put_varint(q, pos, size)
    if size > 0:
        if cython.compiled:
            memcpy(q + pos, cython.cast(cython.p_char, data), size)
        else:
            q[pos : pos + size] = data
        pos += size
    return pos


@cython.cfunc
@cython.inline
def _bytes_of(data: object) -> bytes:
    """Keys and values may be any buffer; text is refused, because only the caller knows its encoding."""
    if type(data) is bytes:
        return data
    if data is None:
        return b""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"keys and values are bytes or None, not {type(data).__name__}")


@cython.cfunc
def _name_of(name: object) -> bytes:
    """A header's name as bytes; names that came in as other than UTF-8 go out as they came."""
    if type(name) is str:
        try:
            return cython.cast(str, name).encode("utf-8") if cython.compiled else name.encode()
        except UnicodeEncodeError:
            return name.encode("utf-8", "surrogateescape")
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else _bytes_of(name)


@cython.cfunc
def _header_pairs(headers: object) -> list:
    """Headers as (bytes, bytes or None) pairs, whichever of the usual forms the caller uses."""
    pairs: list = []
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        pairs.append((_name_of(name), None if value is None else _bytes_of(value)))
    return pairs


@cython.cfunc
def _headers_size(pairs: list) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 0
    name: bytes
    value: bytes
    for name, raw_value in pairs:
        value = _bytes_of(raw_value)
        size += _varint_size(len(name)) + len(name) + len(value)
        size += _varint_size(-1 if raw_value is None else len(value))
    return size


@cython.cfunc
def _put_headers(q: cython.p_uchar, pos: cython.Py_ssize_t, pairs: list) -> cython.Py_ssize_t:
    name: bytes
    value: bytes
    for name, raw_value in pairs:
        pos = _put_span(q, pos, name, len(name))
        value = _bytes_of(raw_value)
        pos = _put_span(q, pos, value, -1 if raw_value is None else len(value))
    return pos


@cython.cfunc
def _resized(out: bytearray, size: cython.Py_ssize_t) -> bytearray:
    """`out` made `size` bytes long; new bytes have no defined value, they are about to be written."""
    if cython.compiled:
        PyByteArray_Resize(out, size)
    elif size < len(out):
        del out[size:]
    else:
        out.extend(bytes(size - len(out)))
    return out


def encode_records(
    records: object, base_timestamp: int, prefix: int = 0, offset_deltas: object = None
) -> tuple[bytearray, int]:
    """Encode (timestamp, key, value, headers) tuples after `prefix` bytes left for the caller's header.

    Returns the buffer and the largest timestamp. Offset deltas count from 0 unless they are given.
    """
    q: cython.p_uchar = cython.NULL if cython.compiled else None
    rows: list = records if type(records) is list else list(records)
    given_deltas: cython.bint = offset_deltas is not None
    deltas: list = list(offset_deltas) if given_deltas else rows
    first_timestamp: cython.longlong = base_timestamp
    timestamp: cython.longlong = 0
    largest: cython.longlong = 0
    delta: cython.longlong = 0
    offset_delta: cython.longlong = 0
    i: cython.Py_ssize_t = 0
    pos: cython.Py_ssize_t = prefix
    size: cython.Py_ssize_t = 0
    key_len: cython.Py_ssize_t = 0
    value_len: cython.Py_ssize_t = 0
    header_count: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = prefix + 256
    key: bytes = b""
    value: bytes = b""
    pairs: list = []
    if len(deltas) != len(rows):
        raise ValueError("as many offset deltas as records are needed")
    if cython.compiled:
        out: bytearray = PyByteArray_FromStringAndSize(cython.NULL, capacity)
        q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
    else:
        q = out = bytearray(capacity)
    for row in rows:
        stamp, raw_key, raw_value, headers = row
        timestamp = stamp
        if not cython.compiled and not -0x8000000000000000 <= timestamp <= 0x7FFFFFFFFFFFFFFF:
            raise OverflowError("a timestamp is 64 bits wide")
        if i == 0 or timestamp > largest:
            largest = timestamp
        if not _apart(timestamp, first_timestamp):
            raise OverflowError("a timestamp lies too far from the base timestamp")
        delta = timestamp - first_timestamp
        offset_delta = deltas[i] if given_deltas else i
        key = _bytes_of(raw_key)
        key_len = -1 if raw_key is None else len(key)
        value = _bytes_of(raw_value)
        value_len = -1 if raw_value is None else len(value)
        size = 1 + _varint_size(delta) + _varint_size(offset_delta) + _varint_size(key_len) + _varint_size(value_len)
        if key_len > 0:
            size += key_len
        if value_len > 0:
            size += value_len
        if headers:
            pairs = _header_pairs(headers)
            header_count = len(pairs)
            size += _headers_size(pairs)
        else:
            header_count = 0
        size += _varint_size(header_count)
        if size > 0x7FFFFFFF:
            raise OverflowError("a record is at most 2 GB")
        if pos + size + 5 > capacity:
            if i == 0:
                capacity = pos + (size + 8) * len(rows)
            else:
                capacity = pos + size + 5 + capacity // 2
            out = _resized(out, capacity)
            if cython.compiled:
                q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
        pos = _put_varint(q, pos, size)
        q[pos] = 0
        pos = _put_varint(q, pos + 1, delta)
        pos = _put_varint(q, pos, offset_delta)
        pos = _put_span(q, pos, key, key_len)
        pos = _put_span(q, pos, value, value_len)
        pos = _put_varint(q, pos, header_count)
        if header_count:
            pos = _put_headers(q, pos, pairs)
        i += 1
    return _resized(out, pos), largest


@cython.cfunc
def _readable(buffer: object, size: cython.longlong) -> cython.p_uchar:
    """Where the bytes of a buffer of at least `size` bytes lie."""
    view: cython.const[cython.uchar][::1]
    if cython.compiled:
        view = buffer
        if len(view) < size:
            raise ValueError("an Arrow buffer is smaller than its column")
        return cython.cast(cython.p_uchar, cython.address(view[0])) if len(view) else cython.NULL
    else:  # noqa: RET505
        view = memoryview(buffer)
        if len(view) < size:
            raise ValueError("an Arrow buffer is smaller than its column")
        return view


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_null(validity: cython.p_uchar, index: cython.longlong) -> cython.bint:
    return not (validity[index >> 3] >> (index & 7)) & 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _cell(
    offsets: cython.p_int, index: cython.longlong, capacity: cython.longlong, out: cython.p_longlong
) -> cython.bint:
    """Position and length of one value of a binary column into `out`; False when its offsets lie."""
    out[0] = offsets[index]
    out[1] = offsets[index + 1] - out[0]
    return out[0] >= 0 and out[1] >= 0 and out[1] <= capacity - out[0]


@cython.cfunc
def _ints(buffer: object, size: cython.longlong) -> cython.p_int:
    """As `_readable`, for `size` 32-bit integers."""
    if cython.compiled:
        return cython.cast(cython.p_int, _readable(buffer, 4 * size))
    else:  # noqa: RET505
        return _readable(buffer, 4 * size).cast("i")


@cython.cfunc
def _cells(column: tuple, first: cython.longlong, rows: cython.longlong) -> list:
    """`rows` values of a binary column from `first` as bytes or None; for headers, of which there are few."""
    f: cython.longlong[2]
    if not cython.compiled:
        f = [0] * 2
    validity, offsets_buffer, data, _ = column
    offsets: cython.p_int = _ints(offsets_buffer, first + rows + 1)
    bits: cython.p_uchar = _readable(b"" if validity is None else validity, 0)
    p: cython.p_uchar = _readable(data, 0)
    capacity: cython.longlong = len(data)
    has_nulls: cython.bint = validity is not None
    i: cython.longlong = 0
    cells: list = []
    if has_nulls:
        _readable(validity, (first + rows + 7) // 8)
    for i in range(first, first + rows):
        if has_nulls and _is_null(bits, i):
            cells.append(None)
            continue
        if not _cell(offsets, i, capacity, f):
            raise ValueError("the offsets of an Arrow column lie")
        if cython.compiled:
            cells.append(p[f[0] : f[0] + f[1]])
        else:
            cells.append(bytes(p[f[0] : f[0] + f[1]]))
    return cells


@cython.cfunc
def _column_headers(headers: tuple, first: cython.longlong, count: cython.longlong) -> list:
    """`count` header pairs from `first` of the structs in an Arrow list column."""
    names: tuple = headers[2]
    values: tuple = headers[3]
    pairs: list = list(
        zip(_cells(names, names[3] + first, count), _cells(values, values[3] + first, count), strict=True)
    )
    for name, _ in pairs:
        if name is None:
            raise ValueError("a header has no name")
    return pairs


def encode_columns(
    rows: int,
    base_timestamp: int,
    timestamps: object,
    keys: object,
    values: object,
    headers: object,
    prefix: int = 0,
    spare: object = None,
) -> tuple[bytearray, int]:
    """Encode Arrow columns, `rows` records of them, after `prefix` bytes left for the caller's header.

    `timestamps` are int64 milliseconds. `keys` and `values` are (validity or None, int32 offsets, data, first index) or
    None for a column of nulls; `headers` is (validity or None, int32 list offsets, names, values, first index) or None.
    `spare` is a bytearray to write into, of which no view may exist. Returns the buffer and the largest timestamp.
    """
    q: cython.p_uchar = cython.NULL if cython.compiled else None
    f: cython.longlong[4]
    h: cython.longlong[2]
    stamps: cython.p_longlong
    n: cython.longlong = rows
    i: cython.longlong = 0
    first_timestamp: cython.longlong = base_timestamp
    timestamp: cython.longlong = 0
    largest: cython.longlong = 0
    delta: cython.longlong = 0
    pos: cython.Py_ssize_t = prefix
    size: cython.Py_ssize_t = 0
    header_count: cython.Py_ssize_t = 0
    reused: bytearray = bytearray() if spare is None else spare
    capacity: cython.Py_ssize_t = max(prefix + 256, len(reused))
    pairs: list = []
    key_bits: cython.p_uchar = _readable(b"", 0)
    key_offsets: cython.p_int = _ints(b"", 0)
    key_data: cython.p_uchar = key_bits
    key_first: cython.longlong = 0
    key_capacity: cython.longlong = 0
    key_nulls: cython.bint = False
    value_bits: cython.p_uchar = key_bits
    value_offsets: cython.p_int = key_offsets
    value_data: cython.p_uchar = key_bits
    value_first: cython.longlong = 0
    value_capacity: cython.longlong = 0
    value_nulls: cython.bint = False
    list_bits: cython.p_uchar = key_bits
    list_offsets: cython.p_int = key_offsets
    list_first: cython.longlong = 0
    list_nulls: cython.bint = False
    has_keys: cython.bint = keys is not None
    has_values: cython.bint = values is not None
    has_headers: cython.bint = headers is not None
    if (
        n < 0
        or prefix < 0
        or (has_keys and keys[3] < 0)
        or (has_values and values[3] < 0)
        or (has_headers and headers[4] < 0)
    ):
        raise ValueError("an Arrow column begins before its buffers")
    if has_keys:
        key_first = keys[3]
        key_offsets = _ints(keys[1], key_first + n + 1)
        key_data = _readable(keys[2], 0)
        key_capacity = len(keys[2])
        key_nulls = keys[0] is not None
        if key_nulls:
            key_bits = _readable(keys[0], (key_first + n + 7) // 8)
    if has_values:
        value_first = values[3]
        value_offsets = _ints(values[1], value_first + n + 1)
        value_data = _readable(values[2], 0)
        value_capacity = len(values[2])
        value_nulls = values[0] is not None
        if value_nulls:
            value_bits = _readable(values[0], (value_first + n + 7) // 8)
    if has_headers:
        list_first = headers[4]
        list_offsets = _ints(headers[1], list_first + n + 1)
        list_nulls = headers[0] is not None
        if list_nulls:
            list_bits = _readable(headers[0], (list_first + n + 7) // 8)
    if cython.compiled:
        stamps = cython.cast(cython.p_longlong, _readable(timestamps, 8 * n))
        out: bytearray = reused if capacity == len(reused) else PyByteArray_FromStringAndSize(cython.NULL, capacity)
        q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
    else:
        stamps = _readable(timestamps, 8 * n).cast("q")
        f = [0] * 4
        h = [0] * 2
        q = out = reused if capacity == len(reused) else bytearray(capacity)
    for i in range(n):
        timestamp = stamps[i]
        if i == 0 or timestamp > largest:
            largest = timestamp
        if not _apart(timestamp, first_timestamp):
            raise OverflowError("a timestamp lies too far from the base timestamp")
        delta = timestamp - first_timestamp
        f[0] = f[2] = 0
        f[1] = f[3] = -1
        if has_keys and not (key_nulls and _is_null(key_bits, key_first + i)):
            if not _cell(key_offsets, key_first + i, key_capacity, f):
                raise ValueError("the offsets of an Arrow column lie")
            f[2] = f[0]
            f[3] = f[1]
        f[1] = -1
        if has_values and not (value_nulls and _is_null(value_bits, value_first + i)):  # noqa: SIM102
            if not _cell(value_offsets, value_first + i, value_capacity, f):
                raise ValueError("the offsets of an Arrow column lie")
        size = 1 + _varint_size(delta) + _varint_size(i) + _varint_size(f[1]) + _varint_size(f[3])
        if f[1] > 0:
            size += f[1]
        if f[3] > 0:
            size += f[3]
        header_count = 0
        if has_headers and not (list_nulls and _is_null(list_bits, list_first + i)):
            if not _cell(list_offsets, list_first + i, 0x7FFFFFFF, h):
                raise ValueError("the offsets of an Arrow column lie")
            if h[1]:
                pairs = _column_headers(headers, h[0], h[1])
                header_count = h[1]
                size += _headers_size(pairs)
        size += _varint_size(header_count)
        if size > 0x7FFFFFFF:
            raise OverflowError("a record is at most 2 GB")
        if pos + size + 5 > capacity:
            if i == 0:
                capacity = pos + (size + 8) * n
            else:
                capacity = pos + size + 5 + capacity // 2
            out = _resized(out, capacity)
            if cython.compiled:
                q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
        pos = _put_varint(q, pos, size)
        q[pos] = 0
        pos = _put_varint(q, pos + 1, delta)
        pos = _put_varint(q, pos, i)
        pos = _put_raw(q, pos, key_data, f[2], f[3])
        pos = _put_raw(q, pos, value_data, f[0], f[1])
        pos = _put_varint(q, pos, header_count)
        if header_count:
            pos = _put_headers(q, pos, pairs)
    return _resized(out, pos), largest


# Compaction. Two passes over the bytes of a log, many batches per call and without the interpreter's lock, so that the
# loop's thread goes on meanwhile. The first notes the newest offset of every key in a table of 24-byte slots (two words
# of the key's hash, offset + 1; 0 is free), the second copies what is still newest. What both share is in an array `w`
# of 64-bit integers that the caller carries from call to call:
#   0 input position · 1 output bytes · 2 slots in use · 3 offset after the last batch · 4 records read
#   5 records kept · 6 next of the offsets to keep · 7 file position of the output · 8 bytes since an index entry
#   9 largest timestamp · 10 its offset · 11 index entries made
# Both stop at a batch that is not plain (compressed, transactional, control), which is the caller's.

END: int = 0
"""The bytes are used up; what is left is less than a batch."""
SPECIAL: int = 1
"""The next batch is not plain, or needs what a copy cannot give it."""
FULL: int = 2
"""The table has no room for the next batch's keys."""
DAMAGED: int = 3
"""The next batch's checksum or form does not hold."""


def _checksum_tables() -> bytes:
    """What CRC-32C of eight bytes at a time looks up: 8 tables of 256 words."""
    tables = [[0] * 256 for _ in range(8)]
    for i in range(256):
        word = i
        for _ in range(8):
            word = word >> 1 ^ (0x82F63B78 if word & 1 else 0)
        tables[0][i] = word
    for i in range(256):
        for k in range(1, 8):
            before = tables[k - 1][i]
            tables[k][i] = before >> 8 ^ tables[0][before & 0xFF]
    return b"".join(word.to_bytes(4, sys.byteorder) for table in tables for word in table)


_CRC_TABLES: bytes = _checksum_tables()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int32(p: cython.p_uchar, pos: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        return (p[pos] << 24) | (p[pos + 1] << 16) | (p[pos + 2] << 8) | p[pos + 3]
    else:  # noqa: RET505
        return int.from_bytes(p[pos : pos + 4], "big", signed=True)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64(p: cython.p_uchar, pos: cython.Py_ssize_t) -> cython.longlong:
    word: cython.ulonglong = 0
    i: cython.Py_ssize_t = 0
    if cython.compiled:
        for i in range(8):
            word = (word << 8) | p[pos + i]
        return cython.cast(cython.longlong, word)
    else:  # noqa: RET505
        return int.from_bytes(p[pos : pos + 8], "big", signed=True)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_int(q: cython.p_uchar, pos: cython.Py_ssize_t, value: cython.longlong, size: cython.Py_ssize_t) -> cython.int:
    """Write the low `size` bytes of a number, the highest first."""
    while size > 0:
        size -= 1
        q[pos + size] = value & 0xFF
        value >>= 8
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    q: cython.p_uchar, at: cython.Py_ssize_t, p: cython.p_uchar, pos: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    if cython.compiled:
        memcpy(q + at, p + pos, size)
    else:
        q[at : at + size] = p[pos : pos + size]
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _checksum(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, t: cython.p_uint) -> cython.uint:
    """CRC-32C in C; the library's function would need the interpreter's lock."""
    c: cython.uint = 0
    if cython.compiled:
        if checksum_is_an_instruction():
            return checksum_by_instruction(p + pos, end - pos)
        c = ~c
        while end - pos >= 8:
            c ^= p[pos] | (p[pos + 1] << 8) | (p[pos + 2] << 16) | (cython.cast(cython.uint, p[pos + 3]) << 24)
            c = (
                t[1792 + (c & 255)]
                ^ t[1536 + ((c >> 8) & 255)]
                ^ t[1280 + ((c >> 16) & 255)]
                ^ t[1024 + (c >> 24)]
                ^ t[768 + p[pos + 4]]
                ^ t[512 + p[pos + 5]]
                ^ t[256 + p[pos + 6]]
                ^ t[p[pos + 7]]
            )
            pos += 8
        while pos < end:
            c = t[(c ^ p[pos]) & 255] ^ (c >> 8)
            pos += 1
        return ~c
    else:  # noqa: RET505
        return crc32c(p[pos:end])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(x: cython.ulonglong, by: cython.int) -> cython.ulonglong:
    return (x << by) | (x >> (64 - by))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sip_round(v: cython.p_ulonglong) -> cython.int:
    v[0] += v[1]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] += v[3]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash_key(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    seed: cython.p_ulonglong,
    out: cython.p_ulonglong,
) -> cython.int:
    """128 bits of a key: SipHash-2-4, whose secret keeps anybody from making keys collide. Plain Python uses BLAKE2."""
    v: cython.ulonglong[4]
    m: cython.ulonglong = 0
    i: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = size
    if cython.compiled:
        for i in range(4):
            v[i] = seed[i]
        while left >= 8:
            m = 0
            for i in range(8):
                m |= cython.cast(cython.ulonglong, p[pos + i]) << (8 * i)
            v[3] ^= m
            _sip_round(v)
            _sip_round(v)
            v[0] ^= m
            pos += 8
            left -= 8
        m = cython.cast(cython.ulonglong, size & 255) << 56
        for i in range(left):
            m |= cython.cast(cython.ulonglong, p[pos + i]) << (8 * i)
        v[3] ^= m
        _sip_round(v)
        _sip_round(v)
        v[0] ^= m
        v[2] ^= 0xEE
        for i in range(4):  # noqa: B007
            _sip_round(v)
        out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
        v[1] ^= 0xDD
        for i in range(4):  # noqa: B007
            _sip_round(v)
        out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]
    else:
        digest = blake2b(p[pos : pos + size], digest_size=16, key=bytes(seed)).digest()
        out[0], out[1] = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot(t: cython.p_ulonglong, slots: cython.ulonglong, key: cython.p_ulonglong) -> cython.Py_ssize_t:
    """Where a key's slot begins in the table: its own, or the free one that would be. There always is a free one."""
    slot: cython.ulonglong = key[0] % slots
    while t[3 * slot + 2] != 0 and (t[3 * slot] != key[0] or t[3 * slot + 1] != key[1]):
        slot += 1
        if slot == slots:
            slot = 0
    return 3 * slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_keys(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    first_offset: cython.longlong,
    t: cython.p_ulonglong,
    slots: cython.ulonglong,
    limit: cython.longlong,
    seed: cython.p_ulonglong,
    w: cython.p_longlong,
    f: cython.p_longlong,
    h: cython.p_longlong,
    key: cython.p_ulonglong,
) -> cython.int:
    """Note the keys of one batch's records; END, FULL or DAMAGED."""
    i: cython.longlong = 0
    at: cython.Py_ssize_t = 0
    for i in range(count):  # noqa: B007
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            return 3
        if f[3] >= 0 and base_offset + f[1] >= first_offset:
            _hash_key(p, f[2], f[3], seed, key)
            at = _slot(t, slots, key)
            if t[at + 2] == 0:
                if w[2] >= limit:
                    return 2
                t[at] = key[0]
                t[at + 1] = key[1]
                w[2] += 1
            t[at + 2] = base_offset + f[1] + 1
        w[4] += 1
    return 0 if pos == end else 3


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _batch_fits(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, crc: cython.p_uint) -> cython.int:
    """END when no whole batch lies at `pos`, DAMAGED when what lies there is none, SPECIAL when it is sound."""
    size: cython.longlong = 0
    if end - pos < 61:
        return 0
    size = _int32(p, pos + 8)
    if size < 49 or p[pos + 16] != 2:
        return 3
    size += 12
    if size > end - pos:
        return 0
    if cython.compiled:
        return 1 if cython.cast(cython.uint, _int32(p, pos + 17)) == _checksum(p, pos + 21, pos + size, crc) else 3
    else:  # noqa: RET505
        return 1 if _int32(p, pos + 17) & 0xFFFFFFFF == _checksum(p, pos + 21, pos + size, crc) else 3


@cython.cfunc
def _table(buffer: object) -> cython.p_ulonglong:
    if cython.compiled:
        return cython.cast(cython.p_ulonglong, _writable(buffer, 24))
    else:  # noqa: RET505
        return _writable(buffer, 24).cast("Q")


@cython.cfunc
def _seed(buffer: object) -> cython.p_ulonglong:
    if cython.compiled:
        return cython.cast(cython.p_ulonglong, _readable(buffer, 32))
    else:  # noqa: RET505
        return _readable(buffer, 32)


@cython.cfunc
def _crc_tables() -> cython.p_uint:
    if cython.compiled:
        return cython.cast(cython.p_uint, _readable(_CRC_TABLES, 8192))
    else:  # noqa: RET505
        return None


def map_keys(
    data: bytes | bytearray | memoryview,
    first_offset: int,
    table: bytearray,
    limit: int,
    seed: bytes,
    w: bytearray,
) -> int:
    """Note the newest offset, from `first_offset` on, of every key in the plain batches from position w[0] on.

    At most `limit` keys go into the table. Returns why it stopped; w[0] is where.
    """
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    pos: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    t: cython.p_ulonglong = _table(table)
    slots: cython.ulonglong = len(table) // 24
    s: cython.p_ulonglong = _seed(seed)
    v: cython.p_longlong = _writable_longs(w, 12)
    crc: cython.p_uint = _crc_tables()
    first: cython.longlong = first_offset
    most: cython.longlong = limit
    reason: cython.int = 0
    f: cython.longlong[8]
    h: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        f, h, key = [0] * 8, [0] * 4, [0] * 2
    if most >= len(table) // 24:
        raise ValueError("the table needs a free slot")
    pos = v[0]
    with cython.nogil:
        while True:
            reason = _batch_fits(p, pos, end, crc)
            if reason != 1 or p[pos + 22] & 0x37:
                break
            size = _int32(p, pos + 8) + 12
            reason = _note_keys(
                p, pos + 61, pos + size, _int32(p, pos + 57), _int64(p, pos), first, t, slots, most, s, v, f, h, key
            )
            if reason != 0:
                break
            v[3] = _int64(p, pos) + _int32(p, pos + 23) + 1
            pos += size
    v[0] = pos
    return reason


def map_section(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    first_offset: int,
    table: bytearray,
    limit: int,
    seed: bytes,
    w: bytearray,
) -> int:
    """As `map_keys` for the unpacked records of one batch; END when all are noted."""
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    t: cython.p_ulonglong = _table(table)
    slots: cython.ulonglong = len(table) // 24
    s: cython.p_ulonglong = _seed(seed)
    v: cython.p_longlong = _writable_longs(w, 12)
    first: cython.longlong = first_offset
    base: cython.longlong = base_offset
    n: cython.longlong = count
    most: cython.longlong = limit
    reason: cython.int = 0
    f: cython.longlong[8]
    h: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        f, h, key = [0] * 8, [0] * 4, [0] * 2
    if most >= len(table) // 24:
        raise ValueError("the table needs a free slot")
    with cython.nogil:
        reason = _note_keys(p, 0, end, n, base, first, t, slots, most, s, v, f, h, key)
    return reason  # noqa: RET504 - made without the lock, returned with it


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _keep_records(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    map_end: cython.longlong,
    drop_tombstones: cython.bint,
    t: cython.p_ulonglong,
    slots: cython.ulonglong,
    seed: cython.p_ulonglong,
    q: cython.p_uchar,
    at: cython.Py_ssize_t,
    f: cython.p_longlong,
    h: cython.p_longlong,
    key: cython.p_ulonglong,
    r: cython.p_longlong,
) -> cython.int:
    """Copy the records of one batch that stay, as they are. r: 0 kept · 1 tombstones among them · 2 largest timestamp
    delta · 3 output position. END or DAMAGED.
    """
    i: cython.longlong = 0
    start: cython.Py_ssize_t = 0
    offset: cython.longlong = 0
    newest: cython.longlong = 0
    r[0] = r[1] = r[2] = 0
    for i in range(count):  # noqa: B007
        start = pos
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            return 3
        offset = base_offset + f[1]
        if offset < map_end:
            if f[3] < 0 or (f[5] < 0 and drop_tombstones):
                continue
            _hash_key(p, f[2], f[3], seed, key)
            newest = t[_slot(t, slots, key) + 2]
            if newest > offset + 1:
                continue
        _copy(q, at, p, start, pos - start)
        at += pos - start
        if r[0] == 0 or f[0] > r[2]:
            r[2] = f[0]
        r[0] += 1
        if f[5] < 0:
            r[1] += 1
    r[3] = at
    return 0 if pos == end else 3


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_output(
    w: cython.p_longlong,
    marks: cython.p_longlong,
    interval: cython.longlong,
    last_offset: cython.longlong,
    size: cython.longlong,
    max_timestamp: cython.longlong,
) -> cython.int:
    """A batch was put out: the indexes follow as they do when it is appended."""
    if max_timestamp > w[9]:
        w[9] = max_timestamp
        w[10] = last_offset
    if w[8] > interval:
        marks[4 * w[11]] = last_offset
        marks[4 * w[11] + 1] = w[7]
        marks[4 * w[11] + 2] = w[9]
        marks[4 * w[11] + 3] = w[10]
        w[11] += 1
        w[8] = 0
    w[8] += size
    w[7] += size
    return 0


def filter_batches(
    data: bytes | bytearray | memoryview,
    out: bytearray,
    table: bytearray,
    seed: bytes,
    map_end: int,
    now_ms: int,
    keep: bytes,
    interval: int,
    marks: bytearray,
    w: bytearray,
) -> int:
    """Copy into `out` from w[1] on what stays of the plain batches from position w[0] on.

    A record below `map_end` stays when it has a key, the table knows no newer offset for it, and it is no tombstone
    past its batch's delete horizon. A batch that loses all its records goes, unless its last offset is in `keep`
    (native 64-bit integers, ascending): then its header stays. A batch with tombstones that has no delete horizon yet
    is the caller's. `marks` takes an index entry (last offset, position, largest timestamp, its offset) per `interval`
    bytes. Returns why it stopped; w[0] is where.
    """
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    q: cython.p_uchar = _writable(out, end)
    v: cython.p_longlong = _writable_longs(w, 12)
    every: cython.longlong = interval
    m: cython.p_longlong = _writable_longs(marks, 4 * (end // max(min(interval, 1 << 30), 61) + 2))
    t: cython.p_ulonglong = _table(table)
    slots: cython.ulonglong = len(table) // 24
    s: cython.p_ulonglong = _seed(seed)
    kept_offsets: cython.longlong = len(keep) // 8
    k: cython.p_longlong
    crc: cython.p_uint = _crc_tables()
    known: cython.longlong = map_end
    now: cython.longlong = now_ms
    pos: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    count: cython.longlong = 0
    base_offset: cython.longlong = 0
    last_offset: cython.longlong = 0
    base_timestamp: cython.longlong = 0
    max_timestamp: cython.longlong = 0
    attributes: cython.int = 0
    reason: cython.int = 0
    f: cython.longlong[8]
    h: cython.longlong[4]
    r: cython.longlong[4]
    key: cython.ulonglong[2]
    if cython.compiled:
        k = cython.cast(cython.p_longlong, _readable(keep, 0))
    else:
        k = _readable(keep, 0).cast("q")
        f, h, r, key = [0] * 8, [0] * 4, [0] * 4, [0] * 2
    pos = v[0]
    at = v[1]
    if at + end - pos > len(out):
        raise ValueError("the output must have room for the input")
    with cython.nogil:
        while True:
            reason = _batch_fits(p, pos, end, crc)
            attributes = p[pos + 22] if reason == 1 else 0
            if reason != 1 or attributes & 0x37:
                break
            size = _int32(p, pos + 8) + 12
            count = _int32(p, pos + 57)
            base_offset = _int64(p, pos)
            last_offset = base_offset + _int32(p, pos + 23)
            base_timestamp = _int64(p, pos + 27)
            max_timestamp = _int64(p, pos + 35)
            reason = _keep_records(
                p,
                pos + 61,
                pos + size,
                count,
                base_offset,
                known,
                attributes & 0x40 and base_timestamp <= now,
                t,
                slots,
                s,
                q,
                at + 61,
                f,
                h,
                key,
                r,
            )
            if reason != 0:
                break
            if r[1] > 0 and not attributes & 0x40 and base_offset < known:
                reason = 1
                break
            while v[6] < kept_offsets and k[v[6]] < last_offset:
                v[6] += 1
            if r[0] > 0 or (v[6] < kept_offsets and k[v[6]] == last_offset):
                _copy(q, at, p, pos, 61)
                if r[0] < count:
                    if r[0] == 0:
                        attributes &= 8
                        _put_int(q, at + 21, attributes, 2)
                        _put_int(q, at + 27, -1, 8)
                    elif not attributes & 8:
                        max_timestamp = base_timestamp + r[2]
                        _put_int(q, at + 35, max_timestamp, 8)
                    _put_int(q, at + 8, r[3] - at - 12, 4)
                    _put_int(q, at + 57, r[0], 4)
                    _put_int(q, at + 17, _checksum(q, at + 21, r[3], crc), 4)
                _note_output(v, m, every, last_offset, r[3] - at, max_timestamp)
                at = r[3]
            v[3] = last_offset + 1
            v[4] += count
            v[5] += r[0]
            pos += size
    v[0] = pos
    v[1] = at
    return reason


def filter_section(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    table: bytearray,
    seed: bytes,
    map_end: int,
    drop_tombstones: bool,
    prefix: int,
) -> tuple:
    """As `filter_batches` for the unpacked records of one batch, after `prefix` bytes left for the caller's header.

    Returns (buffer, records kept, tombstones among them, largest timestamp delta).
    """
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    out = bytearray(prefix + end)
    q: cython.p_uchar = _writable(out, 0)
    at: cython.Py_ssize_t = prefix
    n: cython.longlong = count
    base: cython.longlong = base_offset
    known: cython.longlong = map_end
    drop: cython.bint = drop_tombstones
    t: cython.p_ulonglong = _table(table)
    slots: cython.ulonglong = len(table) // 24
    s: cython.p_ulonglong = _seed(seed)
    reason: cython.int = 0
    f: cython.longlong[8]
    h: cython.longlong[4]
    r: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        f, h, r, key = [0] * 8, [0] * 4, [0] * 4, [0] * 2
    with cython.nogil:
        reason = _keep_records(p, 0, end, n, base, known, drop, t, slots, s, q, at, f, h, key, r)
    if reason != 0:
        raise CorruptBatch(f"the {count} records at offset {base_offset} do not fit their bytes")
    if not cython.compiled:
        q.release()
    del out[r[3] :]
    return out, r[0], r[1], r[2]


def shift_timestamps(data: bytes | bytearray | memoryview, count: int, shift: int, prefix: int) -> bytearray:
    """The same records counted from another base timestamp, after `prefix` bytes: `shift` is added to every delta."""
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    i: cython.longlong = 0
    by: cython.longlong = shift
    pos: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t = 0
    rest: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = prefix
    size: cython.longlong = 0
    g: cython.longlong[1]
    f: cython.longlong[8]
    h: cython.longlong[4]
    if not cython.compiled:
        f, h, g = [0] * 8, [0] * 4, [0]
    # A delta takes at most ten bytes, and the size before it may grow by one byte.
    out = bytearray(prefix + end + 11 * count)
    q: cython.p_uchar = _writable(out, 0)
    for i in range(n):
        start = pos
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            raise _corrupt(i, n)
        if not _apart(f[0], -by):
            raise _beyond(i)
        rest = _varint(p, start, pos, g, 0, 28) + 1
        rest = _varint(p, rest, pos, g, 0, 63)
        size = 1 + _varint_size(f[0] + by) + pos - rest
        at = _put_varint(q, at, size)
        q[at] = 0
        at = _put_varint(q, at + 1, f[0] + by)
        _copy(q, at, p, rest, pos - rest)
        at += pos - rest
    if pos != end:
        raise _trailing(n, end - pos)
    if not cython.compiled:
        q.release()
    del out[at:]
    return out


# Recovery. One pass over the bytes of a segment, again many batches per call and without the interpreter's lock: length
# and checksum, offsets that follow each other, index entries, and what the log remembers of producers. `w` is shared
# from call to call as above, with words of its own:
#   0 input position · 1 offset the next batch must not lie before · 2 leader epoch · 3 offset at which that epoch ends
#   4 producers noted · 5 batches passed · 7 to 11 as above, position and index entries being those of the file
# Producers are noted in a table of slots of 32 words, found by producer id:
#   0 producer id · 1 epoch · 2 whether the epoch changed since the slot was taken · 3 batches of that epoch, 0: free
#   4 first offset of a transaction, -1: none · 7 and on: the last five batches, by turns, each as
#   first sequence · last sequence · first offset · last offset · largest timestamp


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_producer(
    p: cython.p_uchar, pos: cython.Py_ssize_t, t: cython.p_longlong, slots: cython.longlong, w: cython.p_longlong
) -> cython.int:
    """Remember a batch of a producer; END, or FULL when the table has no room for another producer."""
    producer_id: cython.longlong = _int64(p, pos + 43)
    epoch: cython.longlong = (p[pos + 51] << 8) | p[pos + 52]
    base_offset: cython.longlong = _int64(p, pos)
    delta: cython.longlong = _int32(p, pos + 23)
    first: cython.longlong = _int32(p, pos + 53)
    slot: cython.longlong = producer_id % slots
    at: cython.Py_ssize_t = 0
    if epoch > 32767:
        epoch -= 65536
    while t[32 * slot + 3] != 0 and t[32 * slot] != producer_id:
        slot += 1
        if slot == slots:
            slot = 0
    at = 32 * slot
    if t[at + 3] == 0:
        if 4 * w[4] >= 3 * slots:
            return 2
        w[4] += 1
        t[at] = producer_id
        t[at + 1] = epoch
        t[at + 2] = 0
        t[at + 4] = -1
    elif t[at + 1] != epoch:
        t[at + 1] = epoch
        t[at + 2] = 1
        t[at + 3] = 0
    if p[pos + 22] & 0x10 and t[at + 4] < 0:
        t[at + 4] = base_offset
    t[at + 3] += 1
    at += 7 + 5 * ((t[at + 3] - 1) % 5)
    t[at] = first
    t[at + 1] = first if first < 0 else (first + delta) & 0x7FFFFFFF
    t[at + 2] = base_offset
    t[at + 3] = base_offset + delta
    t[at + 4] = _int64(p, pos + 35)
    return 0


def check_batches(
    data: bytes | bytearray | memoryview,
    segment_base: int,
    end_offset: int,
    checked: bool,
    interval: int,
    marks: bytearray,
    producers: bytearray,
    w: bytearray,
) -> int:
    """Pass over the sound batches from position w[0] on that continue a segment and end before `end_offset`.

    `checked` False trusts the checksums. Control batches are the caller's, and batches of another leader epoch than
    w[2] or beyond w[3]. `marks` takes index entries as in `filter_batches`. Returns why it stopped; w[0] is where.
    """
    p: cython.p_uchar = _readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    v: cython.p_longlong = _writable_longs(w, 12)
    t: cython.p_longlong = _writable_longs(producers, 32)
    slots: cython.longlong = len(producers) // 256
    every: cython.longlong = interval
    m: cython.p_longlong = _writable_longs(marks, 4 * (end // max(min(interval, 1 << 30), 61) + 2))
    crc: cython.p_uint = _crc_tables()
    begin: cython.longlong = segment_base
    limit: cython.longlong = end_offset
    most: cython.longlong = 1 << 62
    verify: cython.bint = checked
    pos: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    base_offset: cython.longlong = 0
    last_offset: cython.longlong = 0
    reason: cython.int = 0
    pos = v[0]
    with cython.nogil:
        while True:
            if verify:
                reason = _batch_fits(p, pos, end, crc)
            elif end - pos < 61:
                reason = 0
            else:
                size = _int32(p, pos + 8)
                reason = 3 if size < 49 or p[pos + 16] != 2 else (1 if size + 12 <= end - pos else 0)
            if reason != 1:
                break
            size = _int32(p, pos + 8) + 12
            base_offset = _int64(p, pos)
            last_offset = _int32(p, pos + 23)
            if base_offset < v[1] or base_offset > most or last_offset < 0:
                reason = 3
                break
            last_offset += base_offset
            if last_offset >= limit or last_offset - begin > 0x7FFFFFFF:
                reason = 3
                break
            if p[pos + 22] & 0x20 or _int32(p, pos + 12) != v[2] or base_offset >= v[3]:
                break
            if _int64(p, pos + 43) >= 0:
                reason = _note_producer(p, pos, t, slots, v)
                if reason != 0:
                    break
            _note_output(v, m, every, last_offset, size, _int64(p, pos + 35))
            v[1] = last_offset + 1
            v[5] += 1
            pos += size
    v[0] = pos
    return reason


# The records of a producer's batch, looked at before they are stored. What a check carries from one piece of them to
# the next is in an array `w` of 64-bit integers:
#   0 records the header counts · 1 records done · 2 the field that comes next · 3 bits of an unfinished varint
#   4 how many bits they are · 5 bytes left of the record · 6 bytes to step over · 7 headers left
#   8 base timestamp · 9 oldest timestamp allowed · 10 newest · 11 whether every record needs a key
#   12 largest timestamp · 13 timestamp delta of the record at hand · 14 whether it has a key · 15 records noted
#   16 whether offset deltas must count from 0 · 17 the lowest that is noted · 18 that of the record at hand
#   19 whether all records have the base timestamp · 20 on: offset delta, whether the time is why it is noted, and
#   timestamp of each record noted, the first hundred of them
# Fields count 0 size and attributes · 1 timestamp delta · 2 offset delta · 3 key · 4 value · 5 number of headers
# · 6 name of a header · 7 its value · 8 the end.

BROKEN: int = 1
"""A record does not fit the bytes that should hold it."""
MISPLACED: int = 2
"""A record's offset delta is not its place in the batch."""
BEYOND: int = 3
"""A record's timestamp does not fit 64 bits."""
TRAILING: int = 4
"""Bytes are left after the records the header counts."""
NOTED_MAX: int = 100
"""Records without key or outside of the times allowed that are named."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _note_record(
    w: cython.p_longlong, delta: cython.longlong, offset_delta: cython.longlong, keyless: cython.bint
) -> cython.int:
    """Take a sound record into account; 0, or what is wrong with its place."""
    top: cython.longlong = _int64_max()
    base: cython.longlong = w[8]
    at: cython.longlong = 0
    timestamp: cython.longlong = 0
    if w[16] and offset_delta != w[1]:
        return 2
    if w[19]:
        delta = 0
    if delta > 0:
        if base > top - delta:
            return 3
    elif base < -(top + delta) - 1:
        return 3
    timestamp = base + delta
    w[12] = max(w[12], timestamp)
    if offset_delta >= w[17] and ((keyless and w[11]) or (timestamp != -1 and (timestamp < w[9] or timestamp > w[10]))):
        if w[15] < 100:
            at = 20 + 3 * w[15]
            w[at] = offset_delta
            w[at + 1] = 0 if keyless and w[11] else 1
            w[at + 2] = timestamp
        w[15] += 1
    w[1] += 1
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _check_field(w: cython.p_longlong, value: cython.longlong) -> cython.int:
    """One varint of a record that did not come in one piece; 0, or what is wrong with it."""
    field: cython.longlong = w[2]
    if field == 0:
        if value < 1:
            return 1
        w[5] = value
        w[6] = 1
    elif field == 1:
        w[13] = value
    elif field == 2:
        if value < 0 or value > 0x7FFFFFFF:
            return 1
        w[18] = value
    elif field == 5:
        if value < 0 or value > w[5]:
            return 1
        w[7] = value
        if value == 0:
            w[2] = 8
            return 0
    else:
        if value < -1 or value > w[5] or (field == 6 and value < 0):
            return 1
        if field == 3:
            w[14] = value >= 0
        if value > 0:
            w[6] = value
        if field == 7:
            w[7] -= 1
            w[2] = 6 if w[7] else 8
            return 0
    w[2] += 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_piece(
    p: cython.p_uchar, end: cython.Py_ssize_t, w: cython.p_longlong, f: cython.p_longlong, h: cython.p_longlong
) -> cython.int:
    """`check_records` without the interpreter: whole records at once, what the piece cuts field by field."""
    pos: cython.Py_ssize_t = 0
    after: cython.Py_ssize_t = 0
    step: cython.longlong = 0
    b: cython.ulonglong = 0
    bits: cython.ulonglong = 0
    fault: cython.int = 0
    while True:
        if w[6] > 0:
            step = end - pos
            if step == 0:
                return 0
            step = min(step, w[6])
            if step > w[5]:
                return 1
            pos += step
            w[6] -= step
            w[5] -= step
            continue
        if w[2] == 8:
            if w[5] != 0:
                return 1
            fault = _note_record(w, w[13], w[18], not w[14])
            if fault:
                return fault
            w[2] = 0
        if pos == end:
            return 0
        if w[2] == 0 and w[4] == 0:
            if w[1] == w[0]:
                return 4
            after = _record(p, pos, end, f, h)
            if after >= 0:
                fault = _note_record(w, f[0], f[1], f[3] < 0)
                if fault:
                    return fault
                pos = after
                continue
        b = p[pos]
        pos += 1
        if w[2] != 0:
            w[5] -= 1
            if w[5] < 0:
                return 1
        if w[4] == 63 and b > 1:
            return 1
        if cython.compiled:
            bits = cython.cast(cython.ulonglong, w[3]) | ((b & 0x7F) << w[4])
        else:
            bits = (w[3] & 0xFFFFFFFFFFFFFFFF) | ((b & 0x7F) << w[4])
        if b < 0x80:
            w[3] = 0
            w[4] = 0
            if cython.compiled:
                fault = _check_field(
                    w, cython.cast(cython.longlong, bits >> 1) ^ -cython.cast(cython.longlong, bits & 1)
                )
            else:
                fault = _check_field(w, (bits >> 1) ^ -(bits & 1))
            if fault:
                return fault
            continue
        if cython.compiled:
            w[3] = cython.cast(cython.longlong, bits)
        else:
            w[3] = bits if bits < 0x8000000000000000 else bits - 0x10000000000000000
        w[4] += 7
        if w[4] > (63 if w[2] == 1 else 28):
            return 1


def check_records(data: bytes | bytearray | memoryview, w: bytearray) -> int:
    """Check the next piece of a batch's records, however it cuts them, without building any.

    0 while all is well, else what is wrong with record `w[1]`: BROKEN, MISPLACED, BEYOND or TRAILING.
    """
    p: cython.p_uchar
    f: cython.longlong[8]
    h: cython.longlong[4]
    end: cython.Py_ssize_t = len(data)
    fault: cython.int = 0
    v: cython.p_longlong = _writable_longs(w, 320)
    if cython.compiled:
        p = _borrowed(data, end)
    else:
        p = data if type(data) is bytes else bytes(data)
        f = [0] * 8
        h = [0] * 4
    if end < 65536:
        fault = _check_piece(p, end, v, f, h)
    else:
        with cython.nogil:
            fault = _check_piece(p, end, v, f, h)
    return fault


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_whole(
    p: cython.p_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    n: cython.longlong,
    base: cython.longlong,
    largest: cython.longlong,
    f: cython.p_longlong,
    h: cython.p_longlong,
) -> cython.int:
    """Whether the `n` records that lie in one piece are sound and `largest` is their largest timestamp.

    0 when they are not, 1 when they are, 2 when they are and some lack a key.
    """
    i: cython.longlong = 0
    top: cython.longlong = _int64_max()
    most: cython.longlong = -1
    sound: cython.int = 1
    for i in range(n):
        pos = _record(p, pos, end, f, h)
        if pos < 0 or f[1] != i:
            return 0
        if f[0] > 0:
            if base > top - f[0]:
                return 0
        elif base < -(top + f[0]) - 1:
            return 0
        most = max(most, base + f[0])
        if f[3] < 0:
            sound = 2
    return sound if pos == end and most == largest else 0


# A producer's batch as it arrives: found in a request like one before it, its header read, its records looked at.
# (crc, last offset delta, max timestamp, producer id, producer epoch, sequence, codec, whether a record lacks a key)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_plain(p: cython.p_uchar, pos: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Whether the header at `pos` is of one batch of `size` bytes without anything special."""
    last: cython.longlong = 0
    length: cython.longlong = 0
    # A larger batch than two megabytes is no work for the loop's thread.
    if size < 61 or size > 0x200000 or p[pos + 16] != 2 or p[pos + 21] or p[pos + 22] > 4:
        return False
    length = _int32(p, pos + 8)
    last = _int32(p, pos + 23)
    return length + 12 == size and last >= 0 and _int32(p, pos + 57) == last + 1 and _int64(p, pos) == 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _crc_of(p: cython.p_uchar, pos: cython.Py_ssize_t) -> cython.longlong:
    """The checksum the header at `pos` claims."""
    claimed: cython.longlong = _int32(p, pos + 17)
    return claimed & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _int16(p: cython.p_uchar, pos: cython.Py_ssize_t) -> cython.int:
    high: cython.int = p[pos]
    return ((high - 256 if high > 127 else high) << 8) | p[pos + 1]


@cython.cfunc
@cython.inline
def _numbers(p: cython.p_uchar, pos: cython.Py_ssize_t, size: cython.Py_ssize_t, crc: cython.longlong) -> tuple | None:
    """What `plain_header` tells of the batch at `pos`; None when its records, which are not packed, are not sound."""
    f: cython.longlong[8]
    h: cython.longlong[4]
    sound: cython.int = 1
    codec: cython.int = p[pos + 22]
    if codec == 0:
        if not cython.compiled:
            f = [0] * 8
            h = [0] * 4
        sound = _check_whole(
            p, pos + 61, pos + size, _int32(p, pos + 57), _int64(p, pos + 27), _int64(p, pos + 35), f, h
        )
        if sound == 0:
            return None
    return (
        crc,
        _int32(p, pos + 23),
        _int64(p, pos + 35),
        _int64(p, pos + 43),
        _int16(p, pos + 51),
        _int32(p, pos + 53),
        codec,
        sound == 2,
    )


@cython.cfunc
@cython.inline
def _borrowed(buffer: object, size: cython.longlong) -> cython.p_uchar:
    """Where the bytes of a buffer of at least `size` bytes lie, which the caller holds; the cheap way to ask."""
    present: cython.Py_ssize_t = 0
    p: cython.p_uchar = cython.NULL if cython.compiled else None
    if cython.compiled:
        p = cython.cast(cython.p_uchar, borrowed_bytes(buffer, cython.address(present)))
        if present < size:
            raise ValueError("a request is longer than its buffer")
        return p
    else:  # noqa: RET505
        return _readable(buffer, size)


def plain_header(batch: memoryview) -> tuple | None:
    """(checksum, last offset delta, max timestamp, producer id, producer epoch, sequence, codec, whether a record lacks
    a key) of a batch without anything special: not transactional, no control batch, time of creation, at most two
    megabytes, its lengths and counts add up and, where they are not packed, so do its records. None otherwise.
    """
    p: cython.p_uchar = _borrowed(batch, 0)
    if not _is_plain(p, 0, len(batch)):
        return None
    return _numbers(p, 0, len(batch), _crc_of(p, 0))


def known_batch(view: memoryview, start: int, end: int, lengths: list, known: dict) -> tuple | None:
    """The one plain batch of the Produce request in `view[start:end]`, if it begins like one that is known.

    `known` has, under the request's bytes 2 to 4 (its version) and those from 8 to 8 + n (client id to partition),
    what such a request stands for; `lengths` has the n in use. Returns that, the correlation id, where the batch begins
    and ends, and what `plain_header` tells of it; a small batch was compared with its checksum, which is -1 then. None
    for everything else.
    """
    p: cython.p_uchar = _borrowed(view, end)
    begin: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = end
    pos: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t = 0
    version: cython.int = 0
    crc: cython.longlong = 0
    found: object = None
    header: object = None
    if stop - begin < 12 or p[begin] or p[begin + 1]:
        return None
    for length in lengths:
        pos = begin + 8 + length
        if pos + 4 > stop:
            continue
        if cython.compiled:
            found = known.get(p[begin + 2 : begin + 4] + p[begin + 8 : pos])
        else:
            found = known.get(bytes(p[begin + 2 : begin + 4]) + bytes(p[begin + 8 : pos]))
        if found is not None:
            break
    if found is None:
        return None
    version = _int16(p, begin + 2)
    if version >= 9:
        # A compact length of up to three bytes; behind the batch, no tagged fields of partition, topic and request.
        stop -= 3
        size = p[pos]
        pos += 1
        if size > 127:
            size += (p[pos] << 7) - 128
            pos += 1
            if size > 16383:
                size += (p[pos] << 14) - 16384
                pos += 1
                if size > 2097151:
                    return None
        size -= 1
        if pos + size != stop or p[stop] or p[stop + 1] or p[stop + 2]:
            return None
    else:
        size = _int32(p, pos)
        pos += 4
        if pos + size != stop:
            return None
    if not _is_plain(p, pos, size):
        return None
    crc = _crc_of(p, pos)
    if size <= 1024:
        if crc != _small_checksum(p, pos + 21, pos + size):
            return None
        crc = -1
    header = _numbers(p, pos, size, crc)
    if header is None:
        return None
    return found, _int32(p, begin + 4), pos, stop, header


@cython.cfunc
@cython.inline
def _small_checksum(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    if cython.compiled:
        if checksum_is_an_instruction():
            return checksum_by_instruction(p + pos, end - pos)
        return _checksum(p, pos, end, _crc_tables())
    else:  # noqa: RET505
        return _checksum(p, pos, end, None)


# Clients: one row per record with where it came from, and where a record goes by its key.


def blank(size: int) -> bytearray:
    """Room for `size` bytes about to be written; compiled, they have no defined value, so nothing is spent on it."""
    if size < 0:
        raise ValueError("there is no room of less than no bytes")
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:  # noqa: RET505
        return bytearray(size)


def decode_client_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    first_offset: int,
    kind: type,
    topic: str,
    partition: int,
    leader_epoch: int,
) -> list:
    """As `decode_records`, made whole for a consumer: named tuples of nine fields, none before `first_offset`.

    The fields are topic, partition, offset, timestamp, key, value, headers, timestamp type and leader epoch.
    """
    if not issubclass(kind, tuple) or kind.__itemsize__ == 0 or kind.__dictoffset__ != 0:
        raise TypeError("records are made as named tuples")
    p: cython.p_uchar
    f: cython.longlong[8]
    h: cython.longlong[4]
    view: cython.const[cython.uchar][::1]
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(data)
    n: cython.longlong = count
    i: cython.longlong = 0
    base: cython.longlong = base_offset
    wanted: cython.longlong = first_offset
    first_timestamp: cython.longlong = base_timestamp
    stamped: cython.bint = log_append_time is not None
    append_time: cython.longlong = log_append_time if stamped else 0
    timestamp: cython.longlong = 0
    shared_timestamp: cython.longlong = 0
    stamp: object = 0
    offset: object = 0
    key: object = None
    value: object = None
    headers: object = ()
    none: object = ()
    where: object = partition
    stamp_type: object = 1 if stamped else 0
    epoch: object = leader_epoch
    records: list = []
    if cython.compiled:
        view = data
        p = cython.cast(cython.p_uchar, cython.address(view[0])) if end else cython.NULL
    else:
        p = data if type(data) is bytes else bytes(data)
        f = [0] * 8
        h = [0] * 4
    for i in range(n):
        pos = _record(p, pos, end, f, h)
        if pos < 0:
            raise _corrupt(i, n)
        if not _sums_fit(f, base, first_timestamp):
            raise _beyond(i)
        if base + f[1] < wanted:
            continue
        timestamp = append_time if stamped else first_timestamp + f[0]
        if timestamp != shared_timestamp:
            shared_timestamp = timestamp
            stamp = timestamp
        offset = base + f[1]
        key = None if f[3] < 0 else p[f[2] : f[2] + f[3]]
        value = None if f[5] < 0 else p[f[4] : f[4] + f[5]]
        headers = none if f[7] == 0 else _decode_headers(p, f[6], pos, f[7])
        if cython.compiled:
            row = PyType_GenericAlloc(cython.cast(type, kind), 9)
            Py_INCREF(topic)
            PyTuple_SET_ITEM(row, 0, topic)
            Py_INCREF(where)
            PyTuple_SET_ITEM(row, 1, where)
            Py_INCREF(offset)
            PyTuple_SET_ITEM(row, 2, offset)
            Py_INCREF(stamp)
            PyTuple_SET_ITEM(row, 3, stamp)
            Py_INCREF(key)
            PyTuple_SET_ITEM(row, 4, key)
            Py_INCREF(value)
            PyTuple_SET_ITEM(row, 5, value)
            Py_INCREF(headers)
            PyTuple_SET_ITEM(row, 6, headers)
            Py_INCREF(stamp_type)
            PyTuple_SET_ITEM(row, 7, stamp_type)
            Py_INCREF(epoch)
            PyTuple_SET_ITEM(row, 8, epoch)
            PyObject_GC_UnTrack(row)
        else:
            row = tuple.__new__(kind, (topic, where, offset, stamp, key, value, headers, stamp_type, epoch))
        records.append(row)
    if pos != end:
        raise _trailing(n, end - pos)
    return records


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
    key: bytes = _bytes_of(data)
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
    f: cython.longlong[2]
    bits: cython.p_uchar = _readable(b"", 0)
    first: cython.longlong = keys[3]
    has_nulls: cython.bint = keys[0] is not None
    capacity: cython.longlong = len(keys[2])
    if n < 0 or partitions < 1 or first < 0:
        raise ValueError("an Arrow column begins before its buffers")
    offsets: cython.p_int = _ints(keys[1], first + n + 1)
    data: cython.p_uchar = _readable(keys[2], 0)
    placed: cython.p_int = _writable_ints(out, n)
    count: cython.p_longlong = _writable_longs(counts, partitions)
    fits: cython.bint = True
    if has_nulls:
        bits = _readable(keys[0], (first + n + 7) // 8)
    if not cython.compiled:
        f = [0] * 2
    with cython.nogil:
        for i in range(n):
            if has_nulls and _is_null(bits, first + i):
                placed[i] = -1
                nulls += 1
                continue
            fits = _cell(offsets, first + i, capacity, f)
            if not fits:
                break
            chosen = (_murmur2(data, f[0], f[1]) & 0x7FFFFFFF) % among
            placed[i] = chosen
            count[chosen] += 1
    if not fits:
        raise ValueError("the offsets of an Arrow column lie")
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
    p: cython.p_int = _writable_ints(placed, n)
    s: cython.p_longlong = _writable_longs(starts, partitions)
    o: cython.p_longlong = _writable_longs(order, n)
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
