"""Batches: what a view says, what it writes, what it refuses."""

import struct

import pytest

from klamm.model.errors import CorruptBatch, ErrorCode, RecordRefused
from klamm.records import BatchView, DecodedRecord, build_batch, decode_batch, iter_batches
from klamm.records.batch import HEADER_SIZE
from klamm.records.checking import NotedRecord, RecordCheck

ROWS = [
    (1000, b"table-4", b"goulash", [("waiter", b"anna"), ("note", None)]),
    (1003, None, b"soup", []),
    (1001, b"table-7", None, []),
    (1001, b"", b"", [("", b"")]),
]


def records_of(rows, base_offset=0):
    return [DecodedRecord(base_offset + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(rows)]


def test_a_view_reads_the_header_once():
    batch = build_batch(
        ROWS, base_offset=70, producer_id=9, producer_epoch=2, base_sequence=5, leader_epoch=3, transactional=True
    )
    view = BatchView(b"prefix" + batch, 6)
    assert (view.base_offset, view.last_offset, view.next_offset) == (70, 73, 74)
    assert (view.base_timestamp, view.max_timestamp) == (1000, 1003)
    assert (view.producer_id, view.producer_epoch, view.base_sequence, view.last_sequence) == (9, 2, 5, 8)
    assert (view.leader_epoch, view.record_count, view.codec) == (3, 4, 0)
    assert view.is_transactional
    assert not view.is_control
    assert not view.is_log_append_time
    assert not view.has_delete_horizon
    assert (view.size, view.end) == (len(batch), len(batch) + 6)
    assert view.raw == batch
    view.check_crc()
    assert "70..73" in repr(view)


@pytest.mark.parametrize("codec", range(5))
def test_records_come_back_as_they_went_in(codec):
    batch = build_batch(ROWS, base_offset=40, codec=codec)
    assert BatchView(batch).codec == codec
    assert decode_batch(batch) == records_of(ROWS, 40)
    assert decode_batch(b"1234" + batch, 4) == records_of(ROWS, 40)
    assert BatchView(batch).decode_rows() == [tuple(r) for r in records_of(ROWS, 40)]


def test_a_broker_gives_offsets_and_epoch_in_place():
    frame = bytearray(b"head") + build_batch(ROWS) + b"tail"
    view = next(iter_batches(memoryview(frame)[:-4], 4))
    base_offset = 1234567890123
    view.set_offset_and_epoch(base_offset, 17)
    view.check_crc()
    again = BatchView(frame, 4)
    assert (again.base_offset, again.leader_epoch) == (base_offset, 17)
    assert frame[:4] == b"head"
    assert frame[-4:] == b"tail"
    assert decode_batch(frame, 4)[2].offset == base_offset + 2


@pytest.mark.parametrize("codec", [0, 3])
def test_log_append_time_stamps_every_record(codec):
    batch = build_batch(ROWS, codec=codec)
    BatchView(batch).set_log_append_time(5555)
    view = BatchView(batch)
    view.check_crc()
    assert view.is_log_append_time
    assert view.base_timestamp == 1000
    assert [r.timestamp for r in decode_batch(batch)] == [5555] * 4
    view.set_timestamps(1003, log_append_time=False)
    assert batch == build_batch(ROWS, codec=codec)


def test_sequences_wrap_after_the_largest():
    view = BatchView(build_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert view.last_sequence == 1
    assert BatchView(build_batch(ROWS)).last_sequence == -1


def test_compaction_keeps_offsets_and_may_leave_nothing():
    kept = build_batch(ROWS[1:3], base_offset=10, offset_deltas=[1, 2], last_offset_delta=3, base_timestamp=1000)
    assert [r.offset for r in decode_batch(kept)] == [11, 12]
    assert [r.timestamp for r in decode_batch(kept)] == [1003, 1001]
    assert BatchView(kept).next_offset == 10 + 3 + 1
    empty = build_batch([], base_offset=10, last_offset_delta=3, producer_id=4, producer_epoch=0, base_sequence=0)
    assert decode_batch(empty) == []
    assert (BatchView(empty).next_offset, BatchView(empty).max_timestamp) == (14, -1)
    with pytest.raises(ValueError, match="last_offset_delta"):
        build_batch([])
    horizon = BatchView(build_batch(ROWS, base_timestamp=90, delete_horizon=True))
    assert horizon.has_delete_horizon
    assert [r.timestamp for r in horizon.decode()] == [1000, 1003, 1001, 1001]


def check_records(batch: BatchView) -> RecordCheck:
    check = RecordCheck(batch, "orders-0", keyed=True)
    check.feed(batch.unpacked_records())
    check.finish()
    return check


@pytest.mark.parametrize("codec", [0, 4])
def test_validation_reads_the_records_of_a_batch(codec):
    check = check_records(BatchView(build_batch(ROWS, codec=codec)))
    assert check.noted == [NotedRecord(1, keyless=True, timestamp=1003)]
    assert check.largest_timestamp == 1003
    with pytest.raises(RecordRefused, match="offset delta"):
        check_records(BatchView(build_batch(ROWS, offset_deltas=[0, 1, 3, 4])))


def test_batches_follow_each_other():
    first, second = build_batch(ROWS), build_batch(ROWS[:1], base_offset=4, codec=1)
    both = bytes(first + second)
    assert [(v.position, v.base_offset, v.record_count) for v in iter_batches(both)] == [(0, 0, 4), (len(first), 4, 1)]
    assert [v.base_offset for v in iter_batches(both, len(first))] == [4]
    assert list(iter_batches(b"")) == []


def test_a_cut_tail_is_an_error_or_the_end_as_asked():
    first, second = build_batch(ROWS), build_batch(ROWS[:1], base_offset=4)
    both = bytes(first + second)
    for cut in range(len(first) + 1, len(both)):
        assert [v.end for v in iter_batches(both[:cut], allow_incomplete_tail=True)] == [len(first)]
        with pytest.raises(CorruptBatch):
            list(iter_batches(both[:cut]))
    for cut in range(1, len(first)):
        with pytest.raises(CorruptBatch):
            decode_batch(first[:cut])


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_magics_are_refused_even_in_a_tail(magic):
    batch = build_batch(ROWS)
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(CorruptBatch, match="magic"):
        list(iter_batches(batch, allow_incomplete_tail=True))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, HEADER_SIZE - 13])
def test_lengths_that_no_batch_has_are_refused(length):
    batch = build_batch(ROWS)
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptBatch, match="length"):
        list(iter_batches(batch, allow_incomplete_tail=True))


def test_every_flipped_bit_under_the_checksum_is_seen():
    batch = build_batch(ROWS)
    for position in range(17, len(batch)):
        batch[position] ^= 0x10
        with pytest.raises(CorruptBatch) as refusal:
            decode_batch(batch)
        assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
        batch[position] ^= 0x10
    assert decode_batch(batch) == records_of(ROWS)


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 2**31 - 1])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_record_count_that_lies_is_refused(count, codec):
    batch = build_batch(ROWS, codec=codec)
    struct.pack_into(">i", batch, 57, count)
    view = BatchView(batch)
    with pytest.raises(CorruptBatch):
        view.decode()
    with pytest.raises(RecordRefused):
        check_records(view)


def test_unknown_codecs_have_their_own_error():
    batch = build_batch(ROWS)
    batch[22] |= 6
    view = BatchView(batch)
    with pytest.raises(Exception, match="codec 6") as refusal:
        view.decode()
    assert refusal.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
