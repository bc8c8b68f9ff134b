"""The pass recovery makes over a segment, compiled and interpreted: equal words, and hostile bytes stop it."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.records import build_batch

END, SPECIAL, FULL, DAMAGED = 0, 1, 2, 3


class Pass:
    """The arrays one call after another shares."""

    def __init__(self, kernels, slots: int = 16) -> None:
        self.kernels = kernels
        self.producers = bytearray(256 * slots)
        self.w = bytearray(96)
        self.words = memoryview(self.w).cast("q")
        self.words[2], self.words[3], self.words[9] = 0, 2**62, -1

    def run(self, data, *, base: int = 0, end: int = 2**62, interval: int = 100, checked: bool = True) -> int:
        self.marks = bytearray(32 * (len(data) // 61 + 3))
        return self.kernels.check_batches(data, base, end, checked, interval, self.marks, self.producers, self.w)

    def everything(self) -> tuple[bytes, bytes, bytes]:
        return bytes(self.w), bytes(self.marks[: 32 * self.words[11]]), bytes(self.producers)


def log_of(*batches: dict, count: int = 1) -> bytes:
    data, offset = b"", 0
    for fields in batches:
        rows = [(1000 + offset, None, b"value", ())] * fields.get("count", count)
        rest = {name: value for name, value in fields.items() if name != "count"}
        data += build_batch(rows, base_offset=offset, **{"leader_epoch": 0, **rest})
        offset += len(rows)
    return data


def test_plain_batches_are_passed_over_and_indexed(form):
    data = log_of(*[{}] * 20)
    one = Pass(form)
    assert one.run(data) == END
    assert one.words[0] == one.words[7] == len(data)
    assert (one.words[1], one.words[5]) == (20, 20)
    entries = memoryview(one.marks).cast("q")
    assert one.words[11] > 3
    assert list(entries[:4]) == [2, 2 * len(data) // 20, 1002, 2]


def test_a_flipped_bit_stops_it_unless_checksums_are_trusted(form):
    data = bytearray(log_of({}, {}, {}))
    data[-1] ^= 1
    one, other = Pass(form), Pass(form)
    assert one.run(data) == DAMAGED
    assert one.words[1] == 2
    assert other.run(data, checked=False) == END


def test_offsets_must_follow_each_other_and_end_before_the_next_segment(form):
    data = log_of({}, {}, {})
    backwards = Pass(form)
    backwards.words[1] = 1
    assert backwards.run(data) == DAMAGED
    beyond = Pass(form)
    assert beyond.run(data, end=2) == DAMAGED
    assert beyond.words[1] == 2
    assert Pass(form).run(data, base=-(2**31)) == DAMAGED


def test_a_negative_offset_delta_or_a_huge_offset_stops_it(form):
    for place, value in ((">i", -1), (">q", 2**63 - 1)):
        data = bytearray(log_of({}))
        struct.pack_into(place, data, 23 if place == ">i" else 0, value)
        assert Pass(form).run(data, checked=False) == DAMAGED


def test_markers_and_other_leaders_are_left_to_the_caller(form):
    marker = log_of({}, {"control": True, "producer_id": 7, "producer_epoch": 0})
    assert Pass(form).run(marker) == SPECIAL
    later = log_of({}, {"leader_epoch": 1})
    one = Pass(form)
    assert one.run(later) == SPECIAL
    assert one.words[1] == 1
    ended = Pass(form)
    ended.words[3] = 1
    assert ended.run(log_of({}, {})) == SPECIAL


def test_the_last_five_batches_of_a_producer_are_remembered(form):
    data = log_of(
        *[{"producer_id": 7, "producer_epoch": 2, "base_sequence": i, "transactional": i > 3} for i in range(8)]
    )
    one = Pass(form)
    assert one.run(data) == END
    slot = list(memoryview(one.producers).cast("q")[7 * 32 : 8 * 32])
    assert slot[:5] == [7, 2, 0, 8, 4]
    ring = [slot[7 + 5 * i : 12 + 5 * i] for i in range(5)]
    assert sorted(ring) == [[i, i, i, i, 1000 + i] for i in range(3, 8)]


def test_a_full_table_stops_it(form):
    data = log_of(*[{"producer_id": i, "producer_epoch": 0, "base_sequence": 0} for i in range(10)])
    one = Pass(form, slots=8)
    assert one.run(data) == FULL
    assert (one.words[4], one.words[1]) == (6, 6)


FIELDS = st.fixed_dictionaries(
    {"count": st.integers(1, 3)},
    optional={
        "producer_id": st.integers(0, 40),
        "producer_epoch": st.integers(-1, 3),
        "base_sequence": st.sampled_from([-1, 0, 1, 2**31 - 1]),
        "leader_epoch": st.sampled_from([0, 0, 0, 1]),
        "transactional": st.booleans(),
        "control": st.sampled_from([False, False, False, True]),
    },
)


@settings(max_examples=60)
@given(batches=st.lists(FIELDS, max_size=30), seed=st.integers(0, 2**32), damage=st.integers(0, 3))
def test_both_forms_do_the_same(compiled, interpreted, batches, seed, damage):
    data = bytearray(log_of(*batches))
    chance = random.Random(seed)
    for _ in range(damage if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    checked = chance.random() < 0.5
    one, other = Pass(compiled), Pass(interpreted)
    for _ in range(40):
        reasons = [scan.run(data, checked=checked) for scan in (one, other)]
        assert reasons[0] == reasons[1]
        assert one.everything() == other.everything()
        if reasons[0] in (END, DAMAGED):
            break
        for scan in (one, other):
            if reasons[0] == FULL:
                scan.producers[:] = bytes(len(scan.producers))
                scan.words[4] = 0
            else:  # what a caller does: deal with the batch, go on behind it
                size = struct.unpack_from(">i", data, scan.words[0] + 8)[0] + 12
                scan.words[0] += size
                scan.words[7] += size
                scan.words[2] = (
                    struct.unpack_from(">i", data, scan.words[0] + 12)[0] if scan.words[0] < len(data) - 61 else 0
                )


@pytest.mark.parametrize("size", [0, 1, 60])
def test_too_few_bytes_are_the_end(form, size):
    assert Pass(form).run(bytes(size)) == END
