# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405, F821 - the names that kernels share; C arrays are only declared
"""Compaction: two passes over the bytes of a log, many batches per call.

The first notes the newest offset of every key in a table, the second copies what is still newest. Both run without the
interpreter's lock, so that the loop's thread goes on meanwhile, and stop at a batch that is not plain (compressed,
transactional, control), which is left to the caller. What they share is in an array `w` that the caller carries from
call to call (`layout`: INPUT_AT and following).

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in compaction.pyi.
"""

from __future__ import annotations

from hashlib import blake2b

from klamm.model.errors import CorruptBatch
from klamm.records.kernels.errors import beyond_64_bits, corrupt_record, trailing_bytes

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
    """128 bits of a key under a secret, so that keys cannot be chosen to collide: SipHash-2-4, in Python BLAKE2."""
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
        # The last block of SipHash: what is left of the key, and its length in the highest byte.
        m = cython.cast(cython.ulonglong, size & 255) << 56
        for i in range(left):
            m |= cython.cast(cython.ulonglong, p[pos + i]) << (8 * i)
        v[3] ^= m
        _sip_round(v)
        _sip_round(v)
        v[0] ^= m
        # 0xEE here and 0xDD below make the 128-bit variant.
        v[2] ^= 0xEE
        for i in range(4):  # noqa: B007
            _sip_round(v)
        out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
        v[1] ^= 0xDD
        for i in range(4):  # noqa: B007
            _sip_round(v)
        out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]
    else:
        digest = blake2b(p[pos : pos + size], digest_size=16, key=seed.tobytes()).digest()
        out[0], out[1] = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot(t: cython.p_ulonglong, slots: cython.ulonglong, key: cython.p_ulonglong) -> cython.Py_ssize_t:
    """Where a key's slot begins in the table: its own, or the free one that would be. There always is a free one."""
    slot: cython.ulonglong = key[0] % slots  # linear probing; the caller keeps at least one slot free
    while t[KEY_WORDS * slot + KEY_OFFSET] != 0 and (
        t[KEY_WORDS * slot + KEY_HASH] != key[0] or t[KEY_WORDS * slot + KEY_HASH_2] != key[1]
    ):
        slot += 1
        if slot == slots:
            slot = 0
    return KEY_WORDS * slot


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
    fields: cython.p_longlong,
    header: cython.p_longlong,
    key: cython.p_ulonglong,
) -> cython.int:
    """Note the keys of one batch's records; END, FULL or DAMAGED."""
    i: cython.longlong = 0
    at: cython.Py_ssize_t = 0
    for i in range(count):  # noqa: B007
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            return DAMAGED
        if fields[KEY_SIZE] >= 0 and base_offset + fields[OFFSET_DELTA] >= first_offset:
            _hash_key(p, fields[KEY_AT], fields[KEY_SIZE], seed, key)
            at = _slot(t, slots, key)
            if t[at + KEY_OFFSET] == 0:
                if w[SLOTS_USED] >= limit:
                    return FULL
                t[at + KEY_HASH] = key[0]
                t[at + KEY_HASH_2] = key[1]
                w[SLOTS_USED] += 1
            # One more than the offset, since 0 marks a free slot. Later records overwrite: batches come in log order.
            t[at + KEY_OFFSET] = base_offset + fields[OFFSET_DELTA] + 1
        w[RECORDS_READ] += 1
    return END if pos == end else DAMAGED


def map_keys(
    data: bytes | bytearray | memoryview,
    first_offset: int,
    table: bytearray,
    limit: int,
    seed: bytes,
    w: bytearray,
) -> int:
    """Note the newest offset, from `first_offset` on, of every key in the plain batches from position w[INPUT_AT] on.

    At most `limit` keys go into the table. Returns why it stopped; w[INPUT_AT] is where.
    """
    p: cython.p_uchar = readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    pos: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    t: cython.p_ulonglong = writable_words(table, KEY_WORDS)
    slots: cython.ulonglong = len(table) // (8 * KEY_WORDS)
    s: cython.p_ulonglong = readable_words(seed, 4)
    v: cython.p_longlong = writable_longs(w, PASS_WORDS)
    first: cython.longlong = first_offset
    most: cython.longlong = limit
    reason: cython.int = 0
    fields: cython.longlong[8]
    header: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        fields, header, key = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0] * 2
    if most >= len(table) // (8 * KEY_WORDS):
        raise ValueError("the table needs a free slot")
    pos = v[INPUT_AT]
    with cython.nogil:
        while True:
            reason = verify_batch(p, pos, end)
            if reason != SPECIAL or p[pos + ATTRIBUTES_LOW_AT] & SPECIAL_BITS:
                break
            size = read_int32(p, pos + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
            reason = _note_keys(
                p,
                pos + RECORDS_AT,
                pos + size,
                read_int32(p, pos + RECORD_COUNT_AT),
                read_int64(p, pos),
                first,
                t,
                slots,
                most,
                s,
                v,
                fields,
                header,
                key,
            )
            if reason != END:
                break
            v[NEXT_OFFSET] = read_int64(p, pos) + read_int32(p, pos + LAST_OFFSET_DELTA_AT) + 1
            pos += size
    v[INPUT_AT] = pos
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
    p: cython.p_uchar = readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    t: cython.p_ulonglong = writable_words(table, KEY_WORDS)
    slots: cython.ulonglong = len(table) // (8 * KEY_WORDS)
    s: cython.p_ulonglong = readable_words(seed, 4)
    v: cython.p_longlong = writable_longs(w, PASS_WORDS)
    first: cython.longlong = first_offset
    base: cython.longlong = base_offset
    n: cython.longlong = count
    most: cython.longlong = limit
    reason: cython.int = 0
    fields: cython.longlong[8]
    header: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        fields, header, key = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0] * 2
    if most >= len(table) // (8 * KEY_WORDS):
        raise ValueError("the table needs a free slot")
    with cython.nogil:
        reason = _note_keys(p, 0, end, n, base, first, t, slots, most, s, v, fields, header, key)
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
    fields: cython.p_longlong,
    header: cython.p_longlong,
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
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            return DAMAGED
        offset = base_offset + fields[OFFSET_DELTA]
        # Keys from `map_end` on were not noted, so nothing is known of newer records.
        if offset < map_end:
            # Records without a key, from before the topic was compacted, go as in Kafka.
            if fields[KEY_SIZE] < 0 or (fields[VALUE_SIZE] < 0 and drop_tombstones):
                continue
            _hash_key(p, fields[KEY_AT], fields[KEY_SIZE], seed, key)
            newest = t[_slot(t, slots, key) + KEY_OFFSET]
            if newest > offset + 1:
                continue
        copy_bytes(q, at, p, start, pos - start)
        at += pos - start
        if r[0] == 0 or fields[TIMESTAMP_DELTA] > r[2]:
            r[2] = fields[TIMESTAMP_DELTA]
        r[0] += 1
        if fields[VALUE_SIZE] < 0:
            r[1] += 1
    r[3] = at
    return END if pos == end else DAMAGED


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
    """Copy into `out` from w[OUTPUT_SIZE] on what stays of the plain batches from position w[INPUT_AT] on.

    A record below `map_end` stays when it has a key, the table knows no newer offset for it, and it is no tombstone
    past its batch's delete horizon. A batch that loses all its records goes, unless its last offset is in `keep`
    (native 64-bit integers, ascending): then its header stays. A batch with tombstones that has no delete horizon yet
    is the caller's. `marks` takes an index entry (last offset, position, largest timestamp, its offset) per `interval`
    bytes. Returns why it stopped; w[INPUT_AT] is where.
    """
    p: cython.p_uchar = readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    q: cython.p_uchar = writable(out, end)
    v: cython.p_longlong = writable_longs(w, PASS_WORDS)
    every: cython.longlong = interval
    # A batch has 61 bytes at least, which bounds the number of entries.
    m: cython.p_longlong = writable_longs(marks, 4 * (end // max(min(interval, 1 << 30), 61) + 2))
    t: cython.p_ulonglong = writable_words(table, KEY_WORDS)
    slots: cython.ulonglong = len(table) // (8 * KEY_WORDS)
    s: cython.p_ulonglong = readable_words(seed, 4)
    kept_offsets: cython.longlong = len(keep) // 8
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
    fields: cython.longlong[8]
    header: cython.longlong[4]
    r: cython.longlong[4]
    key: cython.ulonglong[2]
    k: cython.p_longlong = readable_longs(keep, 0)
    if not cython.compiled:
        fields, header, r, key = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0] * 4, [0] * 2
    pos = v[INPUT_AT]
    at = v[OUTPUT_SIZE]
    # Checked once here, so that the loop without the lock need not: what stays is never more than what came.
    if at + end - pos > len(out):
        raise ValueError("the output must have room for the input")
    with cython.nogil:
        while True:
            reason = verify_batch(p, pos, end)
            attributes = p[pos + ATTRIBUTES_LOW_AT] if reason == SPECIAL else 0
            if reason != SPECIAL or attributes & SPECIAL_BITS:
                break
            size = read_int32(p, pos + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
            count = read_int32(p, pos + RECORD_COUNT_AT)
            base_offset = read_int64(p, pos)
            last_offset = base_offset + read_int32(p, pos + LAST_OFFSET_DELTA_AT)
            base_timestamp = read_int64(p, pos + BASE_TIMESTAMP_AT)
            max_timestamp = read_int64(p, pos + MAX_TIMESTAMP_AT)
            reason = _keep_records(
                p,
                pos + RECORDS_AT,
                pos + size,
                count,
                base_offset,
                known,
                attributes & DELETE_HORIZON_BIT and base_timestamp <= now,
                t,
                slots,
                s,
                q,
                at + RECORDS_AT,
                fields,
                header,
                key,
                r,
            )
            if reason != END:
                break
            # Tombstones that stay need a delete horizon (KIP-534), which changes every delta: no plain copy.
            if r[1] > 0 and not attributes & DELETE_HORIZON_BIT and base_offset < known:
                reason = SPECIAL
                break
            while v[KEEP_NEXT] < kept_offsets and k[v[KEEP_NEXT]] < last_offset:
                v[KEEP_NEXT] += 1
            if r[0] > 0 or (v[KEEP_NEXT] < kept_offsets and k[v[KEEP_NEXT]] == last_offset):
                copy_bytes(q, at, p, pos, RECORDS_AT)
                if r[0] < count:
                    if r[0] == 0:
                        # The header stays for its producer's last sequence; without records it has no delete horizon.
                        attributes &= APPEND_TIME_BIT
                        write_int(q, at + ATTRIBUTES_AT, attributes, 2)
                        write_int(q, at + BASE_TIMESTAMP_AT, -1, 8)
                    elif not attributes & APPEND_TIME_BIT:
                        max_timestamp = base_timestamp + r[2]
                        write_int(q, at + MAX_TIMESTAMP_AT, max_timestamp, 8)
                    write_int(q, at + BATCH_LENGTH_AT, r[3] - at - LENGTH_OVERHEAD, 4)
                    write_int(q, at + RECORD_COUNT_AT, r[0], 4)
                    write_int(q, at + CRC_AT, checksum(q, at + ATTRIBUTES_AT, r[3]), 4)
                index_batch(v, m, every, last_offset, r[3] - at, max_timestamp)
                at = r[3]
            v[NEXT_OFFSET] = last_offset + 1
            v[RECORDS_READ] += count
            v[RECORDS_KEPT] += r[0]
            pos += size
    v[INPUT_AT] = pos
    v[OUTPUT_SIZE] = at
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
    p: cython.p_uchar = readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    out = bytearray(prefix + end)
    q: cython.p_uchar = writable(out, 0)
    at: cython.Py_ssize_t = prefix
    n: cython.longlong = count
    base: cython.longlong = base_offset
    known: cython.longlong = map_end
    drop: cython.bint = drop_tombstones
    t: cython.p_ulonglong = writable_words(table, KEY_WORDS)
    slots: cython.ulonglong = len(table) // (8 * KEY_WORDS)
    s: cython.p_ulonglong = readable_words(seed, 4)
    reason: cython.int = 0
    fields: cython.longlong[8]
    header: cython.longlong[4]
    r: cython.longlong[4]
    key: cython.ulonglong[2]
    if not cython.compiled:
        fields, header, r, key = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0] * 4, [0] * 2
    with cython.nogil:
        reason = _keep_records(p, 0, end, n, base, known, drop, t, slots, s, q, at, fields, header, key, r)
    if reason != END:
        raise CorruptBatch(f"the {count} records at offset {base_offset} do not fit their bytes")
    # An existing view forbids resizing `out`.
    if not cython.compiled:
        q.release()
    del out[r[3] :]
    return out, r[0], r[1], r[2]


def shift_timestamps(data: bytes | bytearray | memoryview, count: int, shift: int, prefix: int) -> bytearray:
    """The same records counted from another base timestamp, after `prefix` bytes: `shift` is added to every delta."""
    p: cython.p_uchar = readable(data, 0)
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
    fields: cython.longlong[8]
    header: cython.longlong[4]
    if not cython.compiled:
        fields, header, g = [0] * RECORD_FIELDS, [0] * HEADER_FIELDS, [0]
    # A delta takes at most ten bytes, and the size before it may grow by one byte.
    out = bytearray(prefix + end + 11 * count)
    q: cython.p_uchar = writable(out, 0)
    for i in range(n):
        start = pos
        pos = read_record(p, pos, end, fields, header)
        if pos < 0:
            raise corrupt_record(i, n)
        if not distance_fits(fields[TIMESTAMP_DELTA], -by):
            raise beyond_64_bits(i)
        # Behind size and attributes, then behind the old delta: what follows is copied as it is.
        rest = read_varint(p, start, pos, g, 0, 28) + 1
        rest = read_varint(p, rest, pos, g, 0, 63)
        size = 1 + varint_size(fields[TIMESTAMP_DELTA] + by) + pos - rest
        at = write_varint(q, at, size)
        q[at] = 0
        at = write_varint(q, at + 1, fields[TIMESTAMP_DELTA] + by)
        copy_bytes(q, at, p, rest, pos - rest)
        at += pos - rest
    if pos != end:
        raise trailing_bytes(n, end - pos)
    if not cython.compiled:
        q.release()
    del out[at:]
    return out
