"""Appending, reading and cutting one log."""

import os

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView, iter_batches

from .conftest import NOW, PRODUCER, Home, append_end_txn_marker, batch, from_producer, read_all


def test_offsets_and_leader_epoch_are_set_in_place(home: Home):
    log = home.open()
    first, second = batch(3), batch(2)
    assert log.stage(first, 5, NOW) == 0
    assert log.stage(second, 5, NOW) == 3
    assert (log.log_end_offset, log.next_offset) == (0, 5), "staged is not written"
    log.write_staged()
    assert (log.log_end_offset, log.next_offset) == (5, 5)
    stored = list(iter_batches(log.read(0, 1 << 20, 5).read()))
    assert [(b.base_offset, b.leader_epoch) for b in stored] == [(0, 5), (3, 5)]
    assert all(b.crc_matches() for b in stored)
    assert log.leader_epochs.entries() == [(5, 0)]


def test_a_commit_with_nothing_staged_does_nothing(home: Home):
    log = home.open()
    log.write_staged()
    assert log.log_end_offset == 0


def test_more_batches_than_one_write_takes(home: Home):
    log = home.open()
    for _ in range(2500):
        log.stage(batch(), 0, NOW)
    log.write_staged()
    assert log.log_end_offset == 2500
    assert len(read_all(log)) == 2500


def test_a_group_that_does_not_fit_rolls_in_its_middle(home: Home):
    log = home.open(segment_bytes=1000)
    for i in range(50):
        log.stage(from_producer(i), 0, NOW)
    log.write_staged()
    assert len(log.segments) > 3
    assert all(segment.size <= 1000 for segment in log.segments)
    assert [offset for offset, _ in read_all(log)] == list(range(50))
    for base in log.segments.bases[1:]:
        snapshot = log.snapshots.latest(0, base)
        assert snapshot[0] == base
        assert snapshot[1][0].last_offset == base - 1, "a snapshot knows nothing from behind it"


def test_a_segment_rolls_by_the_time_of_its_records(home: Home):
    log = home.open(segment_ms=1000)
    for timestamp in (NOW, NOW + 1000, NOW + 1001, NOW + 1500, NOW + 2002):
        log.append_as_leader(batch(timestamp=timestamp), 0, NOW)
    assert log.segments.bases == [0, 2, 4]


def test_a_segment_of_records_without_time_rolls_by_the_clock(home: Home):
    log = home.open(segment_ms=1000)
    for now in (NOW, NOW + 1000, NOW + 1001):
        log.append_as_leader(batch(timestamp=-1, value=b"x"), 0, now)
    assert log.segments.bases == [0, 2]


def test_jitter_lets_a_segment_roll_earlier(home: Home):
    log = home.open(segment_ms=1_000_000, segment_jitter_ms=900_000)
    log.append_as_leader(batch(), 0, NOW)
    assert NOW + 100_000 <= log.segments.active.roll_at_timestamp < NOW + 1_000_000


def test_a_full_index_rolls(home: Home):
    log = home.open(segment_index_bytes=48, index_interval_bytes=1)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    assert len(log.segments) > 3
    assert all(os.path.getsize(s.path(".index")) <= 48 for s in log.segments if s is not log.segments.active)


def test_offsets_too_far_from_the_base_roll(home: Home):
    log = home.open()
    log.append_as_follower(batch(base_offset=0))
    log.append_as_follower(batch(base_offset=2**31 - 1))
    log.append_as_follower(batch(base_offset=2**31))
    assert log.segments.bases == [0, 2**31]


def test_a_follower_takes_offsets_and_epochs_as_they_come(home: Home):
    log = home.open()
    data = bytes(batch(2, base_offset=0, leader_epoch=1)) + bytes(from_producer(9, 3, base_offset=5, leader_epoch=4))
    log.append_as_follower(memoryview(bytearray(data + bytes(batch(9, base_offset=8))[:40])))
    assert log.log_end_offset == 8
    assert log.leader_epochs.entries() == [(1, 0), (4, 5)]
    assert log.producers.entries[PRODUCER].next_sequence == 12


def test_a_follower_refuses_what_does_not_continue_its_log(home: Home):
    log = home.open()
    log.append_as_follower(batch(5, base_offset=0))
    with pytest.raises(KlammError):
        log.append_as_follower(batch(base_offset=4))
    bad = from_producer(0, base_offset=5)
    bad[70] ^= 1
    good = from_producer(0, base_offset=5)
    with pytest.raises(KlammError):
        log.append_as_follower(memoryview(bytearray(bytes(from_producer(0, base_offset=5)) + bytes(bad))))
    assert (log.log_end_offset, log.next_offset, log.producers.entries) == (5, 5, {})
    log.append_as_follower(good)
    assert log.log_end_offset == 6


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 200, 4096])
def test_every_offset_is_read_from_the_batch_that_holds_it(home: Home, interval: int):
    log = home.open(segment_bytes=2000, index_interval_bytes=interval)
    for i in range(60):
        log.append_as_leader(batch(1 + i % 4), 0, NOW)
    end = log.log_end_offset
    for offset in range(end):
        for max_bytes in (0, 100, 500, 10_000):
            piece = log.read(offset, max_bytes, end)
            views = list(iter_batches(piece.read()))
            assert views[0].base_offset <= offset <= views[0].last_offset
            assert piece.length <= max_bytes or len(views) == 1
            assert views[-1].next_offset <= piece.next_offset
    log.segments.forget_hints()
    assert [o for o, _ in read_all(log, max_bytes=300)] == list(range(end))


def test_nothing_starts_at_or_after_the_upper_offset(home: Home):
    log = home.open(segment_bytes=1500, index_interval_bytes=300)
    for _ in range(40):
        log.append_as_leader(batch(2), 0, NOW)
    for upper in range(0, 81, 2):
        offset = 0
        while offset < upper:
            piece = log.read(offset, 600, upper)
            views = list(iter_batches(piece.read()))
            assert all(view.base_offset < upper for view in views)
            offset = views[-1].next_offset
        assert log.read(upper, 600, upper) is None


def test_without_min_one_a_first_batch_that_is_too_large_is_not_given(home: Home):
    log = home.open()
    log.append_as_leader(batch(value=b"x" * 1000), 0, NOW)
    assert log.read(0, 10, 1, min_one=False) is None
    assert log.read(0, 10, 1, min_one=True).length > 1000


def test_outside_the_log_is_out_of_range(home: Home):
    log = home.open()
    log.append_as_leader(batch(5), 0, NOW)
    log.advance_high_watermark(5)
    log.delete_records(2)
    for offset in (-1, 1, 6):
        with pytest.raises(KlammError) as refused:
            log.read(offset, 100, 5)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(5, 100, 5) is None
    assert log.read(2, 100, 5) is not None


def test_a_reader_goes_on_where_the_segment_rolled(home: Home):
    log = home.open(segment_bytes=300)
    log.append_as_leader(batch(), 0, NOW)
    assert log.read(0, 1000, 1).next_offset == 1
    log.roll(NOW)
    log.append_as_leader(batch(), 0, NOW)
    piece = log.read(1, 1000, 2)
    assert BatchView(piece.read()).base_offset == 1


def test_gaps_are_read_over(home: Home):
    log = home.open()
    log.append_as_follower(batch(2, base_offset=0))
    log.append_as_follower(batch(2, base_offset=10))
    log.roll(NOW)
    log.append_as_follower(batch(2, base_offset=20))
    assert BatchView(log.read(5, 1000, 22).read()).base_offset == 10
    assert BatchView(log.read(15, 1000, 22).read()).base_offset == 20


def test_a_slice_outlives_its_segment(home: Home):
    log = home.open()
    log.append_as_leader(batch(value=b"remember me"), 0, NOW)
    piece = log.read(0, 1000, 1)
    log.truncate_fully_and_start_at(100)
    assert b"remember me" in piece.read()


def test_many_segments_keep_few_files_open(home: Home):
    log = home.open(segment_bytes=100)
    for _ in range(300):
        log.append_as_leader(batch(), 0, NOW)
    assert len(log.segments) == 300
    assert len(read_all(log)) == 300
    mine = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    assert sum(str(home.path) in name for name in mine) < 20


# --- by time ---------------------------------------------------------------------------------------------------------


def test_offsets_by_time(home: Home):
    log = home.open(segment_bytes=1000, index_interval_bytes=100)
    stamps = [NOW + (i * 37) % 100 * 10 for i in range(100)]
    for stamp in stamps:
        log.append_as_leader(batch(timestamp=stamp), 0, NOW)
    for target in range(NOW - 10, NOW + 1010, 7):
        expected = next((i for i, stamp in enumerate(stamps) if stamp >= target), None)
        result = log.offset_for_timestamp(target)
        assert (result.offset if result else None) == expected
        if result:
            assert result.timestamp == stamps[expected]
    assert log.offset_of_max_timestamp()[:2] == (max(stamps), stamps.index(max(stamps)))


def test_a_record_inside_a_batch_is_found_by_its_own_time(home: Home):
    log = home.open()
    log.append_as_leader(batch(10), 4, NOW)
    assert log.offset_for_timestamp(NOW + 3) == (NOW + 3, 3, 4)
    assert log.offset_of_max_timestamp() == (NOW + 9, 9, 4)
    log.advance_high_watermark(10)
    log.delete_records(5)
    assert log.offset_for_timestamp(NOW + 3).offset == 5


def test_an_empty_log_has_no_times(home: Home):
    log = home.open()
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


# --- producers -------------------------------------------------------------------------------------------------------


def test_duplicates_are_answered_with_the_first_offset(home: Home):
    log = home.open()
    sent = [from_producer(i * 2, 2) for i in range(7)]
    copies = [memoryview(bytearray(view)) for view in sent]
    assert [log.append_as_leader(view, 0, NOW) for view in sent] == [0, 2, 4, 6, 8, 10, 12]
    assert [log.append_as_leader(view, 0, NOW) for view in copies[2:]] == [4, 6, 8, 10, 12]
    with pytest.raises(KlammError) as refused:
        log.append_as_leader(copies[0], 0, NOW)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14


def test_a_duplicate_of_a_batch_that_is_only_staged(home: Home):
    log = home.open()
    assert log.stage(from_producer(0), 0, NOW) == 0
    assert log.stage(from_producer(0), 0, NOW) == 0
    assert log.stage(from_producer(1), 0, NOW) == 1
    log.write_staged()
    assert log.log_end_offset == 2


# --- transactions ----------------------------------------------------------------------------------------------------


def end(log, committed: bool, producer_id: int = 7) -> int:
    return append_end_txn_marker(
        log, producer_id, 0, committed=committed, coordinator_epoch=0, leader_epoch=0, now_ms=NOW
    )


def test_the_last_stable_offset_waits_for_markers_and_the_high_watermark(home: Home):
    log = home.open()
    log.append_as_leader(batch(2), 0, NOW)
    log.append_as_leader(from_producer(0, 3, transactional=True), 0, NOW)
    log.advance_high_watermark(5)
    assert (log.high_watermark, log.last_stable_offset) == (5, 2)
    assert end(log, committed=False) == 5
    assert log.last_stable_offset == 2
    log.advance_high_watermark(6)
    assert log.last_stable_offset == 6
    assert log.aborted_transactions(0, 6) == [(7, 2, 5, 6)]
    assert log.aborted_transactions(0, 2) == []
    assert log.aborted_transactions(6, 9) == []


def test_a_transaction_survives_reopening(home: Home):
    log = home.open(segment_bytes=500)
    for i in range(10):
        log.append_as_leader(from_producer(i, transactional=True), 0, NOW)
    log = home.crash().open(segment_bytes=500)
    assert log.producers.first_unstable_offset == 0
    end(log, committed=False)
    log.close()
    assert log.aborted_transactions(0, 99) == [(7, 0, 10, 11)]


# --- the start and the end -------------------------------------------------------------------------------------------


def test_deleting_records_moves_the_start(home: Home):
    log = home.open(segment_bytes=300)
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    with pytest.raises(KlammError) as refused:
        log.delete_records(5)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.advance_high_watermark(10)
    assert log.delete_records(5) == 5
    assert log.delete_records(3) == 5
    assert log.leader_epochs.entries() == [(0, 5)]
    assert log.remove_segments_below_start() > 0
    assert read_all(log)[0][0] == 5
    assert log.delete_records(-1) == 10


@pytest.mark.parametrize("target", range(41))
def test_truncation_leaves_exactly_what_lies_before(home: Home, target: int):
    log = home.open(segment_bytes=1000, index_interval_bytes=200)
    for i in range(20):
        log.append_as_leader(from_producer(i * 2, 2), i // 7, NOW)
    log.advance_high_watermark(40)
    changed = log.truncate_to(target)
    assert changed == (target < 40)
    expected = target // 2 * 2 if target % 2 else target
    assert log.log_end_offset == log.next_offset == log.high_watermark == expected
    assert [o for o, _ in read_all(log)] == list(range(expected))
    assert log.leader_epochs.latest == ((expected // 2 - 1) // 7 if expected else -1)
    known = log.producers.entries.get(7)
    assert (known.next_sequence if known else 0) == expected
    assert log.append_as_leader(from_producer(expected), 9, NOW) == expected
    again = home.crash().open()
    assert [o for o, _ in read_all(again)] == list(range(expected + 1))


def test_beginning_anew(home: Home):
    log = home.open(segment_bytes=300)
    for i in range(10):
        log.append_as_leader(from_producer(i), 3, NOW)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert log.producers.entries == {}
    assert log.leader_epochs.entries() == []
    assert home.names() == {f"{1000:020d}.log", "leader-epoch-checkpoint"}
    assert log.append_as_leader(batch(), 4, NOW) == 1000
    assert home.crash().open().log_start_offset == 1000


def test_a_topic_id_is_given_once(home: Home):
    log = home.open()
    log.set_topic_id(b"1" * 16)
    log.set_topic_id(b"1" * 16)
    with pytest.raises(KlammError) as refused:
        log.set_topic_id(b"2" * 16)
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    assert home.crash().open().topic_id == b"1" * 16


def test_new_settings_take_effect(home: Home):
    log = home.open()
    log.append_as_leader(batch(value=b"x" * 5000), 0, NOW)
    log.config = type(log.config)(max_message_bytes=1000)
    with pytest.raises(KlammError) as refused:
        log.append_as_leader(batch(value=b"x" * 5000), 0, NOW)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_preallocated_segments_are_cut_to_their_content(home: Home):
    log = home.open(preallocate=True, segment_bytes=100_000)
    log.append_as_leader(batch(), 0, NOW)
    path = log.segments.active.path(".log")
    assert os.path.getsize(path) == 100_000
    assert home.crash().open().log_end_offset == 1
    log.roll(NOW)
    assert os.path.getsize(path) == log.segments[0].size < 1000
    log.append_as_leader(batch(), 0, NOW)
    log.close()
    assert home.open(clean=True).log_end_offset == 2


def test_the_largest_timestamp_is_known_after_a_truncation(home: Home):
    log = home.open()
    for i in range(4):
        log.append_as_leader(batch(timestamp=NOW + 10 * i), 0, NOW)
    log.truncate_to(2)
    assert log.offset_for_timestamp(NOW + 5) == (NOW + 10, 1, 0)
    log.roll(NOW)
    assert log.offset_of_max_timestamp() == (NOW + 10, 1, 0)
