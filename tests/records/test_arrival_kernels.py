"""A producer's batch located in its request, compiled and interpreted: equal results, and no read beyond the end.

Breaks when a batch that needs more than an append counts as plain, when a request is taken for another it resembles,
or when the two forms of the kernels disagree.
"""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import broken_batches
from klamm.records import build_batch
from klamm.records.batch import HEADER, BatchView

PREFIX = b"\x00\x04me\x00acks-topic-partition"


def batch(size=10, *, producer_id=-1, epoch=-1, sequence=-1, **fields):
    rows = [(1000, None, b"v" * size, ())] * fields.pop("count", 1)
    return bytearray(build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields))


def uvarint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def request(records, *, version=9, api=0, correlation_id=7, prefix=PREFIX, tail=b"\0\0\0"):
    start = struct.pack(">hhi", api, version, correlation_id) + prefix
    if version >= 9:
        return start + uvarint(len(records) + 1) + bytes(records) + tail
    return start + struct.pack(">i", len(records)) + bytes(records)


def known(*versions):
    return {struct.pack(">h", version) + PREFIX: f"v{version}" for version in versions or (9,)}


def locate_batch(kernels, frame, table=None, *, before=0, behind=0):
    """What the kernel finds in a frame that lies inside of a larger buffer."""
    view = memoryview(bytearray(b"\xff" * before + frame + b"\xff" * behind))
    end = before + len(frame)
    return kernels.known_batch(view, before, end, [3, len(PREFIX)], known() if table is None else table)


def expected_header(records, *, checked):
    """What is expected of the header, by the independent struct."""
    _, _, _, _, crc, codec, last, _, largest, producer, epoch, sequence, _ = HEADER.unpack_from(records)
    keyless = not codec and any(record.key is None for record in BatchView(records).decode())
    return -1 if checked else crc, last, largest, producer, epoch, sequence, codec, keyless


@pytest.mark.parametrize("version", range(7, 14))
@pytest.mark.parametrize("size", [1, 100, 900, 1100, 16_200, 16_400, 1_000_000])
def test_the_batch_of_a_known_request_is_found(form, version, size):
    records = batch(size, producer_id=2**40, epoch=300, sequence=70_000, count=3 if size < 1000 else 1)
    frame = request(records, version=version, correlation_id=-5)
    located = locate_batch(form, frame, known(version), before=11, behind=9)
    begin = 11 + frame.index(records)
    assert located == (
        f"v{version}",
        -5,
        begin,
        begin + len(records),
        expected_header(records, checked=len(records) <= 1024),
    )
    assert form.plain_header(memoryview(records)) == expected_header(records, checked=False)


def test_a_request_of_another_kind_is_left_alone(form):
    good = batch()
    for frame in (
        request(good, api=1),
        request(good, api=256),
        request(good, version=10),
        request(good, version=9 + 256),
        request(good, prefix=PREFIX[:-1] + b"?"),
        request(good, prefix=PREFIX + b"x"),
        request(good, tail=b"\0\0\1"),
        request(good, tail=b"\0\1\0"),
        request(good, tail=b"\1\0\0"),
        request(good, tail=b"\0\0"),
        request(good, tail=b"\0\0\0\0"),
        request(good + good),
        request(good[:-1]),
        request(b""),
    ):
        assert locate_batch(form, frame) is None
    assert locate_batch(form, request(good)) is not None
    assert locate_batch(form, request(good, version=8), known(8)) is not None
    assert locate_batch(form, request(good + b"\0", version=8), known(8)) is None


@pytest.mark.parametrize(
    ("at", "value"),
    [(7, 1), (11, 1), (16, 1), (16, 3), (21, 1), (22, 0x10), (22, 0x20), (22, 0x08), (22, 5), (23, 0x80), (60, 2)],
)
def test_a_batch_that_is_not_plain_goes_the_long_way(form, at, value):
    """Offset, length, magic, attributes (transactional, control, append time, an unknown codec), deltas, count."""
    records = batch()
    records[at] ^= value
    assert form.plain_header(memoryview(records)) is None
    assert locate_batch(form, request(records)) is None


def test_a_small_batch_that_does_not_match_its_checksum_goes_the_long_way(form):
    records = batch()
    records[-2] ^= 1  # in the value: the record stays one
    assert locate_batch(form, request(records)) is None
    assert form.plain_header(memoryview(records)) == expected_header(records, checked=False)


def test_a_large_batch_is_left_for_the_library_to_check(form):
    records = batch(5000)
    records[-2] ^= 1  # in the value: the record stays one
    assert locate_batch(form, request(records))[4] == expected_header(records, checked=False)


@pytest.mark.parametrize("version", [8, 9])
def test_a_cut_request_is_none_wherever_it_is_cut(compiled, interpreted, version):
    frame = request(batch(200), version=version)
    for end in range(len(frame)):
        assert locate_batch(compiled, frame[:end], known(version), behind=64) is None
        assert locate_batch(interpreted, frame[:end], known(version), behind=64) is None


@pytest.mark.parametrize("name", broken_batches.SECTIONS)
def test_a_batch_whose_records_are_none_goes_the_long_way(form, name):
    section, count = broken_batches.SECTIONS[name]
    records = broken_batches.seal(section, count)
    assert form.plain_header(memoryview(records)) is None
    assert locate_batch(form, request(records)) is None


def test_a_largest_timestamp_that_no_record_has_goes_the_long_way(form):
    records = broken_batches.seal(broken_batches.TWO, 2, max_timestamp=broken_batches.NOW_MS + 1)
    assert form.plain_header(memoryview(records)) is None
    assert form.plain_header(memoryview(broken_batches.seal(broken_batches.TWO, 2))) is not None


def test_a_request_longer_than_its_buffer_is_an_error(form):
    view = memoryview(bytearray(request(batch())))
    with pytest.raises(ValueError, match="buffer"):
        form.known_batch(view, 0, len(view) + 1, [len(PREFIX)], known())


def test_a_batch_of_more_than_two_megabytes_goes_the_long_way(form):
    assert locate_batch(form, request(batch(2**21))) is None


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 300))
def test_both_forms_say_the_same_of_damaged_requests(compiled, interpreted, seed, size):
    rng = random.Random(seed)
    version = rng.choice([7, 8, 9, 12])
    frame = bytearray(request(batch(size, producer_id=rng.choice([-1, 5])), version=version))
    for _ in range(rng.randrange(4)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    frame = bytes(frame[: rng.choice([len(frame), rng.randrange(len(frame) + 1)])])
    assert locate_batch(compiled, frame, known(version), behind=70) == locate_batch(
        interpreted, frame, known(version), behind=70
    )
    rest = bytes(frame[-size:])
    assert compiled.plain_header(memoryview(rest)) == interpreted.plain_header(memoryview(rest))
