"""Records that are no records, and batches that unpack to far more than they are: refused, while others are served.

Earlier tests sent broken headers and broken checksums only: every batch they built came from the writer under test,
whose records are sound. A raw client with a valid checksum around anything else was never tried, and whatever it sent
was stored and stopped every reader of the partition.
"""

import threading
import time

import pytest

from harness import NodeThread, broken_batches
from harness.broken_batches import CODECS, INVALID_RECORD, SECTIONS, TWO, bomb, record, seal
from harness.wire import NOW_MS, Wire, batch, produce_fields
from klamm.model.errors import ErrorCode
from klamm.records.batch import BatchView, build_batch
from klamm.server.requests import record_checks

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
GOOD = batch(b"a", b"b", key=b"k")


def check_refused(wire, topic, records):
    """The batch is refused on either path and leaves nothing behind; what follows is taken and read."""
    before = wire.end_offset(topic)
    for _ in range(2):  # the first on the general path, the second after a request that enabled the quick path
        refused = wire.produce(topic, records)
        assert (refused.error_code, refused.base_offset) == (INVALID_RECORD, -1)
        assert refused.error_message
        assert wire.produce(topic, GOOD).error_code == 0
    assert wire.values(topic, before) == [b"a", b"b"] * 2


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact"}, {"compression_type": "lz4"}], ids=str)
@pytest.mark.parametrize("name", SECTIONS)
def test_records_that_are_none_are_refused(klamm, name, settings):
    section, count = SECTIONS[name]
    with Wire(klamm.port) as wire:
        topic = wire.create_topic(**settings)
        for codec in ("none", *CODECS):
            check_refused(wire, topic, seal(section, count, codec))


@pytest.mark.parametrize("name", broken_batches.PACKED)
@pytest.mark.parametrize("codec", CODECS)
def test_data_that_no_codec_unpacks_are_refused(klamm, codec, name):
    with Wire(klamm.port) as wire:
        check_refused(wire, wire.create_topic(), seal(b"", 2, codec, packed=broken_batches.PACKED[name](codec)))


@pytest.mark.parametrize("codec", CODECS)
def test_large_packed_batches_are_looked_at_as_well(wire, codec):
    """These go through a thread."""
    topic = wire.create_topic()
    rows = [(NOW_MS, b"k", f"{number * 7919 % 1_000_003:0>90}".encode(), ()) for number in range(8000)]
    good = bytes(build_batch(rows, codec=broken_batches.CODEC_NAMES[codec]))
    assert len(good) > 32 * 1024
    sections = bytes(BatchView(build_batch(rows)).records)
    assert wire.produce(topic, good).base_offset == 0
    for broken in (sections[:-1], sections + b"x", sections[:400_000] + b"\xff" + sections[400_001:]):
        assert wire.produce(topic, seal(broken, 8000, codec)).error_code == INVALID_RECORD
    assert wire.produce(topic, good).base_offset == 8000
    assert len(wire.values(topic)) == 16_000


def test_a_largest_timestamp_that_no_record_has_is_put_right(wire):
    """Readers by time trust the header; Kafka writes what the records say."""
    for codec in ("none", *CODECS):
        topic = wire.create_topic()
        assert wire.produce(topic, seal(TWO, 2, codec, max_timestamp=NOW_MS + 5000)).error_code == 0
        stored = BatchView(wire.fetch(topic, 0).records)
        stored.check_crc()
        assert stored.max_timestamp == NOW_MS
        assert wire.list_offset(topic, NOW_MS + 1).offset == -1


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact"}, {"compression_type": "zstd"}], ids=str)
@pytest.mark.parametrize(("codec", "unpacked_mb"), [("gzip", 110), ("lz4", 110), ("zstd", 800)])
def test_a_bomb_is_refused(wire, codec, unpacked_mb, settings):
    topic = wire.create_topic(**settings)
    refused = wire.produce(topic, bomb(codec, unpacked_mb << 20))
    assert refused.error_code == MESSAGE_TOO_LARGE
    assert "unpacks to more than 104858800 bytes" in refused.error_message
    assert wire.produce(topic, GOOD).base_offset == 0
    assert wire.values(topic) == [b"a", b"b"]


def test_what_unpacks_to_more_than_the_topic_takes_unpacked_is_refused_early(wire):
    topic = wire.create_topic(compression_type="uncompressed", max_message_bytes="100000")
    refused = wire.produce(topic, bomb("zstd", 10 << 20))
    assert refused.error_code == MESSAGE_TOO_LARGE
    assert "max.message.bytes=100000" in refused.error_message


# How the requests of a connection and of others go on while records are looked at: with the threads held up by hand.


@pytest.fixture
def held_node(tmp_path, monkeypatch):
    """A node whose threads look at nothing before `release` is set; `begun` tells that one of them is at it."""
    begun, release = threading.Event(), threading.Event()
    check = record_checks.check_batches

    def held(batches):
        begun.set()
        assert release.wait(60)
        return check(batches)

    monkeypatch.setattr(record_checks, "check_batches", held)
    with NodeThread(tmp_path) as node:
        node.begun, node.release = begun, release
        yield node
        release.set()


def large(number, *, sequence=-1, producer_id=-1):
    """A packed batch that goes through a thread."""
    rows = [(NOW_MS, b"k", f"{number}-{i * 7919 % 1_000_003:0>90}".encode(), ()) for i in range(8000)]
    epoch = 0 if producer_id >= 0 else -1
    packed = build_batch(rows, codec=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    assert len(packed) > 32 * 1024
    return bytes(packed)


def test_others_are_served_while_a_batch_is_unpacked(held_node):
    with Wire(held_node.port) as slow, Wire(held_node.port) as other:
        topic = slow.create_topic()
        waiting = slow.send("produce", 9, **produce_fields(topic, large(0)))
        assert held_node.begun.wait(30)
        assert other.produce(topic, GOOD).base_offset == 0
        assert other.call("metadata", 12, topics=[{"name": topic}]).topics[0].error_code == 0
        assert slow.is_silent()
        held_node.release.set()
        assert slow.receive("produce", 9, waiting).responses[0].partition_responses[0].base_offset == 2


def test_a_producers_batches_keep_their_order(held_node):
    """Sequence numbers of an idempotent producer: one batch in a thread, the next ones small, packed or not."""
    with Wire(held_node.port) as wire:
        topic = wire.create_topic()
        producer_id = wire.call("init_producer_id", 4).producer_id
        assert wire.produce(topic, GOOD).base_offset == 0  # enables the quick path
        first = large(0, sequence=0, producer_id=producer_id)
        count = BatchView(first).record_count
        story = [first]
        story.append(batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=count))
        story.append(batch(b"y" * 50, codec=4, producer_id=producer_id, producer_epoch=0, base_sequence=count + 1))
        story.append(large(1, sequence=count + 2, producer_id=producer_id))
        last = count + 2 + BatchView(story[-1]).record_count
        story.append(batch(b"z", producer_id=producer_id, producer_epoch=0, base_sequence=last))
        sent = [wire.send("produce", 9, **produce_fields(topic, records)) for records in story]
        assert held_node.begun.wait(30)
        held_node.release.set()
        replies = [wire.receive("produce", 9, number).responses[0].partition_responses[0] for number in sent]
        assert [reply.error_code for reply in replies] == [0] * 5
        offsets = [reply.base_offset for reply in replies]
        assert offsets == [2, 2 + count, 3 + count, 4 + count, 2 + last]
        repeated = wire.produce(topic, story[1])  # and a retry is known for what it is
        assert (repeated.error_code, repeated.base_offset) == (0, 2 + count)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_connection_is_not_read_while_much_of_it_waits(held_node, monkeypatch, acks):
    monkeypatch.setattr(record_checks, "CONNECTION_BYTES_MAX", 200_000)
    checks = held_node.node.services.checks
    records = large(0)
    with Wire(held_node.port) as wire, Wire(held_node.port) as other:
        topic = wire.create_topic()
        numbers = [wire.send("produce", 9, **produce_fields(topic, records, acks=acks)) for _ in range(20)]
        assert held_node.begun.wait(30)
        deadline = time.monotonic() + 30
        while checks.waiting_bytes < 200_000 and time.monotonic() < deadline:
            other.call("api_versions", 0)
        other.call("api_versions", 0)
        assert 200_000 <= checks.waiting_bytes < 200_000 + 2 * len(records)
        held_node.release.set()
        count = BatchView(records).record_count
        if acks:
            for place, number in enumerate(numbers):
                part = wire.receive("produce", 9, number).responses[0].partition_responses[0]
                assert (part.error_code, part.base_offset) == (0, place * count)
        else:
            wire.call("api_versions", 0)
            while other.end_offset(topic) < 20 * count and time.monotonic() < deadline:
                pass
        assert other.end_offset(topic) == 20 * count
        assert checks.waiting_bytes == 0


def test_a_connection_that_left_loses_nothing_it_sent(held_node):
    with Wire(held_node.port) as wire:
        topic = wire.create_topic()
        records = large(0)
        wire.send("produce", 9, **produce_fields(topic, records))
        wire.send("produce", 9, **produce_fields(topic, GOOD))
        assert held_node.begun.wait(30)
    with Wire(held_node.port) as other:
        held_node.release.set()
        deadline = time.monotonic() + 30
        expected = BatchView(records).record_count + 2
        while other.end_offset(topic) < expected and time.monotonic() < deadline:
            pass
        assert other.end_offset(topic) == expected


def test_one_bad_part_of_a_request_in_a_thread_does_not_harm_the_others(wire):
    topic = wire.create_topic(partitions=3)
    parts = [
        {"index": 0, "records": large(0)},
        {"index": 1, "records": seal(record(0) * 2, 2, "gzip")},
        {"index": 2, "records": GOOD},
        {"index": 9, "records": large(1)},
    ]
    reply = wire.call("produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": topic, "partition_data": parts}])
    errors = {part.index: int(part.error_code) for part in reply.responses[0].partition_responses}
    assert errors == {0: 0, 1: INVALID_RECORD, 2: 0, 9: 3}
    assert wire.values(topic, partition=2) == [b"a", b"b"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_time_is_found_in_a_large_packed_batch(wire, codec):
    """In a thread: such a batch took the loop as long as its unpacking takes, and all its records at once in memory."""
    topic = wire.create_topic()
    count = 8000
    texts = [f"{number * 7919 % 1_000_003:0>90}".encode() for number in range(count)]
    for round_number in range(2):
        begin = NOW_MS + round_number * 100_000
        rows = [(begin + number, b"k", text, ()) for number, text in enumerate(texts)]
        packed = bytes(build_batch(rows, codec=broken_batches.CODEC_NAMES[codec]))
        assert len(packed) > 32 * 1024
        assert wire.produce(topic, packed).error_code == 0
    for timestamp, offset in [(0, 0), (NOW_MS + 7777, 7777), (NOW_MS + count, count), (NOW_MS + 100_500, count + 500)]:
        assert wire.list_offset(topic, timestamp).offset == offset
    assert wire.list_offset(topic, NOW_MS + 100_000 + count).offset == -1
    assert wire.list_offset(topic, -3).offset == 2 * count - 1
    # The log begins behind all records of the first batch that are late enough: the lookup goes on in the next one.
    wire.call(
        "delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": count - 1}]}]
    )
    assert wire.list_offset(topic, NOW_MS + 10).offset == count - 1


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_for_clients(klamm, wire, name):
    """Nothing kept a client from writing records that their coordinators would read."""
    kind = {"__consumer_offsets": 0, "__transaction_state": 1}[name]
    deadline = time.monotonic() + 30
    while wire.call("find_coordinator", 4, key_type=kind, coordinator_keys=["any"]).coordinators[0].error_code:
        assert time.monotonic() < deadline
    for records in (GOOD, batch(b"a" * 100, key=b"k", codec=1), large(0)):
        refused = wire.produce(name, records)
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    with Wire(klamm.port, client_id="__admin_client") as admin:
        assert admin.produce(name, batch(b"", key=b"\0\x63")).error_code == 0  # a version no coordinator knows


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_may_go_without_the_look_at_packed_records(wire, codec):
    """`klamm.checked.codecs`: what is inside of other codecs is the producers' own affair; checksums still count."""
    others = ",".join(name for name in CODECS if name != codec)
    topic = wire.create_topic(klamm_checked_codecs=others)
    rubbish = seal(b"no records at all", 2, codec)
    for number in range(3):  # on the general path, then on the quick path
        assert wire.produce(topic, rubbish).base_offset == 2 * number
    assert wire.produce(topic, seal(b"no records at all", 2, "none")).error_code == INVALID_RECORD
    for other in others.split(","):
        assert wire.produce(topic, seal(b"no records at all", 2, other)).error_code == INVALID_RECORD
    damaged = bytearray(rubbish)
    damaged[-1] ^= 1
    assert wire.produce(topic, bytes(damaged)).error_code == CORRUPT_MESSAGE
    assert wire.end_offset(topic) == 6


@pytest.mark.parametrize("settings", [{"cleanup_policy": "compact"}, {"compression_type": "lz4"}], ids=str)
def test_where_the_broker_needs_the_records_it_looks_all_the_same(wire, settings):
    topic = wire.create_topic(klamm_checked_codecs="", **settings)
    for codec in CODECS:
        assert wire.produce(topic, seal(b"no records at all", 2, codec)).error_code == INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_the_times_of_records_that_are_not_looked_at_are_those_of_the_header(wire, codec):
    topic = wire.create_topic(klamm_checked_codecs="")
    later = build_batch(
        [(int(time.time() * 1000) + 10 * 3_600_000, b"k", b"v", ())], codec=broken_batches.CODEC_NAMES[codec]
    )
    assert wire.produce(topic, bytes(later)).error_code == INVALID_TIMESTAMP


def test_large_packed_batches_that_are_not_looked_at_need_no_thread(wire):
    topic = wire.create_topic(klamm_checked_codecs="gzip,lz4,snappy")
    rows = [(NOW_MS, b"k", f"{number * 7919 % 1_000_003:0>90}".encode(), ()) for number in range(8000)]
    large = bytes(build_batch(rows, codec=broken_batches.CODEC_NAMES["zstd"]))
    for number in range(3):
        assert wire.produce(topic, large).base_offset == 8000 * number
    assert len(wire.values(topic, 23_990)) == 10


def test_a_broker_setting_counts_for_topics_that_have_none(tmp_path):
    rubbish = seal(b"no records at all", 2, "zstd")
    with NodeThread(tmp_path) as node, Wire(node.port) as wire:
        topic, own = wire.create_topic(), wire.create_topic(klamm_checked_codecs="zstd")
        assert wire.produce(topic, rubbish).error_code == INVALID_RECORD
        change = {"name": "klamm.checked.codecs", "config_operation": 0, "value": "gzip"}
        reply = wire.call(
            "incremental_alter_configs",
            1,
            resources=[{"resource_type": 4, "resource_name": "", "configs": [change]}],
        )
        assert reply.responses[0].error_code == 0
        deadline = time.monotonic() + 60
        while wire.produce(topic, rubbish).error_code != 0:
            assert time.monotonic() < deadline, "the setting is not in force"
        assert wire.produce(own, rubbish).error_code == INVALID_RECORD
