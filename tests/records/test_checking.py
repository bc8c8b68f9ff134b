"""The check of a batch's records, compiled and interpreted, in pieces cut anywhere.

Breaks when something is let through that a reader cannot read, when sound records are refused, or when the way the
bytes are cut into pieces changes the answer.
"""

import itertools
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import broken_batches
from klamm.model.errors import CorruptBatch, KlammError, RecordRefused
from klamm.records import checking
from klamm.records.batch import HEADER_SIZE, BatchView, build_batch
from klamm.records.checking import RecordCheck
from klamm.records.compression import Codec, compress, decompress, repack, unpack
from klamm.records.kernels import layout

NOW_MS = broken_batches.NOW_MS
WORDS = 320


def verdict(kernels, section, count, cuts=(), base_timestamp=NOW_MS):
    """(fault, record, largest timestamp) of a section that comes in pieces."""
    state = bytearray(8 * WORDS)
    struct.pack_into("=13q", state, 0, count, 0, 0, 0, 0, 0, 0, 0, base_timestamp, -(2**63), 2**63 - 1, 0, -1)
    struct.pack_into("=q", state, 8 * 16, 1)
    edges = [0, *sorted(cuts), len(section)]
    for begin, end in itertools.pairwise(edges):
        fault = kernels.check_records(memoryview(section)[begin:end], state)
        if fault:
            return fault, struct.unpack_from("=2q", state)[1], None
    fault = kernels.check_records(b"", state)
    counted, done, field, _, bits = struct.unpack_from("=5q", state)
    if not fault and (done != counted or field or bits):
        return "cut", done, None
    return fault, done, struct.unpack_from("=13q", state)[12]


def sections():
    """Sound records of many shapes, with their number."""
    header = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))
    row = st.tuples(
        st.integers(NOW_MS - 1000, NOW_MS + 2**40),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=300),
        st.lists(header, max_size=3),
    )
    return st.lists(row, min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(rows=sections(), data=st.data())
def test_sound_records_pass_however_they_are_cut(compiled, interpreted, rows, data):
    batch = BatchView(build_batch(rows))
    section = bytes(batch.records)
    cuts = data.draw(st.lists(st.integers(0, len(section)), max_size=6))
    expected = 0, len(rows), max(row[0] for row in rows)
    for kernels in (compiled, interpreted):
        assert verdict(kernels, section, len(rows), cuts, batch.base_timestamp) == expected


def test_a_cut_at_every_byte_changes_nothing(form):
    rows = [(NOW_MS + i, b"k" * i, b"v" * 100 * i, [("h", None), ("name", b"x" * i)]) for i in range(5)]
    section = bytes(BatchView(build_batch(rows)).records)
    assert verdict(form, section, 5, range(len(section))) == (0, 5, NOW_MS + 4)


@pytest.mark.parametrize("name", broken_batches.SECTIONS)
def test_broken_records_are_refused_however_they_are_cut(form, name):
    section, count = broken_batches.SECTIONS[name]
    whole = verdict(form, section, count)
    assert whole[0] != 0
    for cut in range(len(section) + 1):
        fault, record, _ = verdict(form, section, count, [cut])
        # A record that claims more than there is may turn out to be cut at the end rather than too large at once.
        assert fault != 0
        assert record == whole[1]
    assert verdict(form, section, count, range(len(section)))[0] != 0


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_passes_can_be_read_and_the_rest_cannot(compiled, interpreted, seed):
    """The judge is the reader: records pass exactly when it reads them and their offsets count from the base."""
    rng = random.Random(seed)
    rows = [
        (NOW_MS + rng.randrange(1000), rng.choice([None, b"key"]), rng.randbytes(rng.randrange(40)), [("h", b"v")])
        for _ in range(rng.randrange(1, 5))
    ]
    section = bytearray(BatchView(build_batch(rows, base_timestamp=NOW_MS)).records)
    for _ in range(rng.randrange(4)):
        section[rng.randrange(len(section))] = rng.randrange(256)
    if rng.random() < 0.2:
        del section[rng.randrange(len(section)) :]
    cuts = [rng.randrange(len(section) + 1) for _ in range(rng.randrange(4))]
    try:
        read = compiled.decode_records(bytes(section), len(rows), 0, NOW_MS)
        readable = [row[0] for row in read] == list(range(len(rows)))
    except CorruptBatch:
        readable = False
    answers = [
        verdict(kernels, bytes(section), len(rows), pieces)
        for kernels in (compiled, interpreted)
        for pieces in ((), cuts)
    ]
    assert [answer[0] == 0 for answer in answers] == [readable] * 4, f"seed {seed}"
    assert answers[0] == answers[2], f"seed {seed}"
    assert answers[1] == answers[3], f"seed {seed}"


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1), (0, 2**63 - 1), (-1, -(2**63))])
def test_timestamps_beyond_64_bits_are_refused(form, base, delta):
    section = broken_batches.record(0, timestamp_delta=delta)
    beyond = not -(2**63) <= base + delta < 2**63
    for cuts in ((), range(len(section))):
        assert (verdict(form, section, 1, cuts, base)[0] == form.BEYOND) == beyond


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_pieces_are_small_and_make_the_whole(codec):
    data = random.Random(7).randbytes(300_000) + bytes(3_000_000)
    packed = compress(codec, data)
    pieces = list(unpack(codec, packed, 4_000_000, 100_000))
    assert b"".join(pieces) == data == decompress(codec, packed)
    assert max(map(len, pieces)) <= 128 * 1024


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_is_repacked_unpacks_to_the_same(codec):
    data = random.Random(7).randbytes(100_000) + bytes(500_000)
    pieces = [data[at : at + 70_000] for at in range(0, len(data), 70_000)]
    assert decompress(codec, repack(codec, pieces, None, 1_000_000)) == data
    with pytest.raises(KlammError, match="more than 1000 bytes"):
        repack(codec, pieces, None, 1000)


def test_repacking_to_no_codec_is_joining():
    assert repack(Codec.NONE, [b"ab", b"c"], None, 3) == b"abc"


def test_records_that_break_a_rule_are_named():
    keyless, late = 150, 25
    rows = [(NOW_MS + i, b"k" if i % 2 else None, b"v", ()) for i in range(2 * keyless)]
    batch = BatchView(build_batch(rows))
    check = RecordCheck(batch, "t-0", newest=NOW_MS + 250, keyed=True)
    for _ in check.passing([bytes(batch.records[:1000]), bytes(batch.records[1000:])]):
        pass
    assert check.noted_count == keyless + late
    assert [(record.offset_delta, record.keyless) for record in check.noted] == [(i, True) for i in range(0, 200, 2)]
    assert check.largest_timestamp == NOW_MS + 299


def test_a_refusal_names_the_record_and_the_partition():
    batch = BatchView(broken_batches.seal(broken_batches.record(0) + broken_batches.record(5), 2))
    check = RecordCheck(batch, "orders-3")
    with pytest.raises(RecordRefused, match="record 1 of 2 in the batch for orders-3 does not have its place"):
        check.feed(batch.buffer[HEADER_SIZE:])


def test_every_fault_has_words():
    assert set(checking._FAULTS) == {layout.BROKEN, layout.MISPLACED, layout.BEYOND, layout.TRAILING}
