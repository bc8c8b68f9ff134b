from klamm.storage.offset_index import ENTRY, OffsetIndex
from klamm.storage.time_index import TimeIndex


def index_of(*entries: tuple[int, int], base: int = 100) -> OffsetIndex:
    index = OffsetIndex(base, bytearray())
    for offset, position in entries:
        index.append(offset, position)
    return index


def test_an_offset_is_looked_for_from_the_last_batch_that_ends_at_or_before_it():
    index = index_of((109, 4000), (119, 8000), (129, 12000))
    assert [index.lookup(offset) for offset in (100, 108, 109, 110, 119, 500)] == [0, 0, 4000, 4000, 8000, 12000]


def test_a_position_falls_back_to_the_last_known_boundary():
    index = index_of((109, 4000), (119, 8000))
    entries = [index.floor(position) for position in (0, 3999, 4000, 7999, 8000, 99999)]
    assert [entry and entry[1] for entry in entries] == [None, None, 4000, 4000, 8000, 8000]


def test_truncation_drops_batches_that_end_at_or_after_the_offset():
    index = index_of((109, 4000), (119, 8000))
    index.truncate_to(119)
    assert len(index) == 1
    assert index.lookup(1000) == 4000


def test_the_zero_tail_of_a_preallocated_file_holds_no_entries():
    for used in range(5):
        entries = b"".join(ENTRY.pack(10 * i + 9, 4000 * i + 1) for i in range(used))
        assert len(OffsetIndex(0, entries + bytes(8 * 7))) == used
        assert len(OffsetIndex(0, entries)) == used


def test_an_entry_that_points_beyond_the_log_is_not_sane():
    index = index_of((109, 4000))
    assert index.sane(4001)
    assert not index.sane(4000)
    assert OffsetIndex(0, b"").sane(0)


def test_the_time_index_keeps_only_growing_timestamps():
    index = TimeIndex(100, bytearray())
    for timestamp, offset in ((1000, 105), (1000, 110), (900, 115), (1200, 120)):
        index.maybe_append(timestamp, offset)
    assert [index.entry(i) for i in range(len(index))] == [(1000, 105), (1200, 120)]
    assert index.last() == (1200, 120)
    entries = [index.floor(timestamp) for timestamp in (999, 1000, 1199, 1200, 5000)]
    assert entries == [None, (1000, 105), (1000, 105), (1200, 120), (1200, 120)]


def test_a_truncated_time_index_accepts_earlier_times_again():
    index = TimeIndex(0, bytearray())
    index.maybe_append(1000, 5)
    index.maybe_append(2000, 9)
    index.truncate_to(9)
    assert index.last() == (1000, 5)
    index.maybe_append(1500, 9)
    assert index.last() == (1500, 9)


def test_the_zero_tail_of_a_time_index_is_left_out():
    index = TimeIndex(0, bytearray())
    index.maybe_append(1000, 5)
    assert len(TimeIndex(0, bytes(index.buffer) + bytes(120))) == 1
    assert TimeIndex(0, bytes(120)).last() == (-1, 0)


def test_a_lone_record_of_time_zero_is_real():
    assert TimeIndex(50, bytes(12)).last() == (0, 50)
