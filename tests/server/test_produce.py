"""Produce: what is accepted, what is refused and how, and what a retry gets."""

import struct
import time

import pytest

from harness.wire import NOW_MS, Wire, batch, produce_fields, rows
from klamm.model.errors import ErrorCode
from klamm.records.batch import CRC_START, build_batch
from klamm.records.crc import crc32c

VERSIONS = range(3, 14)


def patched(data: bytes, position: int, layout: str, value: int, *, seal: bool = True) -> bytes:
    """The batch with one header field changed, and a checksum that agrees unless told otherwise."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    if seal:
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_offsets_are_given_in_order(wire, version, acks):
    topic = wire.create_topic()
    first = wire.produce(topic, batch(b"a", b"b"), version=version, acks=acks)
    second = wire.produce(topic, batch(b"c"), version=version, acks=acks)
    assert [(p.error_code, p.base_offset) for p in (first, second)] == [(0, 0), (0, 2)]
    if version >= 5:
        assert second.log_start_offset == 0
    assert wire.values(topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_acks_0_is_not_answered(wire, version):
    topic = wire.create_topic()
    for number in range(10):
        wire.produce(topic, batch(b"%d" % number), version=version, acks=0)
    wire.call("api_versions", 0)  # the next reply on the connection is the one to this
    assert wire.values(topic) == [b"%d" % number for number in range(10)]


def test_acks_0_that_cannot_be_done_closes_the_connection(klamm, wire):
    topic = wire.create_topic()
    refusals = [(topic, 7, batch(b"x")), ("no-such-topic", 0, batch(b"x")), (topic, 0, b"no batch at all, this")]
    for name, partition, records in refusals:
        with Wire(klamm.port) as other:
            other.produce(name, records, acks=0, partition=partition, version=9)
            assert other.is_closed_by_peer()


def test_acks_0_refused_on_the_quick_path_closes_the_connection(klamm, wire):
    topic = wire.create_topic()
    with Wire(klamm.port) as other:
        for _ in range(3):
            other.produce(topic, batch(b"x"), acks=0)
        other.produce(topic, patched(batch(b"x"), 17, ">I", 1, seal=False), acks=0)
        assert other.is_closed_by_peer()
    assert wire.values(topic) == [b"x"] * 3


def test_acks_that_do_not_exist_are_refused(wire):
    topic = wire.create_topic()
    for acks in (2, -2):
        assert wire.produce(topic, batch(b"x"), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert wire.end_offset(topic) == 0


GOOD = batch(b"a", b"b")
COMPRESSED = batch(b"a" * 100, b"b" * 100, codec=1)

REFUSALS = {
    "magic 0": (patched(GOOD, 16, ">b", 0, seal=False), ErrorCode.INVALID_RECORD),
    "magic 1": (patched(GOOD, 16, ">b", 1, seal=False), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "no batch": (b"", ErrorCode.INVALID_RECORD),
    "wrong checksum": (patched(GOOD, 17, ">I", 12345, seal=False), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
    "cut short": (GOOD[:-3], ErrorCode.CORRUPT_MESSAGE),
    "half a header": (GOOD[:40], ErrorCode.CORRUPT_MESSAGE),
    "count too large": (patched(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD),
    "count zero": (patched(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "count negative": (patched(GOOD, 57, ">i", -1), ErrorCode.INVALID_RECORD),
    "delta too large": (patched(GOOD, 23, ">i", 5), ErrorCode.INVALID_RECORD),
    "delta negative": (patched(GOOD, 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "control records": (batch(b"\0\0\0\1\0\0", control=True), ErrorCode.INVALID_RECORD),
    "codec 5": (patched(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": (patched(GOOD, 21, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "sequence below 0": (batch(b"a", producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
    "LogAppendTime": (batch(b"a", timestamp_type=1), ErrorCode.INVALID_TIMESTAMP),
    "two compressed batches": (COMPRESSED + COMPRESSED, ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("version", [3, 13])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_broken_batch_is_refused_and_nothing_is_written(wire, name, version):
    records, error = REFUSALS[name]
    topic = wire.create_topic()
    refused = wire.produce(topic, records, version=version)
    assert (refused.error_code, refused.base_offset) == (error, -1)
    if version >= 8:
        assert refused.error_message
    assert wire.produce(topic, GOOD, version=version).base_offset == 0
    assert wire.produce(topic, records, version=version).error_code == error  # on the quick path too
    assert wire.produce(topic, GOOD, version=version).base_offset == 2
    assert wire.values(topic) == [b"a", b"b"] * 2


def test_one_bad_partition_does_not_harm_the_others(wire):
    topic = wire.create_topic(partitions=3)
    parts = [
        {"index": 0, "records": batch(b"zero")},
        {"index": 1, "records": REFUSALS["wrong checksum"][0]},
        {"index": 2, "records": batch(b"two")},
        {"index": 9, "records": batch(b"nine")},
    ]
    request = {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": parts}]}
    reply = wire.call("produce", 9, **request)
    errors = {p.index: int(p.error_code) for p in reply.responses[0].partition_responses}
    assert errors == {0: 0, 1: 2, 2: 0, 9: 3}
    assert [wire.values(topic, partition=index) for index in range(3)] == [[b"zero"], [], [b"two"]]


def test_a_batch_larger_than_the_topic_allows_is_refused(wire):
    topic = wire.create_topic(max_message_bytes="1000")
    small = batch(b"x" * 900)
    assert len(small) <= 1000
    assert wire.produce(topic, small).error_code == 0
    assert wire.produce(topic, batch(b"x" * 1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert wire.produce(topic, small).base_offset == 1


@pytest.mark.parametrize("version", [7, 8, 13])
def test_a_compacted_topic_names_the_records_without_key(wire, version):
    topic = wire.create_topic(cleanup_policy="compact")
    records = [(NOW_MS, key, b"v", ()) for key in (b"k", None, b"k", None)]
    refused = wire.produce(topic, bytes(build_batch(records)), version=version)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    if version >= 8:
        assert [error.batch_index for error in refused.record_errors] == [1, 3]
        assert refused.error_message
    assert wire.produce(topic, batch(b"v", key=b"k"), version=version).base_offset == 0
    assert wire.produce(topic, batch(None, key=b"k"), version=version).base_offset == 1
    assert wire.produce(topic, batch(b"v"), version=version).error_code == ErrorCode.INVALID_RECORD


def test_a_timestamp_too_far_ahead_is_refused(wire):
    topic = wire.create_topic()
    now = int(time.time() * 1000)
    records = [(now, None, b"fine", ()), (now + 2 * 3_600_000, None, b"ahead", ())]
    refused = wire.produce(topic, bytes(build_batch(records)), version=8)
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in refused.record_errors] == [1]
    assert wire.produce(topic, batch(b"x", timestamp=now + 3_000_000)).error_code == 0
    assert wire.produce(topic, batch(b"x", timestamp=now + 2 * 3_600_000)).error_code == ErrorCode.INVALID_TIMESTAMP


def test_a_timestamp_too_old_is_refused_where_the_topic_says_so(wire):
    topic = wire.create_topic(message_timestamp_before_max_ms="60000")
    now = int(time.time() * 1000)
    assert wire.produce(topic, batch(b"x", timestamp=now)).error_code == 0
    assert wire.produce(topic, batch(b"x", timestamp=now - 120_000)).error_code == ErrorCode.INVALID_TIMESTAMP


def test_the_broker_stamps_a_log_append_time_topic(wire):
    topic = wire.create_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    answers = [wire.produce(topic, batch(b"x", timestamp=5)) for _ in range(2)]
    after = int(time.time() * 1000)
    stamps = [row.timestamp for row in rows(wire.fetch(topic, 0).records)]
    assert len(stamps) == 2
    for answer, stamp in zip(answers, stamps, strict=True):
        assert before <= stamp <= after
        assert round(answer.log_append_time.timestamp() * 1000) == stamp


@pytest.mark.parametrize("version", [3, 6])
def test_zstd_is_refused_before_v7(wire, version):
    topic = wire.create_topic()
    assert wire.produce(topic, batch(b"x"), version=version).error_code == 0
    assert (
        wire.produce(topic, batch(b"x" * 100, codec=4), version=version).error_code
        == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )
    assert wire.produce(topic, batch(b"x" * 100, codec=4), version=7).error_code == 0


@pytest.mark.parametrize("codec", range(5))
def test_a_topic_compresses_as_it_is_told(wire, codec):
    names = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
    topic = wire.create_topic(compression_type=names[codec])
    for sent in range(5):
        assert wire.produce(topic, batch(b"x" * 1000, codec=sent)).error_code == 0
    records = wire.fetch(topic, 0).records
    assert [row.value for row in rows(records)] == [b"x" * 1000] * 5
    from klamm.records.batch import iter_batches

    assert {view.codec for view in iter_batches(records)} == {codec}


def test_an_unknown_topic_is_told_apart_by_name_and_by_id(wire):
    assert (
        wire.call("produce", 9, **produce_fields("no-such-topic", GOOD)).responses[0].partition_responses[0].error_code
        == 3
    )
    fields = produce_fields("", GOOD)
    fields["topic_data"][0]["topic_id"] = b"\x09" * 16
    reply = wire.call("produce", 13, **fields)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert reply.responses[0].topic_id.bytes == b"\x09" * 16


def test_a_transactional_batch_needs_a_transactional_id(wire):
    topic = wire.create_topic()
    records = batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    assert wire.produce(topic, records).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert wire.end_offset(topic) == 0


# Idempotent producers


class Producer:
    """A producer with an id: batches of one record each, the sequence given by hand."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.id = wire.call("init_producer_id", 4, transaction_timeout=1000).producer_id.real

    def send(self, sequence: int, *, epoch: int = 0, count: int = 1, version: int = 9):
        records = batch(*[b"%d" % sequence] * count, producer_id=self.id, producer_epoch=epoch, base_sequence=sequence)
        answer = self.wire.produce(self.topic, records, version=version)
        return int(answer.error_code), answer.base_offset


@pytest.fixture
def producer(wire):
    return Producer(wire, wire.create_topic())


def test_a_retry_gets_the_first_offset_again(producer, wire):
    assert [producer.send(s) for s in range(5)] == [(0, s) for s in range(5)]
    assert [producer.send(s) for s in range(5)] == [(0, s) for s in range(5)]
    assert wire.end_offset(producer.topic) == 5


def test_only_five_batches_are_remembered(producer, wire):
    for sequence in range(6):
        producer.send(sequence)
    assert producer.send(1) == (0, 1)
    assert producer.send(0) in ((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1))
    assert wire.end_offset(producer.topic) == 6


def test_a_gap_is_refused_and_may_be_filled(producer, wire):
    assert producer.send(0) == (0, 0)
    assert producer.send(2) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(1) == (0, 1)
    assert producer.send(2) == (0, 2)


def test_epochs_only_go_up_and_start_at_sequence_0(producer):
    assert producer.send(0) == (0, 0)
    assert producer.send(1, epoch=1) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert producer.send(0, epoch=1) == (0, 1)
    assert producer.send(1, epoch=0) == (47, -1)
    assert producer.send(1, epoch=1) == (0, 2)


def test_sequences_return_to_0_after_the_largest(producer):
    largest = 2**31 - 1
    assert producer.send(0, count=1) == (0, 0)
    assert producer.send(0, epoch=1) == (0, 1)
    other = Producer(producer.wire, producer.wire.create_topic())
    assert other.send(largest - 1)[0] == 0  # nothing is known of it, so any sequence may be the first
    assert other.send(largest) == (0, 1)
    assert other.send(0) == (0, 2)
    assert other.send(largest) == (0, 1)


def test_producers_do_not_disturb_each_other(wire):
    topic = wire.create_topic()
    producers = [Producer(wire, topic) for _ in range(3)]
    assert len({p.id for p in producers}) == 3
    offsets = [p.send(s)[1] for s in range(4) for p in producers]
    assert offsets == list(range(12))
    assert [p.send(3) for p in producers] == [(0, 9), (0, 10), (0, 11)]


def test_what_is_pipelined_together_is_judged_together(producer, wire):
    """Duplicates and gaps within one turn of the loop, before anything of it is written."""
    sent = []
    for sequence in (0, 1, 1, 0, 3, 2, 2):
        records = batch(b"%d" % sequence, producer_id=producer.id, producer_epoch=0, base_sequence=sequence)
        sent.append(wire.send("produce", 9, **produce_fields(producer.topic, records)))
    answers = [wire.receive("produce", 9, c).responses[0].partition_responses[0] for c in sent]
    results = [(int(a.error_code), a.base_offset) for a in answers]
    assert results == [(0, 0), (0, 1), (0, 1), (0, 0), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 2), (0, 2)]
    assert wire.values(producer.topic) == [b"0", b"1", b"2"]
