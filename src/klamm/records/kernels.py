# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Everything done once per record, kept apart because it is compiled.

The install compiles this file with Cython; the same file runs as plain Python where it was not. Both forms give equal
results, and both treat the bytes as hostile: a length is compared with the bytes that are left before anything is read
or allocated, and whatever does not add up is CorruptBatch.

A record is: varint size, then attributes i8 · varlong timestamp delta · varint offset delta · varint key length, key ·
varint value length, value · varint header count, and per header varint key length, key · varint value length, value.
Varints are zig-zag; length -1 is null.
"""

from __future__ import annotations

from klamm.model.errors import CorruptBatch

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
        name = p[f[0] : f[0] + f[1]].decode("utf-8", "surrogateescape")
        value = None if f[3] < 0 else p[f[2] : f[2] + f[3]]
        headers.append((name, value))
    return tuple(headers)


def decode_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None = None,
) -> list:
    """The `count` records that fill `data`, as (offset, timestamp, key, value, headers) tuples.

    `log_append_time`, when given, is every record's timestamp: the batch was stamped as a whole.
    """
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
    timestamp: cython.longlong = 0
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
        if f[1] > 0x7FFFFFFFFFFFFFFF - first_offset:
            raise _beyond(i)
        if stamped:
            timestamp = log_append_time
        elif f[0] > 0:
            if first_timestamp > 0x7FFFFFFFFFFFFFFF - f[0]:
                raise _beyond(i)
            timestamp = first_timestamp + f[0]
        else:
            if first_timestamp < -0x8000000000000000 - f[0]:
                raise _beyond(i)
            timestamp = first_timestamp + f[0]
        records.append(
            (
                first_offset + f[1],
                timestamp,
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


def _header_pairs(headers: object) -> list:
    """Headers as (bytes, bytes or None) pairs, whichever of the usual forms the caller uses."""
    pairs: list = []
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else _bytes_of(name)
        pairs.append((raw, None if value is None else _bytes_of(value)))
    return pairs


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
    records: list, base_timestamp: int, prefix: int = 0, offset_deltas: list[int] | None = None
) -> tuple[bytearray, int]:
    """Encode (timestamp, key, value, headers) tuples after `prefix` bytes left for the caller's header.

    Returns the buffer and the largest timestamp. Offset deltas count from 0 unless they are given.
    """
    q: cython.p_uchar = cython.NULL if cython.compiled else None
    rows: list = records if type(records) is list else list(records)
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
    name_len: cython.Py_ssize_t = 0
    header_count: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = prefix + 256
    key: bytes = b""
    value: bytes = b""
    name: bytes = b""
    pairs: list = []
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
        if (first_timestamp < 0 and timestamp > 0x7FFFFFFFFFFFFFFF + first_timestamp) or (
            first_timestamp > 0 and timestamp < -0x8000000000000000 + first_timestamp
        ):
            raise OverflowError("a timestamp lies too far from the base timestamp")
        delta = timestamp - first_timestamp
        offset_delta = i if offset_deltas is None else offset_deltas[i]
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
            for name, raw_value in pairs:
                name_len = len(name)
                size += _varint_size(name_len) + name_len
                if raw_value is None:
                    size += 1
                else:
                    name_len = len(raw_value)
                    size += _varint_size(name_len) + name_len
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
            for name, raw_value in pairs:
                pos = _put_span(q, pos, name, len(name))
                value = _bytes_of(raw_value)
                pos = _put_span(q, pos, value, -1 if raw_value is None else len(value))
        i += 1
    return _resized(out, pos), largest
