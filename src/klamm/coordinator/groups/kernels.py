# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# ruff: noqa: F403, F405 - the names that kernels share
"""The two requests that members send most, compiled: OffsetCommit from request to response, and SyncGroup.

The install compiles this file with Cython; it runs as plain Python elsewhere, with equal results. Only requests of the
usual form are handled. Anything else (a tagged field, a record of an old version, bytes that do not add up) is left to
the declared messages, which handle or refuse it. Lengths are compared with the bytes that are left before anything is
read. Types for checkers are in kernels.pyi.
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
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.ref import Py_INCREF
    from cython.cimports.cpython.tuple import PyTuple_SET_ITEM
    from cython.cimports.klamm.records.kernels.primitives import *
    from cython.cimports.libc.string import memcpy
else:
    from klamm.records.kernels.primitives import *

COMPILED: bool = bool(cython.compiled)
"""Whether this module is the compiled form."""

_ZERO_ID: bytes = bytes(16)


# Numbers and texts


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _count(
    p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, flexible: cython.bint, out: cython.p_longlong
) -> cython.Py_ssize_t:
    """Read the length of an array into `out[1]`; the position after it, or -1 also for null."""
    if flexible:
        pos = read_uvarint(p, pos, end, out, 1)
        if pos < 0:
            return -1
        out[1] -= 1
    else:
        if end - pos < 4:
            return -1
        out[1] = read_int32(p, pos)
        pos += 4
    return -1 if out[1] < 0 else pos


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _text(
    p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t, flexible: cython.bint, out: cython.p_longlong
) -> cython.Py_ssize_t:
    """Step over a text: position and length (-1: null) into `out`; the position after it, or -1."""
    if flexible:
        pos = read_uvarint(p, pos, end, out, 1)
        if pos < 0:
            return -1
        out[1] -= 1
    else:
        if end - pos < 2:
            return -1
        out[1] = read_int16(p, pos)
        pos += 2
    if out[1] < -1 or out[1] > 0x7FFF or out[1] > end - pos:
        return -1
    out[0] = pos
    return pos + out[1] if out[1] > 0 else pos


# Requests


def read_commit(frame: bytes | bytearray | memoryview, version: int) -> tuple | None:
    """The parts of an OffsetCommit request of versions 2-10, its header included; None where it is unusual.

    (group, generation or epoch, member, instance or None, topics), a topic being (name, from version 10 on its id, and
    (partition, offset, leader epoch, note) of every partition). A request that sets its own retention is unusual.
    """
    p: cython.p_uchar
    s: cython.longlong[2]
    held: object = memoryview(frame)  # while it lives, a bytearray cannot be resized under the pointer
    pos: cython.Py_ssize_t = 8  # behind API key, version and correlation id
    end: cython.Py_ssize_t = len(frame)
    v: cython.int = version
    flexible: cython.bint = v >= 8
    topic_count: cython.longlong = 0
    count: cython.longlong = 0
    i: cython.longlong = 0
    j: cython.longlong = 0
    row: cython.Py_ssize_t = 12  # partition and offset; the leader epoch came with v6
    generation: cython.longlong = 0
    index: cython.longlong = 0
    offset: cython.longlong = 0
    leader_epoch: cython.longlong = -1
    topics: list = []
    partitions: list = []
    instance: object = None
    note: object = ""
    if cython.compiled:
        p = readable(held, 0)
    else:
        p = bytes(frame)
        s = [0] * 2
    if end < 10 or v < 2 or v > 10:
        return None
    if v >= 6:
        row = 16
    pos = _text(p, pos, end, False, s)
    if pos < 0:
        return None
    for i in range(s[0], pos):
        if p[i] > 127:  # a client id that may not be valid UTF-8 is left to the declared messages
            return None
    if flexible:
        if pos >= end or p[pos]:
            return None
        pos += 1
    try:
        pos = _text(p, pos, end, flexible, s)
        if pos < 0 or s[1] < 0 or end - pos < 4:
            return None
        group = p[s[0] : s[0] + s[1]].decode("utf-8")
        generation = read_int32(p, pos)
        pos = _text(p, pos + 4, end, flexible, s)
        if pos < 0 or s[1] < 0:
            return None
        member = p[s[0] : s[0] + s[1]].decode("utf-8")
        if v >= 7:
            pos = _text(p, pos, end, flexible, s)
            if pos < 0:
                return None
            if s[1] >= 0:
                instance = p[s[0] : s[0] + s[1]].decode("utf-8")
        elif v <= 4:
            # retention_time_ms: only v2-v4 have it, and such a record has another version.
            if end - pos < 8 or read_int64(p, pos) >= 0:
                return None
            pos += 8
        pos = _count(p, pos, end, flexible, s)
        if pos < 0:
            return None
        topic_count = s[1]
        for i in range(topic_count):  # noqa: B007 - a C loop when compiled
            if v >= 10:
                if end - pos < 16:
                    return None
                name = p[pos : pos + 16]
                pos += 16
            else:
                pos = _text(p, pos, end, flexible, s)
                if pos < 0 or s[1] < 0:
                    return None
                name = p[s[0] : s[0] + s[1]].decode("utf-8")
            pos = _count(p, pos, end, flexible, s)
            if pos < 0:
                return None
            count = s[1]
            partitions = []
            for j in range(count):  # noqa: B007
                if end - pos < row:
                    return None
                index = read_int32(p, pos)
                offset = read_int64(p, pos + 4)
                if row == 16:
                    leader_epoch = read_int32(p, pos + 12)
                pos = _text(p, pos + row, end, flexible, s)
                if pos < 0:
                    return None
                note = p[s[0] : s[0] + s[1]].decode("utf-8") if s[1] > 0 else ""
                if flexible:
                    if pos >= end or p[pos]:
                        return None
                    pos += 1
                partitions.append((index, offset, leader_epoch, note))
            if flexible:
                if pos >= end or p[pos]:
                    return None
                pos += 1
            topics.append((name, partitions))
    except UnicodeDecodeError:
        return None
    if flexible:
        if pos >= end or p[pos]:
            return None
        pos += 1
    # Bytes behind the last field belong to a layout that is not the one read here.
    return (group, generation, member, instance, topics) if pos == end else None


def read_sync(frame: bytes | bytearray | memoryview, version: int) -> tuple | None:
    """The parts of a SyncGroup request of versions 0-5 that brings no assignments; None for any other.

    (group, generation, member, instance or None, protocol type or None, protocol name or None).
    """
    p: cython.p_uchar
    s: cython.longlong[2]
    held: object = memoryview(frame)  # while it lives, a bytearray cannot be resized under the pointer
    pos: cython.Py_ssize_t = 8  # behind API key, version and correlation id
    end: cython.Py_ssize_t = len(frame)
    v: cython.int = version
    flexible: cython.bint = v >= 4
    generation: cython.longlong = 0
    i: cython.Py_ssize_t = 0
    texts: list = [None, None, None]
    if cython.compiled:
        p = readable(held, 0)
    else:
        p = bytes(frame)
        s = [0] * 2
    if end < 10 or v < 0 or v > 5:
        return None
    pos = _text(p, pos, end, False, s)
    if pos < 0:
        return None
    for i in range(s[0], pos):
        if p[i] > 127:
            return None
    if flexible:
        if pos >= end or p[pos]:
            return None
        pos += 1
    try:
        pos = _text(p, pos, end, flexible, s)
        if pos < 0 or s[1] < 0 or end - pos < 4:
            return None
        group = p[s[0] : s[0] + s[1]].decode("utf-8")
        generation = read_int32(p, pos)
        pos = _text(p, pos + 4, end, flexible, s)
        if pos < 0 or s[1] < 0:
            return None
        member = p[s[0] : s[0] + s[1]].decode("utf-8")
        # The instance id came with v3 (KIP-345), protocol type and name with v5 (KIP-559).
        for i in range(0 if v < 3 else 1 if v < 5 else 3):
            pos = _text(p, pos, end, flexible, s)
            if pos < 0:
                return None
            if s[1] >= 0:
                texts[i] = p[s[0] : s[0] + s[1]].decode("utf-8")
    except UnicodeDecodeError:
        return None
    pos = _count(p, pos, end, flexible, s)
    # Assignments: the leader's request is left to the declared message.
    if pos < 0 or s[1]:
        return None
    if flexible:
        if pos >= end or p[pos]:
            return None
        pos += 1
    return (group, generation, member, texts[0], texts[1], texts[2]) if pos == end else None


# Records of committed offsets


@cython.cfunc
@cython.inline
def _pair(kind: object, key: bytes, value: bytes) -> object:
    """A named tuple of two bytes objects, which the garbage collector need not visit."""
    if cython.compiled:
        # SET_ITEM takes over a reference without counting it, hence the INCREFs.
        made = PyType_GenericAlloc(cython.cast(type, kind), 2)
        Py_INCREF(key)
        PyTuple_SET_ITEM(made, 0, key)
        Py_INCREF(value)
        PyTuple_SET_ITEM(made, 1, value)
        PyObject_GC_UnTrack(made)
        return made
    return tuple.__new__(kind, (key, value))


@cython.cfunc
@cython.inline
def _key(head: bytes, partition: cython.longlong) -> bytes:
    size: cython.Py_ssize_t = len(head)
    if cython.compiled:
        key: bytes = PyBytes_FromStringAndSize(cython.NULL, size + 4)
        q: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(key))
        memcpy(q, PyBytes_AS_STRING(head), size)
        write_int(q, size, partition, 4)
        return key
    return head + partition.to_bytes(4, "big", signed=True)


@cython.cfunc
@cython.inline
def _value(
    offset: cython.longlong, leader_epoch: cython.longlong, note: bytes, wall_ms: cython.longlong, topic_id: bytes
) -> bytes:
    """A value of version 4; the id of the topic, where there is one, is its only tagged field."""
    pos: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t = len(note)
    size: cython.Py_ssize_t = 24 + length
    # The varint holds length + 1: 0 stands for null.
    if length >= 127:
        size += 1
    if length >= 16383:
        size += 1
    if topic_id != _ZERO_ID:
        size += 18  # tag, size and id; the number of tags is in the 24
    if cython.compiled:
        value: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        q: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(value))
    else:
        q = bytearray(size)
    pos = write_int(q, 0, 4, 2)
    pos = write_int(q, pos, offset, 8)
    pos = write_int(q, pos, leader_epoch, 4)
    pos = write_uvarint(q, pos, length + 1)
    if length:
        if cython.compiled:
            memcpy(q + pos, PyBytes_AS_STRING(note), length)
        else:
            q[pos : pos + length] = note
        pos += length
    pos = write_int(q, pos, wall_ms, 8)
    if pos + 1 == size:
        q[pos] = 0
    else:
        q[pos] = 1
        q[pos + 1] = 0
        q[pos + 2] = 16
        if cython.compiled:
            memcpy(q + pos + 3, PyBytes_AS_STRING(topic_id), 16)
        else:
            q[pos + 3 : pos + 19] = topic_id
    if cython.compiled:
        return value
    return bytes(q)


def add_records(
    records: list, group: str, topic: str, topic_id: bytes, partitions: list, wall_ms: int, kind: type
) -> None:
    """Append the record of every row (partition, offset, leader epoch, metadata), as `read_commit` returns them.

    `kind` is the named tuple of key and value to make.
    """
    stamp: cython.longlong = wall_ms
    index: cython.longlong = 0
    offset: cython.longlong = 0
    leader_epoch: cython.longlong = 0
    note: str = ""
    group_bytes: bytes = group.encode()
    topic_bytes: bytes = topic.encode()
    head: bytes = b"".join(
        (
            b"\x00\x01",
            len(group_bytes).to_bytes(2, "big"),
            group_bytes,
            len(topic_bytes).to_bytes(2, "big"),
            topic_bytes,
        )
    )
    if len(topic_id) != 16:
        raise ValueError("the id of a topic has 16 bytes")
    for partition in partitions:
        index, offset, leader_epoch, note = partition
        value = _value(offset, leader_epoch, note.encode() if note else b"", stamp, topic_id)
        records.append(_pair(kind, _key(head, index), value))


# Replay


def replay_offsets(places: dict, records: object, first_offset: int, kind: type) -> int:
    """Apply records of committed offsets; returns how many, up to one that is left to the declared messages.

    `places` are those of `Offsets`: by the key without its partition, a group and its offsets by partition. `kind` is
    CommittedOffset.
    """
    done: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = 0
    at: cython.longlong = first_offset
    key: bytes = b""
    value: bytes = b""
    topic_id: bytes = b""
    partitions: dict = {}
    p: cython.p_uchar
    k: cython.p_uchar
    for record in records:
        raw_key, raw_value = record
        if raw_value is None:
            return done
        key = raw_key
        value = raw_value
        size = len(key)
        # Type, two lengths and the partition: no key is shorter.
        if size < 10:
            return done
        place = places.get(key[: size - 4])
        if place is None:
            return done
        partitions = place[1]
        k = key
        p = value
        size = len(value)
        # Version 4 with a metadata length of one byte; 0 would be null, which Kafka never writes.
        if size < 24 or p[0] or p[1] != 4 or p[14] == 0 or p[14] > 127:
            return done
        end = 14 + p[14]
        if size == end + 9 and p[end + 8] == 0:
            topic_id = _ZERO_ID
        elif size == end + 27 and p[end + 8] == 1 and p[end + 9] == 0 and p[end + 10] == 16:
            topic_id = value[end + 11 : size]
        else:
            return done
        note = ""
        if end > 15:
            try:
                note = value[15:end].decode("utf-8")
            except UnicodeDecodeError:
                return done
        partitions[read_int32(k, len(key) - 4)] = _committed(
            kind, read_int64(p, 2), read_int32(p, 10), note, read_int64(p, end), topic_id, at + done
        )
        done += 1
    return done


@cython.cfunc
@cython.inline
def _committed(
    kind: object,
    offset: object,
    leader_epoch: object,
    note: object,
    timestamp: object,
    topic_id: object,
    record_offset: object,
) -> object:
    """A CommittedOffset without an expiry of its own; millions of them need no visit of the garbage collector."""
    if cython.compiled:
        made = PyType_GenericAlloc(cython.cast(type, kind), 7)
        Py_INCREF(offset)
        PyTuple_SET_ITEM(made, 0, offset)
        Py_INCREF(leader_epoch)
        PyTuple_SET_ITEM(made, 1, leader_epoch)
        Py_INCREF(note)
        PyTuple_SET_ITEM(made, 2, note)
        Py_INCREF(timestamp)
        PyTuple_SET_ITEM(made, 3, timestamp)
        never: object = -1
        Py_INCREF(never)
        PyTuple_SET_ITEM(made, 4, never)
        Py_INCREF(topic_id)
        PyTuple_SET_ITEM(made, 5, topic_id)
        Py_INCREF(record_offset)
        PyTuple_SET_ITEM(made, 6, record_offset)
        PyObject_GC_UnTrack(made)
        return made
    return tuple.__new__(kind, (offset, leader_epoch, note, timestamp, -1, topic_id, record_offset))


# Responses


def write_answer(correlation_id: int, version: int, topics: list) -> bytearray:
    """The response, framed, to a commit that `read_commit` parsed and of which every offset was stored."""
    v: cython.int = version
    flexible: cython.bint = v >= 8
    pos: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t = 0
    capacity: cython.Py_ssize_t = 32
    index: cython.longlong = 0
    name: bytes = b""
    partitions: list = []
    q: cython.p_uchar = cython.NULL if cython.compiled else None
    for topic in topics:
        # An upper bound, cut at the end: a character has at most four bytes in UTF-8.
        capacity += 16 + 4 * len(topic[0]) + 7 * len(topic[1])
    if cython.compiled:
        out: bytearray = PyByteArray_FromStringAndSize(cython.NULL, capacity)
        q = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
    else:
        q = out = bytearray(capacity)
    # The first four bytes are the frame's size, which is known at the end.
    pos = write_int(q, 4, correlation_id, 4)
    if flexible:
        pos = write_int(q, pos, 0, 1)
    if v >= 3:
        pos = write_int(q, pos, 0, 4)  # throttle_time_ms
    pos = write_uvarint(q, pos, len(topics) + 1) if flexible else write_int(q, pos, len(topics), 4)
    for topic in topics:
        partitions = topic[1]
        if v >= 10:
            name = topic[0]
            length = 16
        else:
            name = topic[0].encode()
            length = len(name)
            pos = write_uvarint(q, pos, length + 1) if flexible else write_int(q, pos, length, 2)
        if cython.compiled:
            memcpy(q + pos, PyBytes_AS_STRING(name), length)
        else:
            q[pos : pos + length] = name
        pos += length
        pos = write_uvarint(q, pos, len(partitions) + 1) if flexible else write_int(q, pos, len(partitions), 4)
        for partition in partitions:
            index = partition[0]
            pos = write_int(q, pos, index, 4)
            pos = write_int(q, pos, 0, 2)
            if flexible:
                pos = write_int(q, pos, 0, 1)
        if flexible:
            pos = write_int(q, pos, 0, 1)
    if flexible:
        pos = write_int(q, pos, 0, 1)
    write_int(q, 0, pos - 4, 4)
    if cython.compiled:
        PyByteArray_Resize(out, pos)
    else:
        del out[pos:]
    return out
