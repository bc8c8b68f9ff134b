"""The kernels, compiled and interpreted: equal results, and nothing but CorruptBatch for hostile bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import CorruptBatch
from klamm.records import DecodedRecord

INT64 = st.integers(-(2**62), 2**62 - 1)
"""So that any two of them lie less than 2**63 apart, as timestamps of one batch must."""
BLOB = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
ROWS = st.lists(st.tuples(INT64, BLOB, BLOB, HEADERS), max_size=12)
SAMPLE = [
    (1000, b"k", b"v" * 200, [("a", b"1"), ("b", None)]),
    (1000, None, b"x", []),
    (900, b"", None, [("", b"")]),
    (2**40, b"key" * 30, b"", []),
]


def signed_varint(value):
    u = (value << 1) ^ (value >> 63)
    out = bytearray()
    while u >= 0x80:
        out.append(u & 0x7F | 0x80)
        u >>= 7
    out.append(u)
    return bytes(out)


def record_bytes(*parts):
    body = b"\0" + b"".join(signed_varint(p) if isinstance(p, int) else p for p in parts)
    return signed_varint(len(body)) + body


def outcome(work, *arguments):
    """What a call returned, or which error it raised and what it said."""
    try:
        return work(*arguments)
    except (CorruptBatch, OverflowError) as error:
        return type(error), str(error) if isinstance(error, CorruptBatch) else None


@given(rows=ROWS, base=INT64, reserved=st.integers(0, 80))
def test_both_forms_encode_and_decode_alike(compiled, interpreted, rows, base, reserved):
    results = []
    for form in (compiled, interpreted):
        data, largest = form.encode_records(rows, base, reserved)
        assert len(data) >= reserved
        body = bytes(data[reserved:])
        assert not rows or largest == max(r[0] for r in rows)
        decoded = form.decode_records(body, len(rows), 50, base)
        expected = [(50 + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(rows)]
        assert decoded == expected
        results.append((body, largest, decoded, form.measure_records(body, len(rows))))
    assert results[0] == results[1]


@given(data=st.binary(max_size=120), count=st.integers(-2, 2**31 - 1), base=st.integers(-(2**63), 2**63 - 1))
def test_both_forms_treat_random_bytes_alike(compiled, interpreted, data, count, base):
    for name, arguments in (
        ("decode_records", (data, count, base, base)),
        ("measure_records", (data, count)),
    ):
        assert outcome(getattr(compiled, name), *arguments) == outcome(getattr(interpreted, name), *arguments)


@given(seed=st.integers(0, 2**32))
def test_both_forms_treat_damaged_records_alike(compiled, interpreted, seed):
    chance = random.Random(seed)
    data = bytearray(interpreted.encode_records(SAMPLE, 1000)[0])
    for _ in range(chance.randint(1, 4)):
        what = chance.randrange(3)
        position = chance.randrange(len(data))
        if what == 0:
            data[position] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif what == 1:
            del data[position : position + chance.randint(1, 5)]
        else:
            data[position:position] = chance.randbytes(chance.randint(1, 11))
        if not data:
            return
    for name in ("decode_records", "measure_records"):
        more = (7, 1000) if name == "decode_records" else ()
        ours = outcome(getattr(compiled, name), bytes(data), len(SAMPLE), *more)
        assert ours == outcome(getattr(interpreted, name), bytes(data), len(SAMPLE), *more)


def test_every_cut_is_refused(form):
    data = bytes(form.encode_records(SAMPLE, 1000)[0])
    for cut in range(len(data)):
        for count in (1, 2, 3, 4):
            ends_well = outcome(form.decode_records, data[:cut], count, 0, 0)
            assert isinstance(ends_well, tuple) or len(ends_well) == count
        with pytest.raises(CorruptBatch):
            form.decode_records(data[:cut], 4, 0, 0)


def test_never_reads_past_the_end_of_the_view(form):
    """A record whose missing bytes lie in the same memory, but outside the view."""
    data = bytes(form.encode_records(SAMPLE, 1000)[0])
    memory = memoryview(data + data)
    for cut in range(1, len(data)):
        with pytest.raises(CorruptBatch):
            form.measure_records(memory[:cut], 4)


@pytest.mark.parametrize(
    ("label", "data"),
    [
        ("no body", signed_varint(0)),
        ("negative size", signed_varint(-1)),
        ("size beyond the data", signed_varint(1000) + b"\0" * 10),
        ("only attributes", record_bytes()),
        ("endless varint", b"\x14" + b"\0" + b"\xff" * 9),
        ("eleven-byte varlong", record_bytes(b"\x80" * 10 + b"\0", 0, -1, -1, 0)),
        ("varlong beyond 64 bits", record_bytes(b"\xff" * 9 + b"\x02", 0, -1, -1, 0)),
        ("six-byte varint", record_bytes(0, b"\x80" * 5 + b"\0", -1, -1, 0)),
        ("negative offset delta", record_bytes(0, -1, -1, -1, 0)),
        ("offset delta beyond 32 bits", record_bytes(0, 2**31, -1, -1, 0)),
        ("key length -2", record_bytes(0, 0, -2, -1, 0)),
        ("key beyond the record", record_bytes(0, 0, 5, b"abc")),
        ("value beyond the record", record_bytes(0, 0, -1, 2**31 - 1, 0)),
        ("negative header count", record_bytes(0, 0, -1, -1, -1)),
        ("a billion headers", record_bytes(0, 0, -1, -1, 10**9)),
        ("header without a name", record_bytes(0, 0, -1, -1, 1, -1, -1)),
        ("header value length -2", record_bytes(0, 0, -1, -1, 1, 0, -2)),
        ("header cut short", record_bytes(0, 0, -1, -1, 1, 3, b"ab")),
        ("bytes after the headers", record_bytes(0, 0, -1, -1, 0, b"x")),
        ("bytes after the record", record_bytes(0, 0, -1, -1, 0) + b"\0"),
        ("nothing at all", b""),
    ],
)
def test_malformed_records_are_refused(form, label, data):
    with pytest.raises(CorruptBatch):
        form.measure_records(data, 1)
    with pytest.raises(CorruptBatch):
        form.decode_records(data, 1, 0, 0)


def test_sums_beyond_64_bits_are_refused(form):
    up, down = record_bytes(5, 0, -1, -1, 0), record_bytes(-5, 0, -1, -1, 0)
    with pytest.raises(CorruptBatch, match="64 bits"):
        form.decode_records(up, 1, 0, 2**63 - 3)
    with pytest.raises(CorruptBatch, match="64 bits"):
        form.decode_records(down, 1, 0, -(2**63) + 3)
    with pytest.raises(CorruptBatch, match="64 bits"):
        form.decode_records(record_bytes(0, 2, -1, -1, 0), 1, 2**63 - 2, 0)
    assert form.decode_records(up, 1, 2**63 - 1, 2**63 - 6)[0][:2] == (2**63 - 1, 2**63 - 1)
    assert form.decode_records(down, 1, 0, -(2**63) + 5)[0][1] == -(2**63)


def test_timestamps_too_far_apart_are_refused(form):
    for stamp, base in ((2**63 - 1, -1), (-(2**63), 1), (2**63, 0)):
        with pytest.raises(OverflowError):
            form.encode_records([(stamp, None, None, ())], base)
    assert form.encode_records([(-(2**63), None, None, ())], 0)[1] == -(2**63)


def test_any_buffer_is_a_key_or_value_and_text_is_not(form):
    rows = [(0, bytearray(b"k"), memoryview(b"v"), {"h": memoryview(b"1")}), (0, b"k", b"v", ((b"h", b"1"),))]
    decoded = form.decode_records(bytes(form.encode_records(rows, 0)[0]), 2, 0, 0)
    assert [r[2:] for r in decoded] == [(b"k", b"v", (("h", b"1"),))] * 2
    for row in ((0, "key", None, ()), (0, None, "value", ()), (0, None, 5, ()), (0, None, None, [("h", "text")])):
        with pytest.raises(TypeError):
            form.encode_records([row], 0)
    assert form.encode_records(tuple(SAMPLE), 1000) == form.encode_records(SAMPLE, 1000)


def test_header_names_that_are_not_utf8_survive(form):
    data = form.encode_records([(0, None, None, [(b"\xff\xfe", b"x")])], 0)[0]
    rows = form.decode_records(bytes(data), 1, 0, 0)
    assert form.encode_records([(0, None, None, rows[0][4])], 0)[0] == data


def test_named_records_are_made_on_request(form):
    data = bytes(form.encode_records(SAMPLE, 1000)[0])
    named = form.decode_records(data, 4, 10, 1000, None, DecodedRecord)
    assert all(type(r) is DecodedRecord for r in named)
    assert named == form.decode_records(data, 4, 10, 1000)
    assert named[0].value == b"v" * 200
    assert {r.timestamp for r in form.decode_records(data, 4, 10, 1000, 77, DecodedRecord)} == {77}

    class Loose(tuple):  # noqa: SLOT001 - that is what is wrong with it
        pass

    for kind in (dict, Loose):
        with pytest.raises(TypeError):
            form.decode_records(data, 4, 10, 1000, None, kind)


def test_offset_deltas_may_be_given(form):
    data = form.encode_records(SAMPLE, 1000, 0, [0, 5, 6, 2**31 - 1])[0]
    assert [r[0] for r in form.decode_records(bytes(data), 4, 1, 1000)] == [1, 6, 7, 2**31]


def test_many_records_of_growing_size(form):
    rows = [(i, b"%d" % i, b"x" * (i * 7 % 5000), [("n", b"%d" % i)] * (i % 3)) for i in range(400)]
    data, _ = form.encode_records(rows, 0)
    assert [(r[1], r[2], r[3], list(r[4])) for r in form.decode_records(bytes(data), 400, 0, 0)] == rows
