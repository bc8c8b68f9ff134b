"""Records go in through a client and come out as they were, whatever the codec, the acks, the size."""

import random
import time

import pytest

from harness import broken_batches, unique
from harness.clients import ALL, AioKafka, Confluent, KafkaPython
from harness.wire import Wire

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW_MS = 1_700_000_000_000
MEGABYTE = 1_000_000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_with_every_acks(client, codec, acks):
    if codec not in client.codecs:
        pytest.skip(f"{client.name} is installed without {codec}")
    topic = unique("codec")
    client.create_topic(topic)
    values = [b"%06d" % number * 20 for number in range(300)]
    with client.producer(codec=codec, acks=acks) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
        fates = producer.flush()
    assert {fate.error for fate in fates} == {0}
    if acks != "0":
        assert [fate.offset for fate in fates] == list(range(300))
    rows = client.read(topic, 300)
    assert [row.value for row in rows] == values
    assert [row.offset for row in rows] == list(range(300))


def test_keys_headers_timestamps_and_nothing(client):
    topic = unique("shapes")
    client.create_topic(topic)
    headers = (("a", b"1"), ("a", b"2"), ("empty", b""), ("ü", b"\x00\xff"))
    sent = [
        (b"key", b"value", headers),
        (None, b"value", ()),
        (b"", b"", ()),
        (b"gone", None, ()),
        (None, b"", (("only", b"header"),)),
        (b"\x00" * 100, b"\xff" * 1000, ()),
    ]
    with client.producer(codec="gzip") as producer:
        for number, (key, value, pairs) in enumerate(sent):
            producer.send(topic, value, key=key, headers=pairs, timestamp=NOW_MS + number * 1000, partition=0)
        assert {fate.error for fate in producer.flush()} == {0}
    rows = client.read(topic, len(sent))
    assert [(row.key, row.value, row.headers) for row in rows] == [(k, v, tuple(h)) for k, v, h in sent]
    assert [row.timestamp for row in rows] == [NOW_MS + number * 1000 for number in range(len(sent))]
    assert not any(row.log_append_time for row in rows)


def test_the_broker_stamps_what_it_is_told_to_stamp(client):
    topic = unique("stamped")
    client.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    with client.producer() as producer:
        for _ in range(3):
            producer.send(topic, b"x", timestamp=NOW_MS, partition=0)
        assert {fate.error for fate in producer.flush()} == {0}
    rows = client.read(topic, 3)
    after = int(time.time() * 1000)
    assert all(row.log_append_time and before <= row.timestamp <= after for row in rows)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_large_records(client, codec):
    topic = unique("large")
    client.create_topic(topic)
    source = random.Random(7)
    values = [source.randbytes(MEGABYTE) for _ in range(3)]
    with client.producer(codec=codec) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
        assert [fate.error for fate in producer.flush()] == [0, 0, 0]
    assert [row.value for row in client.read(topic, 3)] == values


def test_a_record_that_is_too_large_is_refused_and_the_next_one_is_not(client):
    topic = unique("limit")
    client.create_topic(topic, configs={"max.message.bytes": "10000"})
    with client.producer() as producer:
        producer.send(topic, b"x" * 9000, partition=0)
        assert [fate.error for fate in producer.flush()] == [0]
        producer.send(topic, b"x" * 20_000, partition=0)
        assert [fate.error for fate in producer.flush()] == [10]
        producer.send(topic, b"y" * 9000, partition=0)
        assert [fate.error for fate in producer.flush()] == [0]
    assert [row.value[:1] for row in client.read(topic, 2)] == [b"x", b"y"]


def test_refused_batches_do_not_stop_a_reader(klamm, client):
    """Batches with a valid checksum and no records inside used to be stored, and no client got past them."""
    topic = unique("broken")
    client.create_topic(topic)
    for round_number in range(2):
        with client.producer(codec="gzip") as producer:
            for number in range(10):
                producer.send(topic, b"%d-%d" % (round_number, number), partition=0)
            assert {fate.error for fate in producer.flush()} == {0}
        with Wire(klamm.port) as wire:
            for _, records in [*broken_batches.broken_sections(), *broken_batches.broken_codecs()]:
                assert wire.produce(topic, records).error_code == broken_batches.INVALID_RECORD
    rows = client.read(topic, 20)
    assert [row.value for row in rows] == [b"%d-%d" % divmod(number, 10) for number in range(20)]
    assert [row.offset for row in rows] == list(range(20))


def test_a_topic_is_created_by_the_first_record(client):
    topic = unique("auto")
    with client.producer() as producer:
        producer.send(topic, b"first")
        assert [fate[1:] for fate in producer.flush()] == [(0, 0)]
    assert [row.value for row in client.read(topic, 1)] == [b"first"]


def test_order_holds_within_each_partition(client):
    topic = unique("order")
    client.create_topic(topic, partitions=4)
    with client.producer(codec="lz4") as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number, partition=number % 4)
        assert {fate.error for fate in producer.flush()} == {0}
    for partition in range(4):
        rows = client.read(topic, 250, partition=partition)
        assert [int(row.value) for row in rows] == list(range(partition, 1000, 4))


@pytest.mark.parametrize("idempotent", [False, True])
def test_what_one_client_writes_the_others_read(klamm, client, idempotent):
    topic = unique("others")
    client.create_topic(topic)
    with client.producer(codec="zstd", idempotent=idempotent) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, key=b"k", headers=(("h", b"v"),), partition=0)
        assert {fate.error for fate in producer.flush()} == {0}
    for kind in ALL:
        other = kind(klamm.bootstrap)
        try:
            rows = other.read(topic, 100)
        finally:
            other.close()
        assert [(row.value, row.key, row.headers) for row in rows] == [
            (b"%d" % number, b"k", (("h", b"v"),)) for number in range(100)
        ]


def test_librdkafka_really_compresses(klamm, wire):
    """A client sends uncompressed to brokers that it takes for too old; the size of the log shows it."""
    client = Confluent(klamm.bootstrap)
    sizes = {}
    try:
        for codec in CODECS:
            topic = unique("size")
            client.create_topic(topic)
            with client.producer(codec=codec) as producer:
                for _ in range(200):
                    producer.send(topic, b"abcdefgh" * 100, partition=0)
                producer.flush()
            [folder] = wire.call("describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0]}]).results
            sizes[codec] = folder.topics[0].partitions[0].partition_size
    finally:
        client.close()
    assert sizes["none"] > 160_000
    assert all(sizes[codec] < 40_000 for codec in CODECS[1:]), sizes


def test_keys_find_the_same_partition_from_every_python_client(klamm):
    """aiokafka and kafka-python use Java's murmur2."""
    keys = [b"%d" % number for number in range(50)] + [b"kitchen", b"bar", "köln".encode()]
    placed = []
    for kind in (AioKafka, KafkaPython):
        client = kind(klamm.bootstrap)
        try:
            topic = unique("murmur")
            client.create_topic(topic, partitions=7)
            with client.producer() as producer:
                for key in keys:
                    producer.send(topic, b"x", key=key)
                placed.append([fate.partition for fate in producer.flush()])
        finally:
            client.close()
    assert placed[0] == placed[1]
    assert set(placed[0]) == set(range(7))
