# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405, SIM102, SIM108, SIM113 - names that kernels share; C loops read better spelt out
"""Rows and Arrow columns to batches: records encoded behind the room for the batch's header.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in encode.pyi.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from klamm.records.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.klamm.records.kernels.layout import *
    from cython.cimports.klamm.records.kernels.primitives import *
    from cython.cimports.libc.string import memcpy
else:
    from klamm.records.kernels.layout import *
    from klamm.records.kernels.primitives import *

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""


@cython.cfunc
@cython.inline
def _write_bytes(q: cython.p_uchar, pos: cython.Py_ssize_t, data: bytes, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """As `write_span`, for the content of a bytes object."""
    pos = write_varint(q, pos, size)
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
        size += varint_size(len(name)) + len(name) + len(value)
        size += varint_size(-1 if raw_value is None else len(value))
    return size


@cython.cfunc
def _write_headers(q: cython.p_uchar, pos: cython.Py_ssize_t, pairs: list) -> cython.Py_ssize_t:
    name: bytes
    value: bytes
    for name, raw_value in pairs:
        pos = _write_bytes(q, pos, name, len(name))
        value = _bytes_of(raw_value)
        pos = _write_bytes(q, pos, value, -1 if raw_value is None else len(value))
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
        # Compiled, the assignment above has raised already.
        if not cython.compiled and not -0x8000000000000000 <= timestamp <= 0x7FFFFFFFFFFFFFFF:
            raise OverflowError("a timestamp is 64 bits wide")
        if i == 0 or timestamp > largest:
            largest = timestamp
        if not distance_fits(timestamp, first_timestamp):
            raise OverflowError("a timestamp lies too far from the base timestamp")
        delta = timestamp - first_timestamp
        offset_delta = deltas[i] if given_deltas else i
        key = _bytes_of(raw_key)
        key_len = -1 if raw_key is None else len(key)
        value = _bytes_of(raw_value)
        value_len = -1 if raw_value is None else len(value)
        size = 1 + varint_size(delta) + varint_size(offset_delta) + varint_size(key_len) + varint_size(value_len)
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
        size += varint_size(header_count)
        if size > 0x7FFFFFFF:
            raise OverflowError("a record is at most 2 GB")
        if pos + size + 5 > capacity:  # five bytes for the size itself
            if i == 0:
                # Records of one batch are mostly of one size: the first one shows how many bytes all need.
                capacity = pos + (size + 8) * len(rows)
            else:
                capacity = pos + size + 5 + capacity // 2
            out = _resized(out, capacity)
            if cython.compiled:
                q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))  # resizing may have moved it
        pos = write_varint(q, pos, size)
        q[pos] = 0
        pos = write_varint(q, pos + 1, delta)
        pos = write_varint(q, pos, offset_delta)
        pos = _write_bytes(q, pos, key, key_len)
        pos = _write_bytes(q, pos, value, value_len)
        pos = write_varint(q, pos, header_count)
        if header_count:
            pos = _write_headers(q, pos, pairs)
        i += 1
    return _resized(out, pos), largest


@cython.cfunc
def _cells(column: tuple, first: cython.longlong, rows: cython.longlong) -> list:
    """`rows` values of a binary column from `first` as bytes or None; for headers, of which there are few."""
    cell: cython.longlong[2]
    if not cython.compiled:
        cell = [0] * CELL_FIELDS
    validity, offsets_buffer, data, _ = column
    offsets: cython.p_int = readable_ints(offsets_buffer, first + rows + 1)
    bits: cython.p_uchar = readable(b"" if validity is None else validity, 0)
    p: cython.p_uchar = readable(data, 0)
    capacity: cython.longlong = len(data)
    has_nulls: cython.bint = validity is not None
    i: cython.longlong = 0
    cells: list = []
    if has_nulls:
        readable(validity, (first + rows + 7) // 8)
    for i in range(first, first + rows):
        if has_nulls and is_null(bits, i):
            cells.append(None)
            continue
        if not read_cell(offsets, i, capacity, cell):
            raise ValueError("the offsets of an Arrow column leave its data")
        if cython.compiled:
            cells.append(p[cell[CELL_AT] : cell[CELL_AT] + cell[CELL_SIZE]])
        else:
            cells.append(bytes(p[cell[CELL_AT] : cell[CELL_AT] + cell[CELL_SIZE]]))
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
    key: cython.longlong[2]
    value: cython.longlong[2]
    headers_cell: cython.longlong[2]
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
    key_bits: cython.p_uchar = readable(b"", 0)
    key_offsets: cython.p_int = readable_ints(b"", 0)
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
        key_offsets = readable_ints(keys[1], key_first + n + 1)
        key_data = readable(keys[2], 0)
        key_capacity = len(keys[2])
        key_nulls = keys[0] is not None
        if key_nulls:
            key_bits = readable(keys[0], (key_first + n + 7) // 8)
    if has_values:
        value_first = values[3]
        value_offsets = readable_ints(values[1], value_first + n + 1)
        value_data = readable(values[2], 0)
        value_capacity = len(values[2])
        value_nulls = values[0] is not None
        if value_nulls:
            value_bits = readable(values[0], (value_first + n + 7) // 8)
    if has_headers:
        list_first = headers[4]
        list_offsets = readable_ints(headers[1], list_first + n + 1)
        list_nulls = headers[0] is not None
        if list_nulls:
            list_bits = readable(headers[0], (list_first + n + 7) // 8)
    stamps: cython.p_longlong = readable_longs(timestamps, n)
    if cython.compiled:
        out: bytearray = reused if capacity == len(reused) else PyByteArray_FromStringAndSize(cython.NULL, capacity)
        q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
    else:
        key, value, headers_cell = [0] * CELL_FIELDS, [0] * CELL_FIELDS, [0] * CELL_FIELDS
        q = out = reused if capacity == len(reused) else bytearray(capacity)
    for i in range(n):
        timestamp = stamps[i]
        if i == 0 or timestamp > largest:
            largest = timestamp
        if not distance_fits(timestamp, first_timestamp):
            raise OverflowError("a timestamp lies too far from the base timestamp")
        delta = timestamp - first_timestamp
        key[CELL_AT] = value[CELL_AT] = 0
        key[CELL_SIZE] = value[CELL_SIZE] = -1
        if has_keys and not (key_nulls and is_null(key_bits, key_first + i)):
            if not read_cell(key_offsets, key_first + i, key_capacity, key):
                raise ValueError("the offsets of an Arrow column leave its data")
        if has_values and not (value_nulls and is_null(value_bits, value_first + i)):
            if not read_cell(value_offsets, value_first + i, value_capacity, value):
                raise ValueError("the offsets of an Arrow column leave its data")
        size = 1 + varint_size(delta) + varint_size(i) + varint_size(value[CELL_SIZE]) + varint_size(key[CELL_SIZE])
        if value[CELL_SIZE] > 0:
            size += value[CELL_SIZE]
        if key[CELL_SIZE] > 0:
            size += key[CELL_SIZE]
        header_count = 0
        if has_headers and not (list_nulls and is_null(list_bits, list_first + i)):
            if not read_cell(list_offsets, list_first + i, 0x7FFFFFFF, headers_cell):
                raise ValueError("the offsets of an Arrow column leave its data")
            if headers_cell[CELL_SIZE]:
                pairs = _column_headers(headers, headers_cell[CELL_AT], headers_cell[CELL_SIZE])
                header_count = headers_cell[CELL_SIZE]
                size += _headers_size(pairs)
        size += varint_size(header_count)
        if size > 0x7FFFFFFF:
            raise OverflowError("a record is at most 2 GB")
        if pos + size + 5 > capacity:
            if i == 0:
                capacity = pos + (size + 8) * n
            else:
                capacity = pos + size + 5 + capacity // 2
            out = _resized(out, capacity)
            if cython.compiled:
                q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))  # resizing may have moved it
        pos = write_varint(q, pos, size)
        q[pos] = 0
        pos = write_varint(q, pos + 1, delta)
        pos = write_varint(q, pos, i)
        pos = write_span(q, pos, key_data, key[CELL_AT], key[CELL_SIZE])
        pos = write_span(q, pos, value_data, value[CELL_AT], value[CELL_SIZE])
        pos = write_varint(q, pos, header_count)
        if header_count:
            pos = _write_headers(q, pos, pairs)
    return _resized(out, pos), largest
