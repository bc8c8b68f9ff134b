# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share; some C names have no Python form
"""Batches to rows: the records of a batch as tuples, for readers of logs and for consumers.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in decode.pyi.
"""

from __future__ import annotations

from klamm.model.errors import CorruptBatch
from klamm.records.kernels.errors import beyond_64_bits, corrupt_record, trailing_bytes

try:
    import cython
except ImportError:
    from klamm.records.kernels import cython_shadow as cython

if cython.compiled:
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM
    from cython.cimports.klamm.records.kernels.layout import *
    from cython.cimports.klamm.records.kernels.primitives import *
else:
    from klamm.records.kernels.layout import *
    from klamm.records.kernels.primitives import *

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""


@cython.cfunc
def _decode_headers(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong) -> tuple:
    """The headers of a record that `read_record` accepted, as (name, value or None) pairs."""
    i: cython.longlong = 0
    header: cython.longlong[4]
    if not cython.compiled:
        header = [0] * HEADER_FIELDS
    headers: list = []
    for i in range(count):  # noqa: B007
        pos = read_header(p, pos, end, header)
        if pos < 0:
            # Not reached by sound callers: another thread wrote into the buffer after `read_record` had passed.
            raise CorruptBatch("a record changed while it was read")
        # surrogateescape: names that are not UTF-8 survive a round trip byte for byte.
        name = p[header[NAME_AT] : header[NAME_AT] + header[NAME_SIZE]].decode("utf-8", "surrogateescape")
        value = (
            None
            if header[HEADER_VALUE_SIZE] < 0
            else p[header[HEADER_VALUE_AT] : header[HEADER_VALUE_AT] + header[HEADER_VALUE_SIZE]]
        )
        headers.append((name, value))
    return tuple(headers)


@cython.cfunc
def _row(kind: object, offset: object, timestamp: object, key: object, value: object, headers: tuple) -> object:
    """One decoded record."""
    if cython.compiled:
        if kind is None:
            row = (offset, timestamp, key, value, headers)
        else:
            # As tuple.__new__ does it, without building a tuple of arguments first. `kind` was checked by the caller.
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
        # Its parts are bytes and integers, so it is in no cycle: the garbage collector need not visit millions of them.
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
    # PyTuple_SET_ITEM writes without checks: only the layout of a plain tuple is safe.
    if kind is not None and (not issubclass(kind, tuple) or kind.__itemsize__ == 0 or kind.__dictoffset__ != 0):
        raise TypeError("records are made as named tuples")
    p: cython.p_uchar
    fields: cython.longlong[8]
    header: cython.longlong[4]
    held: object = memoryview(data)  # while it lives, a bytearray cannot be resized under the pointer
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
        p = readable(held, 0)
    else:
        p = data if type(data) is bytes else bytes(data)
        fields = [0] * RECORD_FIELDS
        header = [0] * HEADER_FIELDS
    for i in range(n):
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            raise corrupt_record(i, n)
        if not sums_fit(fields, first_offset, first_timestamp):
            raise beyond_64_bits(i)
        timestamp = append_time if stamped else first_timestamp + fields[TIMESTAMP_DELTA]
        if timestamp != shared_timestamp:  # neighbours mostly share a millisecond: one integer object serves them
            shared_timestamp = timestamp
            stamp = timestamp
        records.append(
            _row(
                kind,
                first_offset + fields[OFFSET_DELTA],
                stamp,
                None if fields[KEY_SIZE] < 0 else p[fields[KEY_AT] : fields[KEY_AT] + fields[KEY_SIZE]],
                None if fields[VALUE_SIZE] < 0 else p[fields[VALUE_AT] : fields[VALUE_AT] + fields[VALUE_SIZE]],
                () if fields[HEADER_COUNT] == 0 else _decode_headers(p, fields[HEADERS_AT], pos, fields[HEADER_COUNT]),
            )
        )
    if pos != end:
        raise trailing_bytes(n, end - pos)
    return records


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
    """As `decode_records` for a consumer: named tuples of nine fields, none before `first_offset`.

    The fields are topic, partition, offset, timestamp, key, value, headers, timestamp type and leader epoch.
    """
    if not issubclass(kind, tuple) or kind.__itemsize__ == 0 or kind.__dictoffset__ != 0:
        raise TypeError("records are made as named tuples")
    p: cython.p_uchar
    fields: cython.longlong[8]
    header: cython.longlong[4]
    held: object = memoryview(data)  # while it lives, a bytearray cannot be resized under the pointer
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
    position: cython.longlong = 0
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
        p = readable(held, 0)
    else:
        p = data if type(data) is bytes else bytes(data)
        fields = [0] * RECORD_FIELDS
        header = [0] * HEADER_FIELDS
    for i in range(n):
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            raise corrupt_record(i, n)
        if not sums_fit(fields, base, first_timestamp):
            raise beyond_64_bits(i)
        position = base + fields[OFFSET_DELTA]
        if position < wanted:  # a fetch returns the complete batch that contains its offset
            continue
        timestamp = append_time if stamped else first_timestamp + fields[TIMESTAMP_DELTA]
        if timestamp != shared_timestamp:
            shared_timestamp = timestamp
            stamp = timestamp
        offset = position
        key = None if fields[KEY_SIZE] < 0 else p[fields[KEY_AT] : fields[KEY_AT] + fields[KEY_SIZE]]
        value = None if fields[VALUE_SIZE] < 0 else p[fields[VALUE_AT] : fields[VALUE_AT] + fields[VALUE_SIZE]]
        headers = (
            none if fields[HEADER_COUNT] == 0 else _decode_headers(p, fields[HEADERS_AT], pos, fields[HEADER_COUNT])
        )
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
        raise trailing_bytes(n, end - pos)
    return records
