"""The two passes of compaction: newest offset per key, and what stays; compiled, interpreted and by hand."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.model.errors import CorruptBatch
from klamm.records import build_batch, decode_batch, iter_batches
from klamm.records.batch import HEADER_SIZE

SEED = bytes(range(32))
NOW = 1_000_000


class Pass:
    """The arrays one call after another shares."""

    def __init__(self, kernels, slots: int = 64) -> None:
        self.kernels = kernels
        self.table = bytearray(24 * slots)
        self.w = bytearray(96)
        self.words = memoryview(self.w).cast("q")
        self.words[9] = -1
        self.limit = slots * 9 // 10

    def map(self, data, first_offset: int = 0) -> int:
        self.words[0] = 0
        return self.kernels.map_keys(data, first_offset, self.table, self.limit, SEED, self.w)

    def filter(self, data, map_end: int, keep: tuple[int, ...] = (), interval: int = 100) -> tuple[int, bytes]:
        self.words[0] = self.words[1] = 0
        self.out, self.marks = bytearray(len(data)), bytearray(32 * (len(data) // 61 + 2))
        reason = self.kernels.filter_batches(
            data,
            self.out,
            self.table,
            SEED,
            map_end,
            NOW,
            struct.pack(f"={len(keep)}q", *keep),
            interval,
            self.marks,
            self.w,
        )
        return reason, bytes(self.out[: self.words[1]])


@pytest.fixture(params=["compiled", "interpreted"])
def kernels(request):
    return request.getfixturevalue(request.param)


def log_of(*batches: list[tuple[bytes | None, bytes | None]], **fields) -> bytes:
    """Batches of (key, value) records, one after the other; timestamps are 1000 and the offset."""
    data, offset = b"", 0
    for rows in batches:
        records = [(1000 + offset + i, key, value, ()) for i, (key, value) in enumerate(rows)]
        data += build_batch(records, base_offset=offset, **fields)
        offset += len(rows)
    return data


def rows(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (r.offset, r.timestamp, r.key, r.value)
        for view in iter_batches(data)
        for r in decode_batch(data, view.position)
    ]


def test_the_newest_record_of_each_key_stays_with_its_offset_and_time(kernels):
    data = log_of([(b"a", b"1"), (b"b", b"2")], [(b"a", b"3")], [(b"c", b"4"), (b"b", b"5"), (b"a", b"6")])
    run = Pass(kernels)
    assert run.map(data) == kernels.END
    assert (run.words[0], run.words[2], run.words[3], run.words[4]) == (len(data), 3, 6, 6)
    reason, kept = run.filter(data, 6)
    assert reason == kernels.END
    assert rows(kept) == [(3, 1003, b"c", b"4"), (4, 1004, b"b", b"5"), (5, 1005, b"a", b"6")]
    assert kept == data[-len(kept) :], "a batch that keeps all is copied as it is"
    assert run.words[5] == 3


def test_a_batch_that_loses_records_keeps_its_span_of_offsets(kernels):
    data = log_of([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4"), (b"c", b"5")], [(b"c", b"6")])
    run = Pass(kernels)
    run.map(data)
    _, kept = run.filter(data, 6)
    first = next(iter_batches(kept))
    assert (first.base_offset, first.last_offset, first.record_count, first.max_timestamp) == (0, 4, 2, 1003)
    assert [row[0] for row in rows(kept)] == [2, 3, 5]


def test_records_beyond_the_map_stay_and_those_without_key_go(kernels):
    data = log_of([(b"a", b"1"), (None, b"2")], [(b"a", b"3"), (None, b"4")])
    run = Pass(kernels)
    run.map(data)
    assert [row[0] for row in rows(run.filter(data, 2)[1])] == [2, 3]


def test_an_emptied_batch_leaves_its_header_where_it_is_asked_to(kernels):
    data = log_of([(b"a", b"1"), (b"a", b"2")], [(b"a", b"3")], producer_id=7, producer_epoch=3, base_sequence=5)
    run = Pass(kernels)
    run.map(data)
    _, kept = run.filter(data, 3, keep=(1, 2))
    first, second = iter_batches(kept)
    first.check_crc()
    assert (first.size, first.record_count, first.base_offset, first.last_offset) == (HEADER_SIZE, 0, 0, 1)
    assert (first.producer_id, first.producer_epoch, first.last_sequence, first.max_timestamp) == (7, 3, 6, 1001)
    assert first.base_timestamp == -1
    assert second.record_count == 1
    run.words[6] = 0
    assert run.filter(kept, 3, keep=(1, 2)) == (kernels.END, kept), "an empty header is kept as it is"


def test_tombstones_wait_for_their_horizon(kernels):
    fresh = log_of([(b"a", b"1"), (b"b", None)])
    run = Pass(kernels)
    run.map(fresh)
    assert run.filter(fresh, 2) == (kernels.SPECIAL, b""), "the caller must give the batch a horizon"
    for horizon, kept in ((NOW + 1, [0, 1]), (NOW, [0])):
        waiting = bytes(
            build_batch([(1000, b"a", b"1", ()), (1001, b"b", None, ())], base_timestamp=horizon, delete_horizon=True)
        )
        assert [row[:2] for row in rows(run.filter(waiting, 2)[1])] == [(i, 1000 + i) for i in kept]


def test_what_is_not_plain_is_left_to_the_caller(kernels):
    plain = log_of([(b"a", b"1")])
    for fields in ({"codec": 1}, {"transactional": True, "producer_id": 1}, {"control": True}):
        special = bytes(build_batch([(1, b"\0\0\0\0", b"x", ())], base_offset=1, **fields))
        run = Pass(kernels)
        assert run.map(plain + special) == kernels.SPECIAL
        assert run.words[0] == len(plain)
        assert run.filter(plain + special, 1) == (kernels.SPECIAL, plain)


def test_damage_is_found_and_nothing_beyond_the_bytes_is_read(kernels):
    data = log_of([(b"a", b"1")], [(b"b", b"2")])
    first = len(data) // 2
    for position in range(16, first):
        hurt = bytearray(data)
        hurt[position] ^= 0x40
        run = Pass(kernels)
        assert run.map(hurt) == kernels.DAMAGED
        assert run.words[0] == 0
        assert run.filter(hurt, 2) == (kernels.DAMAGED, b"")
    for size in range(first, len(data)):
        run = Pass(kernels)
        assert run.map(data[:size]) == kernels.END
        assert run.words[0] == first


def test_a_full_table_says_so(kernels):
    data = log_of(*[[(b"%d" % i, b"v")] for i in range(20)])
    run = Pass(kernels, slots=10)
    assert run.map(data) == kernels.FULL
    assert (run.words[2], run.words[3]) == (9, 9)
    with pytest.raises(ValueError, match="free slot"):
        kernels.map_keys(data, 0, run.table, 10, SEED, run.w)


def test_index_entries_come_as_when_appending(kernels):
    data = log_of(*[[(b"%d" % i, b"v" * 20)] for i in range(10)])
    run = Pass(kernels)
    run.map(data)
    run.filter(data, 10, interval=150)
    size = len(data) // 10
    entries = list(struct.iter_unpack("=4q", run.marks[: 32 * run.words[11]]))
    assert entries == [(i, i * size, 1000 + i, 1000 - 1000 + i) for i in (2, 4, 6, 8)]
    assert (run.words[7], run.words[9], run.words[10]) == (len(data), 1009, 9)


def test_a_section_is_filtered_like_a_batch(kernels):
    records = [(5, b"a", b"1", ()), (6, b"b", None, ()), (7, b"a", b"2", [("h", b"x")]), (8, None, b"3", ())]
    batch = build_batch(records)
    section = bytes(batch[HEADER_SIZE:])
    run = Pass(kernels)
    assert kernels.map_section(section, 4, 100, 0, run.table, run.limit, SEED, run.w) == kernels.END
    kept, count, tombstones, largest = kernels.filter_section(section, 4, 100, run.table, SEED, 104, False, 61)
    assert (count, tombstones, largest) == (2, 1, 2)
    assert kept[:61] == bytes(61)
    kept, count, tombstones, _ = kernels.filter_section(section, 4, 100, run.table, SEED, 104, True, 0)
    assert (count, tombstones) == (1, 0)
    with pytest.raises(CorruptBatch):
        kernels.filter_section(section[:-1], 4, 100, run.table, SEED, 104, True, 0)
    assert kernels.map_section(section[:-1], 4, 100, 0, run.table, run.limit, SEED, run.w) == kernels.DAMAGED


@pytest.mark.parametrize("shift", [0, 1, -1, 10**12, -(10**12)])
def test_records_counted_from_another_time_are_the_same_records(kernels, shift: int):
    records = [(1000 + 7 * i, b"k%d" % i, b"v" * 100, [("h", None)]) for i in range(5)]
    section = build_batch(records)[HEADER_SIZE:]
    shifted = kernels.shift_timestamps(section, 5, shift, HEADER_SIZE)
    expected = build_batch(records, base_timestamp=1000 - shift)
    assert shifted[HEADER_SIZE:] == expected[HEADER_SIZE:]
    with pytest.raises(CorruptBatch):
        kernels.shift_timestamps(section, 4, shift, 0)
    with pytest.raises(CorruptBatch):
        kernels.shift_timestamps(section, 5, 2**63 - 1, 0)


keys = st.sampled_from([b"", b"a", b"b", b"cc", b"a-key-of-more-than-eight-bytes", b"x" * 16, None])
values = st.sampled_from([b"", b"v", b"w" * 300])
batches = st.lists(st.lists(st.tuples(keys, values), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=60)
@given(batches, st.data())
def test_both_forms_agree_with_a_plain_dictionary(compiled, interpreted, content, data):
    log = log_of(*content)
    end = sum(map(len, content))
    map_end = data.draw(st.integers(0, end))
    newest = {key: offset for offset, _, key, _ in rows(log) if key is not None}
    expected = [row for row in rows(log) if row[0] >= map_end or (row[2] is not None and newest[row[2]] == row[0])]
    outputs = []
    for kernels in (compiled, interpreted):
        run = Pass(kernels)
        assert run.map(log) == kernels.END
        reason, kept = run.filter(log, map_end)
        assert reason == kernels.END
        assert rows(kept) == expected
        outputs.append((kept, bytes(run.w), bytes(run.marks)))
    assert outputs[0] == outputs[1]
