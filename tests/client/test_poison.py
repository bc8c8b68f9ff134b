"""Records that cannot be read: the error says which one and has its bytes, and reading goes on behind it.

The older tests looked at the words of the error and then sought behind the place which the test knew; a program has
only the error, and that had neither partition nor offset.
"""

import asyncio
import json
from pathlib import Path

import pytest

import klamm
import klamm.testing
from klamm.client import AsyncConsumer, Consumer, CorruptRecordError, RecordError, SerializationError, TopicPartition
from klamm.client.errors import ConfigError
from klamm.records.batch import HEADER_SIZE, iter_batches


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


@pytest.fixture(scope="module")
def poisoned(broker):
    """A topic of six records, of which the second, third and last are no JSON."""
    topic = broker.topic()
    with broker.producer() as producer:
        for value in (b'{"n":1}', b"{", b"nonsense", b'{"n":4}', b'{"n":5}', b"\xff"):
            producer.send(topic, value, key=b"key of " + value)
    return topic


@pytest.fixture(scope="module")
def damaged():
    """Three batches of two records on disk, the second one with a byte that its checksum does not cover."""
    with klamm.testing.broker() as own:
        topic = own.topic()
        with own.producer() as producer:
            for number in range(6):
                producer.send(topic, b"value %d" % number)
                if number % 2:
                    producer.flush()
        own.stop()
        (log,) = Path(own.data).glob(f"{topic}-0/*.log")
        data = bytearray(log.read_bytes())
        second = list(iter_batches(data))[1]
        data[second.position + HEADER_SIZE + 8] ^= 0xFF
        log.write_bytes(data)
        own.start()
        yield own, topic, bytes(data[second.position : second.position + second.size])


def reader(broker, topic, **settings):
    consumer = Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", **settings)
    consumer.assign([(topic, 0)])
    return consumer


def numbers(consumer, count):
    read = []
    while len(read) < count:
        read += [record.value["n"] for record in consumer.poll(30)]
    return read


def test_an_error_says_which_record_it_is_and_seeking_behind_it_goes_on(broker, poisoned):
    with reader(broker, poisoned, value_deserializer="json") as consumer:
        assert numbers(consumer, 1) == [1]
        for _ in range(2):  # it stays where it is until the program decides
            with pytest.raises(SerializationError, match="offset 1") as raised:
                consumer.poll(30)
            assert raised.value.topic_partition == TopicPartition(poisoned, 0)
            assert (raised.value.offset, raised.value.next_offset) == (1, 2)
            assert (raised.value.key, raised.value.value) == (b"key of {", b"{")
            assert consumer.position((poisoned, 0)) == 1
        consumer.seek(raised.value.topic_partition, raised.value.next_offset)
        with pytest.raises(SerializationError, match="offset 2") as raised:
            consumer.poll(30)
        assert isinstance(raised.value.__cause__.__cause__, json.JSONDecodeError)
        consumer.seek(raised.value.topic_partition, raised.value.next_offset)
        assert numbers(consumer, 2) == [4, 5]


def test_skipping_leaves_out_what_cannot_be_read(broker, poisoned):
    with reader(broker, poisoned, value_deserializer="json", on_error="skip") as consumer:
        assert numbers(consumer, 3) == [1, 4, 5]
        assert consumer.poll(0.1) == []
        assert consumer.position((poisoned, 0)) == 6
    with reader(broker, poisoned, value_deserializer="json", on_error="skip") as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(3)] == [0, 3, 4]


def test_skipped_records_are_committed(broker, poisoned):
    with broker.consumer(poisoned, value_deserializer="json", on_error="skip", group_id="skips") as consumer:
        assert numbers(consumer, 3) == [1, 4, 5]
        consumer.poll(0.1)
        consumer.commit()
        assert consumer.committed([(poisoned, 0)])[TopicPartition(poisoned, 0)].offset == 6


def test_a_function_gets_the_errors_and_may_send_them_elsewhere(broker, poisoned):
    """In the thread that polls, so that blocking clients can be used there."""
    letters = broker.topic("letters")
    with broker.producer() as producer:

        def bury(error: RecordError) -> None:
            producer.send(letters, error.value, key=b"%d" % error.offset).result(30)

        with reader(broker, poisoned, value_deserializer="json", on_error=bury) as consumer:
            assert numbers(consumer, 3) == [1, 4, 5]
            assert consumer.poll(0.1) == []
    table = klamm.read_topic(letters, bootstrap=broker.bootstrap)
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == {
        b"1": b"{",
        b"2": b"nonsense",
        b"5": b"\xff",
    }


def test_a_function_that_raises_or_seeks_has_its_way(broker, poisoned):
    class Enough(Exception):
        pass

    def refuse(error):
        raise Enough from error

    with reader(broker, poisoned, value_deserializer="json", on_error=refuse) as consumer:
        assert numbers(consumer, 1) == [1]
        with pytest.raises(Enough):
            consumer.poll(30)
        assert consumer.position((poisoned, 0)) == 1
    with reader(broker, poisoned, value_deserializer="json", on_error=lambda error: go_on(error)) as consumer:  # noqa: PLW0108 - defined below

        def go_on(error):
            consumer.seek(error.topic_partition, 4)

        assert numbers(consumer, 2) == [1, 5]


def test_an_asyncio_consumer_awaits_the_function(broker, poisoned):
    seen = []

    async def remember(error):
        await asyncio.sleep(0)
        seen.append(error.offset)

    async def read():
        async with AsyncConsumer(
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            value_deserializer="json",
            on_error=remember,
        ) as consumer:
            consumer.assign([(poisoned, 0)])
            async for record in consumer:
                if record.offset == 4:
                    break

    asyncio.run(read())
    assert seen == [1, 2]


def test_a_poll_loses_nothing_of_other_partitions(broker):
    """Records of one partition were dropped when another one, later in the same poll, had a record that failed."""
    topic = broker.topic(partitions=2)
    with broker.producer() as producer:
        producer.send(topic, b"1", partition=0)
        producer.send(topic, b"nonsense", partition=1)
        producer.send(topic, b"3", partition=1)
        producer.flush()
    with reader(broker, topic, value_deserializer="json", on_error="skip") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        read = []
        while len(read) < 2:
            read += [record.value for record in consumer.poll(30)]
        assert sorted(read) == [1, 3]


def test_a_damaged_batch_says_its_place_and_has_its_bytes(damaged):
    broker, topic, data = damaged
    with reader(broker, topic) as consumer:
        assert [record.offset for record in consumer.poll(30)] == [0, 1]
        with pytest.raises(CorruptRecordError, match="at offset 2") as raised:
            consumer.poll(30)
        assert raised.value.topic_partition == TopicPartition(topic, 0)
        assert (raised.value.offset, raised.value.next_offset) == (2, 4)
        assert raised.value.data[HEADER_SIZE:] == data[HEADER_SIZE:]
        consumer.seek(raised.value.topic_partition, raised.value.next_offset)
        assert [record.offset for record in consumer.poll(30)] == [4, 5]


def test_damaged_batches_are_skipped_in_records_and_in_tables(damaged):
    broker, topic, _ = damaged
    errors = []
    with reader(broker, topic, on_error=errors.append) as consumer:
        offsets = []
        while len(offsets) < 4:
            offsets += [record.offset for record in consumer.poll(30)]
        assert offsets == [0, 1, 4, 5]
    assert [(type(error), error.offset) for error in errors] == [(CorruptRecordError, 2)]
    with pytest.raises(CorruptRecordError):
        klamm.read_topic(topic, bootstrap=broker.bootstrap)
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, on_error="skip")
    assert table["offset"].to_pylist() == [0, 1, 4, 5]


def test_what_is_no_way_to_deal_with_errors_is_said():
    with pytest.raises(ConfigError, match=r"on\.error='ignore' is not known: write raise, skip, or give a function"):
        Consumer(bootstrap_servers="127.0.0.1:1", on_error="ignore")
