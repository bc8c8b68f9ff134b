"""Our producer with every other consumer, our consumer with every other producer, and mixed groups."""

import asyncio
import random
import time
import zlib

import aiokafka
import confluent_kafka
import kafka
import pytest

from harness import KlammProcess, unique
from harness.client_stories import PATIENCE_S, read, reader, topic, until
from klamm.client import Producer
from klamm.client.producer.core.partitioners import by_murmur2

COUNT = 200
KEYS = 100_000
PARTITIONS = 13


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    overrides = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
    with KlammProcess(tmp_path_factory.mktemp("klamm"), overrides=overrides) as process:
        yield process


def expected():
    return [(b"k%d" % index, b"v%d" % index, [("n", b"%d" % index)]) for index in range(COUNT)]


def confluent_consume(bootstrap, name, count):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([name])
    rows, deadline = [], time.monotonic() + PATIENCE_S
    while len(rows) < count and time.monotonic() < deadline:
        rows += [
            (message.key(), message.value(), message.headers())
            for message in consumer.consume(500, 0.5)
            if not message.error()
        ]
    consumer.close()
    return rows


def kafka_python_consume(bootstrap, name, count):
    consumer = kafka.KafkaConsumer(
        name, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=int(PATIENCE_S * 1000)
    )
    rows = []
    for record in consumer:
        rows.append((record.key, record.value, list(record.headers)))
        if len(rows) == count:
            break
    consumer.close()
    return rows


def aiokafka_consume(bootstrap, name, count):
    async def main():
        consumer = aiokafka.AIOKafkaConsumer(name, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        rows = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(rows) < count:
                    record = await consumer.getone()
                    rows.append((record.key, record.value, list(record.headers)))
        finally:
            await consumer.stop()
        return rows

    return asyncio.run(main())


def confluent_produce(bootstrap, name, codec):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "partitioner": "murmur2_random", "log_level": 0}
    )
    for key, value, headers in expected():
        producer.produce(name, value, key, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def kafka_python_produce(bootstrap, name, codec):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
    for key, value, headers in expected():
        producer.send(name, value, key, headers=headers)
    producer.flush(PATIENCE_S)
    producer.close()


def aiokafka_produce(bootstrap, name, codec):
    async def main():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
        )
        await producer.start()
        for key, value, headers in expected():
            await producer.send(name, value, key, headers=headers)
        await producer.stop()

    asyncio.run(main())


CONSUMERS = {"confluent": confluent_consume, "kafka-python": kafka_python_consume, "aiokafka": aiokafka_consume}
PRODUCERS = {"confluent": confluent_produce, "kafka-python": kafka_python_produce, "aiokafka": aiokafka_produce}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("consume", CONSUMERS.values(), ids=CONSUMERS.keys())
def test_others_read_what_we_write(node, consume, codec):
    name = topic(node.bootstrap, 3)
    with Producer(bootstrap_servers=node.bootstrap, compression_type=codec) as producer:
        for key, value, headers in expected():
            producer.send(name, value, key, headers=headers)
    assert sorted(consume(node.bootstrap, name, COUNT)) == sorted(expected())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("produce", PRODUCERS.values(), ids=PRODUCERS.keys())
def test_we_read_what_others_write(node, produce, codec):
    name = topic(node.bootstrap, 3)
    produce(node.bootstrap, name, codec)
    with reader(node.bootstrap) as consumer:
        consumer.assign([(name, index) for index in range(3)])
        records = read(consumer, COUNT)
    assert sorted((record.key, record.value, list(record.headers)) for record in records) == sorted(expected())
    for record in records:
        assert record.partition == by_murmur2(record.key, 3)


def random_keys(seed):
    print("seed", seed)
    chance = random.Random(seed)
    return list({chance.randbytes(chance.randrange(0, 24)) for _ in range(KEYS + KEYS // 50)})[:KEYS]


@pytest.mark.parametrize(
    ("theirs", "ours"), [("murmur2_random", "default"), ("consistent_random", "consistent_random")]
)
def test_a_key_goes_where_librdkafka_sends_it(node, theirs, ours):
    name, keys = topic(node.bootstrap, PARTITIONS), random_keys(20_261_116)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "partitioner": theirs,
            "queue.buffering.max.messages": KEYS * 2,
            "log_level": 0,
        }
    )
    for key in keys:
        producer.produce(name, None, key)
    assert producer.flush(PATIENCE_S) == 0
    hashed = (
        (lambda key: by_murmur2(key, PARTITIONS)) if ours == "default" else lambda key: zlib.crc32(key) % PARTITIONS
    )
    with reader(node.bootstrap) as consumer:
        consumer.assign([(name, index) for index in range(PARTITIONS)])
        records = read(consumer, len(keys))
    assert len(records) == len(keys)
    wrong = [record for record in records if record.key and record.partition != hashed(record.key)]
    assert not wrong
    mine = topic(node.bootstrap, PARTITIONS)
    with Producer(bootstrap_servers=node.bootstrap, partitioner=ours) as producer:
        promised = [(key, producer.send(mine, None, key)) for key in keys[:5000] if key]
    assert all(delivery.metadata.partition == hashed(key) for key, delivery in promised)


def confluent_member(bootstrap, group, name, strategy):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "log_level": 0,
        }
    )
    consumer.subscribe([name])
    return consumer


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_group_of_ours_and_librdkafkas(node, strategy, first):
    name, group = topic(node.bootstrap, 6), unique("group")
    ours = reader(
        node.bootstrap,
        group_id=group,
        partition_assignment_strategy=strategy,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )
    seen: dict[bytes, int] = {}
    theirs = None

    def poll_ours():
        for record in ours.poll(0.1):
            seen[record.value] = seen.get(record.value, 0) + 1

    def poll_theirs():
        for record in theirs.consume(100, 0.1):
            if not record.error():
                seen[record.value()] = seen.get(record.value(), 0) + 1

    try:
        if first == "ours":
            ours.subscribe([name])
            until(lambda: poll_ours() or len(ours.assignment()) == 6, "ours has all")
            theirs = confluent_member(node.bootstrap, group, name, strategy)
        else:
            theirs = confluent_member(node.bootstrap, group, name, strategy)
            until(lambda: poll_theirs() or len(theirs.assignment()) == 6, "theirs has all")
            ours.subscribe([name])

        def shared():
            poll_ours()
            poll_theirs()
            return len(ours.assignment()) == 3 and len(theirs.assignment()) == 3

        until(shared, "both have three")
        held = {(partition.topic, partition.partition) for partition in theirs.assignment()} | set(ours.assignment())
        assert len(held) == 6
        with Producer(bootstrap_servers=node.bootstrap) as producer:
            for number in range(300):
                producer.send(name, b"%d" % number, partition=number % 6)

        def everything():
            poll_ours()
            poll_theirs()
            return len(seen) == 300

        until(everything, "every record is read by one of them")
        assert set(seen.values()) == {1}
        theirs.close()
        theirs = None
        until(lambda: poll_ours() or len(ours.assignment()) == 6, "ours has all again")
    finally:
        if theirs is not None:
            theirs.close()
        ours.close()
