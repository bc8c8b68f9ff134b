# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share
"""Produced batches as they arrive: located in the request, the header read, the records checked.

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in produce.pyi.
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
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _note_record(
    w: cython.p_longlong, delta: cython.longlong, offset_delta: cython.longlong, keyless: cython.bint
) -> cython.int:
    """Take a sound record into account; 0, or what is wrong with its place."""
    base: cython.longlong = w[BASE_TIMESTAMP]
    at: cython.longlong = 0
    timestamp: cython.longlong = 0
    if w[CONSECUTIVE] and offset_delta != w[DONE]:
        return MISPLACED
    if w[STAMPED]:
        delta = 0
    if not timestamp_fits(base, delta):
        return BEYOND
    timestamp = base + delta
    w[LARGEST_TIMESTAMP] = max(w[LARGEST_TIMESTAMP], timestamp)
    # Timestamp -1 stands for none and is always allowed.
    if offset_delta >= w[FIRST_NOTED_DELTA] and (
        (keyless and w[KEYED]) or (timestamp != -1 and (timestamp < w[OLDEST] or timestamp > w[NEWEST]))
    ):
        if w[NOTED] < NOTED_MAX:
            at = NOTES_AT + NOTE_WORDS * w[NOTED]
            w[at] = offset_delta
            w[at + 1] = 0 if keyless and w[KEYED] else 1
            w[at + 2] = timestamp
        w[NOTED] += 1
    w[DONE] += 1
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _check_field(w: cython.p_longlong, value: cython.longlong) -> cython.int:
    """One varint of a record that did not come in one piece; 0, or what is wrong with it."""
    field: cython.longlong = w[FIELD]
    if field == SIZE_FIELD:
        if value < 1:
            return BROKEN
        w[LEFT] = value
        w[SKIP] = 1
    elif field == TIMESTAMP_FIELD:
        w[CUT_TIMESTAMP_DELTA] = value
    elif field == OFFSET_FIELD:
        if value < 0 or value > 0x7FFFFFFF:
            return BROKEN
        w[CUT_OFFSET_DELTA] = value
    elif field == HEADER_COUNT_FIELD:
        if value < 0 or value > w[LEFT]:
            return BROKEN
        w[HEADERS_LEFT] = value
        if value == 0:
            w[FIELD] = RECORD_END
            return 0
    else:
        if value < -1 or value > w[LEFT] or (field == NAME_FIELD and value < 0):
            return BROKEN
        if field == KEY_FIELD:
            w[CUT_HAS_KEY] = value >= 0
        if value > 0:
            w[SKIP] = value
        if field == HEADER_VALUE_FIELD:
            w[HEADERS_LEFT] -= 1
            w[FIELD] = NAME_FIELD if w[HEADERS_LEFT] else RECORD_END
            return 0
    w[FIELD] += 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_piece(
    p: cython.p_uchar,
    end: cython.Py_ssize_t,
    w: cython.p_longlong,
    fields: cython.p_longlong,
    header: cython.p_longlong,
) -> cython.int:
    """`check_records` without the interpreter: whole records at once, what the piece cuts field by field."""
    pos: cython.Py_ssize_t = 0
    after: cython.Py_ssize_t = 0
    step: cython.longlong = 0
    b: cython.ulonglong = 0
    bits: cython.ulonglong = 0
    fault: cython.int = 0
    while True:
        if w[SKIP] > 0:
            step = end - pos
            if step == 0:
                return 0
            step = min(step, w[SKIP])
            if step > w[LEFT]:
                return BROKEN
            pos += step
            w[SKIP] -= step
            w[LEFT] -= step
            continue
        if w[FIELD] == RECORD_END:
            if w[LEFT] != 0:
                return BROKEN
            fault = _note_record(w, w[CUT_TIMESTAMP_DELTA], w[CUT_OFFSET_DELTA], not w[CUT_HAS_KEY])
            if fault:
                return fault
            w[FIELD] = SIZE_FIELD
        if pos == end:
            return 0
        # At the start of a record: the fast parser takes it if it lies completely in this piece.
        if w[FIELD] == SIZE_FIELD and w[SHIFT] == 0:
            if w[DONE] == w[COUNT]:
                return TRAILING
            after = read_record(p, pos, end, fields, header)
            if after >= 0:
                fault = _note_record(w, fields[TIMESTAMP_DELTA], fields[OFFSET_DELTA], fields[KEY_SIZE] < 0)
                if fault:
                    return fault
                pos = after
                continue
        # Cut by the end of the piece, or broken: one byte of the varint at hand.
        b = p[pos]
        pos += 1
        if w[FIELD] != SIZE_FIELD:  # the size does not count itself
            w[LEFT] -= 1
            if w[LEFT] < 0:
                return BROKEN
        if w[SHIFT] == 63 and b > 1:
            return BROKEN
        if cython.compiled:
            bits = cython.cast(cython.ulonglong, w[BITS]) | ((b & 0x7F) << w[SHIFT])
        else:
            bits = (w[BITS] & 0xFFFFFFFFFFFFFFFF) | ((b & 0x7F) << w[SHIFT])
        if b < 0x80:
            w[BITS] = 0
            w[SHIFT] = 0
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
            w[BITS] = cython.cast(cython.longlong, bits)
        else:
            w[BITS] = bits if bits < 0x8000000000000000 else bits - 0x10000000000000000
        w[SHIFT] += 7
        if w[SHIFT] > (63 if w[FIELD] == TIMESTAMP_FIELD else 28):
            return BROKEN


def check_records(data: bytes | bytearray | memoryview, w: bytearray) -> int:
    """Check the next piece of a batch's records, however it cuts them, without building any.

    0 while all is well, else what is wrong with record `w[DONE]`: BROKEN, MISPLACED, BEYOND or TRAILING.
    """
    p: cython.p_uchar
    fields: cython.longlong[8]
    header: cython.longlong[4]
    end: cython.Py_ssize_t = len(data)
    fault: cython.int = 0
    v: cython.p_longlong = writable_longs(w, CHECK_WORDS)
    if cython.compiled:
        p = readable(data, end)
    else:
        p = data if type(data) is bytes else bytes(data)
        fields = [0] * RECORD_FIELDS
        header = [0] * HEADER_FIELDS
    if end < UNLOCKED_BYTES_MIN:
        fault = _check_piece(p, end, v, fields, header)
    else:
        with cython.nogil:
            fault = _check_piece(p, end, v, fields, header)
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
    fields: cython.p_longlong,
    header: cython.p_longlong,
) -> cython.int:
    """Whether the `n` records that lie in one piece are sound and `largest` is their largest timestamp.

    0 when they are not, 1 when they are, 2 when they are and some lack a key.
    """
    i: cython.longlong = 0
    most: cython.longlong = -1
    sound: cython.int = 1
    for i in range(n):
        pos = read_record(p, pos, end, fields, header)
        if pos < 0 or fields[OFFSET_DELTA] != i:
            return 0
        if not timestamp_fits(base, fields[TIMESTAMP_DELTA]):
            return 0
        most = max(most, base + fields[TIMESTAMP_DELTA])
        if fields[KEY_SIZE] < 0:
            sound = 2
    return sound if pos == end and most == largest else 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_plain(p: cython.p_uchar, pos: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Whether the header at `pos` is that of a plain batch of `size` bytes: not transactional, no control batch."""
    last: cython.longlong = 0
    length: cython.longlong = 0
    # A larger batch than two megabytes is no work for the loop's thread.
    if (
        size < 61
        or size > 0x200000
        or p[pos + MAGIC_AT] != 2
        or p[pos + ATTRIBUTES_AT]
        or p[pos + ATTRIBUTES_LOW_AT] > 4
    ):
        return False
    length = read_int32(p, pos + BATCH_LENGTH_AT)
    last = read_int32(p, pos + LAST_OFFSET_DELTA_AT)
    return (
        length + 12 == size
        and last >= 0
        and read_int32(p, pos + RECORD_COUNT_AT) == last + 1
        and read_int64(p, pos) == 0
    )


@cython.cfunc
@cython.inline
def _numbers(p: cython.p_uchar, pos: cython.Py_ssize_t, size: cython.Py_ssize_t, crc: cython.longlong) -> tuple | None:
    """What `plain_header` returns for the batch at `pos`; None when its uncompressed records are not sound."""
    fields: cython.longlong[8]
    header: cython.longlong[4]
    sound: cython.int = 1
    codec: cython.int = p[pos + ATTRIBUTES_LOW_AT]
    if codec == 0:
        if not cython.compiled:
            fields = [0] * RECORD_FIELDS
            header = [0] * HEADER_FIELDS
        sound = _check_whole(
            p,
            pos + RECORDS_AT,
            pos + size,
            read_int32(p, pos + RECORD_COUNT_AT),
            read_int64(p, pos + BASE_TIMESTAMP_AT),
            read_int64(p, pos + MAX_TIMESTAMP_AT),
            fields,
            header,
        )
        if sound == 0:
            return None
    return (
        crc,
        read_int32(p, pos + LAST_OFFSET_DELTA_AT),
        read_int64(p, pos + MAX_TIMESTAMP_AT),
        read_int64(p, pos + PRODUCER_ID_AT),
        read_int16(p, pos + PRODUCER_EPOCH_AT),
        read_int32(p, pos + BASE_SEQUENCE_AT),
        codec,
        sound == 2,
    )


def plain_header(batch: memoryview) -> tuple | None:
    """(checksum, last offset delta, max timestamp, producer id, producer epoch, sequence, codec, whether a record lacks
    a key) of a batch without anything special: not transactional, no control batch, time of creation, at most two
    megabytes, its lengths and counts add up and, where they are not packed, so do its records. None otherwise.
    """
    p: cython.p_uchar = readable(batch, 0)
    if not _is_plain(p, 0, len(batch)):
        return None
    return _numbers(p, 0, len(batch), claimed_checksum(p, 0))


def known_batch(view: memoryview, start: int, end: int, lengths: list, known: dict) -> tuple | None:
    """The one plain batch of the Produce request in `view[start:end]`, if it begins like one that is known.

    `known` has, under the request's bytes 2 to 4 (its version) and those from 8 to 8 + n (client id to partition),
    what such a request stands for; `lengths` has the n in use. Returns that, the correlation id, where the batch begins
    and ends, and what `plain_header` tells of it; a small batch was compared with its checksum, which is -1 then. None
    for everything else.
    """
    p: cython.p_uchar = readable(view, end)
    begin: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = end
    pos: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t = 0
    version: cython.int = 0
    crc: cython.longlong = 0
    entry: object = None
    header: object = None
    # API key 0 is Produce.
    if stop - begin < 12 or p[begin] or p[begin + 1]:
        return None
    for length in lengths:
        pos = begin + 8 + length
        if pos + 4 > stop:
            continue
        if cython.compiled:
            entry = known.get(p[begin + 2 : begin + 4] + p[begin + 8 : pos])
        else:
            entry = known.get(bytes(p[begin + 2 : begin + 4]) + bytes(p[begin + 8 : pos]))
        if entry is not None:
            break
    if entry is None:
        return None
    version = read_int16(p, begin + 2)
    if version >= 9:
        # A compact length of up to three bytes; behind the batch, no tagged fields of partition, topic and request.
        stop -= 3
        size = p[pos]
        pos += 1
        if size > 127:
            # The subtraction removes the continuation bit of the byte before.
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
        size = read_int32(p, pos)
        pos += 4
        if pos + size != stop:
            return None
    if not _is_plain(p, pos, size):
        return None
    crc = claimed_checksum(p, pos)
    # A small checksum costs less here than a call from Python; a larger one is compared by the caller.
    if size <= 1024:
        if crc != checksum(p, pos + ATTRIBUTES_AT, pos + size):
            return None
        crc = -1
    header = _numbers(p, pos, size, crc)
    if header is None:
        return None
    return entry, read_int32(p, begin + 4), pos, stop, header
