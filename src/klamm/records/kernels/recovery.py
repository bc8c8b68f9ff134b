# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share
"""Recovery: one pass over the bytes of a segment, many batches per call and without the interpreter's lock.

Checks length and checksum, and that offsets follow each other; makes index entries, and notes the last batches of every
producer. State is in an array `w` that the caller carries from call to call, producers are in a table of slots that is
searched by producer id (`layout`).

The install compiles this file with Cython; it runs as plain Python where it was not compiled, with equal results. Types
for checkers are in recovery.pyi.
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
def _note_producer(
    p: cython.p_uchar, pos: cython.Py_ssize_t, t: cython.p_longlong, slots: cython.longlong, w: cython.p_longlong
) -> cython.int:
    """Remember a batch of a producer; END, or FULL when the table has no room for another producer."""
    producer_id: cython.longlong = read_int64(p, pos + PRODUCER_ID_AT)
    epoch: cython.longlong = read_int16(p, pos + PRODUCER_EPOCH_AT)
    base_offset: cython.longlong = read_int64(p, pos)
    delta: cython.longlong = read_int32(p, pos + LAST_OFFSET_DELTA_AT)
    first: cython.longlong = read_int32(p, pos + BASE_SEQUENCE_AT)
    slot: cython.longlong = producer_id % slots
    at: cython.Py_ssize_t = 0
    while t[PRODUCER_WORDS * slot + BATCHES_NOTED] != 0 and t[PRODUCER_WORDS * slot + PRODUCER_ID] != producer_id:
        slot += 1
        if slot == slots:
            slot = 0
    at = PRODUCER_WORDS * slot
    if t[at + BATCHES_NOTED] == 0:
        if 4 * w[PRODUCERS_NOTED] >= 3 * slots:  # fuller tables make long searches
            return FULL
        w[PRODUCERS_NOTED] += 1
        t[at + PRODUCER_ID] = producer_id
        t[at + PRODUCER_EPOCH] = epoch
        t[at + EPOCH_CHANGED] = 0
        t[at + TRANSACTION_START] = -1
    # Sequences begin anew with an epoch, so batches of the one before identify no duplicates.
    elif t[at + PRODUCER_EPOCH] != epoch:
        t[at + PRODUCER_EPOCH] = epoch
        t[at + EPOCH_CHANGED] = 1
        t[at + BATCHES_NOTED] = 0
    if p[pos + ATTRIBUTES_LOW_AT] & TRANSACTIONAL_BIT and t[at + TRANSACTION_START] < 0:
        t[at + TRANSACTION_START] = base_offset
    t[at + BATCHES_NOTED] += 1
    at += PRODUCER_BATCHES_AT + PRODUCER_BATCH_WORDS * ((t[at + BATCHES_NOTED] - 1) % PRODUCER_BATCHES)
    t[at + FIRST_SEQUENCE] = first
    # Sequences return to 0 after 2^31 - 1.
    t[at + LAST_SEQUENCE] = first if first < 0 else (first + delta) & 0x7FFFFFFF
    t[at + FIRST_OFFSET] = base_offset
    t[at + LAST_OFFSET] = base_offset + delta
    t[at + BATCH_MAX_TIMESTAMP] = read_int64(p, pos + MAX_TIMESTAMP_AT)
    return END


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
    """Pass over the sound batches from position w[INPUT_AT] on that continue a segment and end before `end_offset`.

    `checked` False trusts the checksums. Control batches are the caller's, and batches of another leader epoch than
    w[LEADER_EPOCH] or beyond w[EPOCH_END_OFFSET]. `marks` takes index entries as in `filter_batches`. Returns why it
    stopped; w[INPUT_AT] is where.
    """
    p: cython.p_uchar = readable(data, 0)
    end: cython.Py_ssize_t = len(data)
    v: cython.p_longlong = writable_longs(w, PASS_WORDS)
    t: cython.p_longlong = writable_longs(producers, PRODUCER_WORDS)
    slots: cython.longlong = len(producers) // (8 * PRODUCER_WORDS)
    every: cython.longlong = interval
    m: cython.p_longlong = writable_longs(marks, 4 * (end // max(min(interval, 1 << 30), 61) + 2))
    begin: cython.longlong = segment_base
    limit: cython.longlong = end_offset
    most: cython.longlong = 1 << 62
    verify: cython.bint = checked
    pos: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    base_offset: cython.longlong = 0
    last_offset: cython.longlong = 0
    reason: cython.int = 0
    pos = v[INPUT_AT]
    with cython.nogil:
        while True:
            reason = verify_batch(p, pos, end) if verify else frame_batch(p, pos, end)
            if reason != SPECIAL:
                break
            size = read_int32(p, pos + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
            base_offset = read_int64(p, pos)
            last_offset = read_int32(p, pos + LAST_OFFSET_DELTA_AT)
            # `most` keeps the sum below from overflowing, which C would not notice.
            if base_offset < v[EXPECTED_OFFSET] or base_offset > most or last_offset < 0:
                reason = DAMAGED
                break
            last_offset += base_offset
            # Indexes hold offsets relative to the segment in 32 bits.
            if last_offset >= limit or last_offset - begin > 0x7FFFFFFF:
                reason = DAMAGED
                break
            if (
                p[pos + ATTRIBUTES_LOW_AT] & CONTROL_BIT
                or read_int32(p, pos + LEADER_EPOCH_AT) != v[LEADER_EPOCH]
                or base_offset >= v[EPOCH_END_OFFSET]
            ):
                break
            if read_int64(p, pos + PRODUCER_ID_AT) >= 0:
                reason = _note_producer(p, pos, t, slots, v)
                if reason != END:
                    break
            index_batch(v, m, every, last_offset, size, read_int64(p, pos + MAX_TIMESTAMP_AT))
            v[EXPECTED_OFFSET] = last_offset + 1
            v[BATCHES_PASSED] += 1
            pos += size
    v[INPUT_AT] = pos
    return reason
