"""What a producer may append, with Kafka's error codes."""

import struct

import pytest

from klamm.model.errors import ErrorCode, KlammError, RecordRefused
from klamm.records import build_batch, decode_batch
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.storage import Log, Origin

from .conftest import NOW, Home, append_end_txn_marker, batch, from_producer, read_all

LEADER_EPOCH_BYTES = range(12, 16)
"""The only bytes of a header that neither a rule nor the checksum covers: the broker sets them."""


def changed(view: memoryview, position: int, form: str, value: int, *, fix_crc: bool = True) -> memoryview:
    struct.pack_into(form, view, position, value)
    if fix_crc:
        batch_view = BatchView(view)
        batch_view.set_timestamps(batch_view.max_timestamp, log_append_time=batch_view.is_log_append_time)
    return view


def refusal(log: Log, view: memoryview) -> KlammError:
    before = (log.next_offset, bytes(view), {p: e.state() for p, e in log.producers.entries.items()})
    with pytest.raises(KlammError) as refused:
        log.stage(view, 0, NOW)
    after = (log.next_offset, bytes(view), {p: e.state() for p, e in log.producers.entries.items()})
    assert before[0] == after[0]
    assert before[2] == after[2]
    assert before[1][:8] == after[1][:8], "a refused batch keeps its base offset"
    log.write_staged()
    assert log.log_end_offset == before[0]
    return refused.value


BAD_BATCHES = {
    "empty": (lambda: memoryview(bytearray()), ErrorCode.CORRUPT_MESSAGE),
    "half a header": (lambda: batch()[:30], ErrorCode.CORRUPT_MESSAGE),
    "cut": (lambda: batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    "magic 1": (lambda: changed(batch(), 16, ">b", 1, fix_crc=False), ErrorCode.INVALID_RECORD),
    "a flipped bit": (lambda: changed(batch(), 65, ">b", 99, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit with a producer": (
        lambda: changed(from_producer(0), 65, ">b", 99, fix_crc=False),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "an impossible length": (lambda: changed(batch(), 8, ">i", 20, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (lambda: changed(batch(), 8, ">i", -5, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    "two batches": (lambda: memoryview(bytearray(bytes(batch()) + bytes(batch()))), ErrorCode.INVALID_RECORD),
    "a base offset": (lambda: batch(base_offset=5), ErrorCode.INVALID_RECORD),
    "too large": (lambda: batch(value=b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    "too few counted": (lambda: changed(batch(3), 57, ">i", 2), ErrorCode.INVALID_RECORD),
    "too many counted": (lambda: changed(batch(3), 57, ">i", 4), ErrorCode.INVALID_RECORD),
    "none counted": (lambda: changed(changed(batch(1), 57, ">i", 0), 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "control records": (lambda: batch(control=True), ErrorCode.INVALID_RECORD),
    "a producer without sequence": (lambda: from_producer(-1), ErrorCode.INVALID_RECORD),
    "an unknown codec": (lambda: changed(batch(), 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "LogAppendTime": (lambda: batch(timestamp_type=1), ErrorCode.INVALID_TIMESTAMP),
    "from the future": (lambda: batch(timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_what_is_refused(home: Home, name: str):
    make, code = BAD_BATCHES[name]
    assert refusal(home.open(), make()).code is code


def test_an_hour_ahead_is_still_the_present(home: Home):
    assert home.open().append_as_leader(batch(timestamp=NOW + 3_600_000), 0, NOW) == 0


def test_a_future_timestamp_names_its_record(home: Home):
    rows = [(NOW, b"k", b"v", ()), (NOW + 10**7, b"k", b"v", ()), (-1, b"k", b"v", ())]
    refused = refusal(home.open(), memoryview(build_batch(rows)))
    assert isinstance(refused, RecordRefused)
    assert [error.batch_index for error in refused.records] == [1]


def test_records_older_than_the_limit_are_found_wherever_they_hide(home: Home):
    log = home.open(message_timestamp_before_max_ms=1000)
    rows = [(NOW, b"k", b"v", ()), (NOW - 1001, b"k", b"v", ()), (NOW - 1000, b"k", b"v", ()), (-1, b"k", b"v", ())]
    refused = refusal(log, memoryview(build_batch(rows)))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in refused.records] == [1]
    assert log.append_as_leader(memoryview(build_batch([rows[0], *rows[2:]])), 0, NOW) == 0


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_wants_keys_and_says_which_records_lack_one(home: Home, codec: int):
    log = home.open(cleanup_policy=frozenset({"compact"}))
    rows = [(NOW, b"k", b"v", ()), (NOW, None, b"v", ()), (NOW, b"", None, ()), (NOW, None, None, ())]
    refused = refusal(log, memoryview(build_batch(rows, codec=codec)))
    assert refused.code is ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.records] == [1, 3]
    assert log.append_as_leader(memoryview(build_batch([rows[0], rows[2]], codec=codec)), 0, NOW) == 0


@pytest.mark.parametrize("wanted", ["none", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", range(5))
def test_compression_type_decides_the_codec_on_disk(home: Home, wanted: str, sent: int):
    log = home.open(compression_type=wanted)
    log.append_as_leader(from_producer(0, 5, codec=sent, value=b"v" * 500), 3, NOW)
    stored = BatchView(log.read(0, 1 << 20, 5).read())
    stored.check_crc()
    assert stored.codec == {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[wanted]
    assert (stored.producer_id, stored.base_sequence, stored.leader_epoch) == (7, 0, 3)
    assert [r.value for r in stored.decode()] == [b"v" * 500 + b"%d" % i for i in range(5)]


def test_a_batch_that_grows_too_large_when_unpacked_is_refused(home: Home):
    log = home.open(compression_type="uncompressed", max_message_bytes=1000)
    view = batch(value=b"v" * 5000, codec=4)
    assert len(view) < 1000
    assert refusal(log, view).code is ErrorCode.MESSAGE_TOO_LARGE


def test_log_append_time_stamps_all_records(home: Home):
    log = home.open(message_timestamp_type="LogAppendTime")
    log.append_as_leader(batch(3, timestamp=5), 0, NOW)
    log.append_as_leader(batch(3, timestamp=NOW + 10**9), 0, NOW + 1)
    stored = log.read(0, 1 << 20, 6).read()
    assert [r.timestamp for r in decode_batch(stored)] == [NOW] * 3
    assert log.offset_for_timestamp(NOW + 1)[:2] == (NOW + 1, 3)


def test_a_retry_is_a_duplicate_also_where_the_broker_stamps_the_time(home: Home):
    log = home.open(message_timestamp_type="LogAppendTime")
    sent = from_producer(0, 3)
    again = memoryview(bytearray(sent))
    assert log.append_as_leader(sent, 0, NOW) == 0
    assert log.append_as_leader(again, 0, NOW + 5) == 0
    assert log.log_end_offset == 3


def test_a_batch_larger_than_a_segment_is_refused(home: Home):
    log = home.open(segment_bytes=1000, max_message_bytes=100_000)
    assert refusal(log, batch(value=b"x" * 2000)).code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_our_own_coordinators_may_write_control_records(home: Home):
    log = home.open()
    log.append_as_leader(batch(control=True), 0, NOW, origin=Origin.COORDINATOR)
    assert log.log_end_offset == 1


def test_compacted_topics_take_control_records_without_looking_for_keys(home: Home):
    log = home.open(cleanup_policy=frozenset({"compact"}), compression_type="zstd")
    append_end_txn_marker(log, 7, 0, committed=True, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    stored = BatchView(log.read(0, 1 << 20, 1).read())
    assert stored.is_control
    assert stored.codec == 0


def test_garbage_never_gets_in_and_raises_nothing_else(home: Home):
    log = home.open()
    good = bytes(from_producer(0, 2))
    for i in range(len(good)):
        for bit in (1, 128):
            bad = bytearray(good)
            bad[i] ^= bit
            before = log.next_offset
            try:
                log.append_as_leader(memoryview(bad), 0, NOW)
            except KlammError:
                assert log.next_offset == log.log_end_offset == before
            else:
                assert i in LEADER_EPOCH_BYTES, f"byte {i} is covered by a rule"
                break
    assert len(read_all(log)) == log.log_end_offset


def test_coordinator_origin_still_needs_whole_batches(home: Home):
    log = home.open()
    with pytest.raises(KlammError):
        log.append_as_leader(batch()[: HEADER_SIZE + 1], 0, NOW, origin=Origin.COORDINATOR)
