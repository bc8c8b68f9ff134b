"""One Python client doing one piece of work in a process of its own: `python -m benchmarks.client_work CLIENT WORK ...`

Every client is connected and has moved a few records before the clock runs. Prints seconds, CPU seconds and records.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH = 16_384
LARGE_BATCH = 1_000_000
LINGER_MS = 5
WARM = 1000


def clock() -> complex:
    """Wall time as the real part, CPU time of all threads as the imaginary one: both are subtracted at once."""
    return complex(time.perf_counter(), time.process_time())


def produce_klamm_async(bootstrap: str, topic: str, size: int, count: int) -> complex:
    from klamm.client import AsyncProducer

    async def main() -> complex:
        value = b"v" * size
        async with AsyncProducer(
            bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, batch_size=BATCH, linger_ms=LINGER_MS
        ) as producer:
            for _ in range(WARM):
                await producer.send(topic, value)
            await producer.flush()
            send = producer.send
            began = clock()
            for _ in range(count):
                delivery = await send(topic, value)
            await producer.flush()
            took = clock() - began
            assert delivery.metadata.offset >= 0
            return took

    return asyncio.run(main())


def produce_klamm(bootstrap: str, topic: str, size: int, count: int) -> complex:
    from klamm.client import Producer

    value = b"v" * size
    with Producer(
        bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, batch_size=BATCH, linger_ms=LINGER_MS
    ) as producer:
        for _ in range(WARM):
            producer.send(topic, value)
        producer.flush()
        send = producer.send
        began = clock()
        for _ in range(count):
            delivery = send(topic, value)
        producer.flush()
        took = clock() - began
        assert delivery.metadata.offset >= 0
        return took


def produce_aiokafka(bootstrap: str, topic: str, size: int, count: int) -> complex:
    from aiokafka import AIOKafkaProducer

    async def main() -> complex:
        value = b"v" * size
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks=1, max_batch_size=BATCH, linger_ms=LINGER_MS, request_timeout_ms=60_000
        )
        await producer.start()
        for _ in range(WARM):
            await producer.send(topic, value)
        await producer.flush()
        send = producer.send
        began = clock()
        for _ in range(count):
            future = await send(topic, value)
        await producer.flush()
        took = clock() - began
        assert (await future).offset >= 0
        await producer.stop()
        return took

    return asyncio.run(main())


def produce_kafka_python(bootstrap: str, topic: str, size: int, count: int) -> complex:
    from kafka import KafkaProducer

    value = b"v" * size
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, batch_size=BATCH, linger_ms=LINGER_MS
    )
    for _ in range(WARM):
        producer.send(topic, value)
    producer.flush()
    send = producer.send
    began = clock()
    for _ in range(count):
        future = send(topic, value)
    producer.flush()
    took = clock() - began
    assert future.get(10).offset >= 0
    producer.close()
    return took


def _confluent_produce(bootstrap: str, topic: str, size: int, count: int, batch: int) -> complex:
    from confluent_kafka import Producer

    value = b"v" * size
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "batch.size": batch,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for _ in range(WARM):
        producer.produce(topic, value)
    producer.flush()
    produce = producer.produce
    began = clock()
    for _ in range(count):
        try:
            produce(topic, value)
        except BufferError:
            producer.poll(0.05)
            produce(topic, value)
    assert producer.flush() == 0
    return clock() - began


def produce_confluent(bootstrap: str, topic: str, size: int, count: int) -> complex:
    return _confluent_produce(bootstrap, topic, size, count, BATCH)


def produce_confluent_large(bootstrap: str, topic: str, size: int, count: int) -> complex:
    return _confluent_produce(bootstrap, topic, size, count, LARGE_BATCH)


def produce_columns(bootstrap: str, topic: str, size: int, count: int) -> complex:
    import pyarrow as pa

    from klamm.client import AsyncProducer

    block = min(count, 100_000)
    table = pa.table({"value": pa.array([b"v" * size] * block, pa.binary())})

    async def main() -> complex:
        async with AsyncProducer(
            bootstrap_servers=bootstrap, acks=1, enable_idempotence=False, batch_size=LARGE_BATCH, linger_ms=LINGER_MS
        ) as producer:
            await producer.send_arrow(topic, table.slice(0, WARM))
            await producer.flush()
            began = clock()
            for _ in range(count // block):
                deliveries = await producer.send_arrow(topic, table)
            await producer.flush()
            took = clock() - began
            assert all(delivery.metadata.offset >= 0 for delivery in deliveries)
            return took

    return asyncio.run(main())


def _timed(records: Any, count: int) -> complex:
    """From the record after the first to the last, so that joining and connecting do not count."""
    began = 0j
    for seen, record in enumerate(records, 1):
        if seen == 1:
            began = clock()
        if seen == count:
            assert record.value is not None
            break
    return clock() - began


async def _timed_async(records: Any, count: int) -> complex:
    seen = 0
    began = 0j
    async for record in records:
        seen += 1
        if seen == 1:
            began = clock()
        if seen == count:
            assert record.value is not None
            break
    return clock() - began


def consume_klamm_async(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    from klamm.client import AsyncConsumer

    async def main() -> complex:
        async with AsyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, index) for index in await consumer.partitions_for(topic)])
            return await _timed_async(consumer, count)

    return asyncio.run(main())


def consume_klamm(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    from klamm.client import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, index) for index in consumer.partitions_for(topic)])
        return _timed(consumer, count)


def consume_aiokafka(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    from aiokafka import AIOKafkaConsumer

    async def main() -> complex:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        took = await _timed_async(consumer, count)
        await consumer.stop()
        return took

    return asyncio.run(main())


def consume_kafka_python(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    took = _timed(consumer, count)
    consumer.close()
    return took


def consume_confluent(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "queued.min.messages": 1_000_000})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    seen = 0
    began = 0j
    while seen < count:
        for message in consumer.consume(1000, 1.0):
            if not seen:
                began = clock()
            if message.value() is not None:
                seen += 1
    took = clock() - began
    consumer.close()
    return took


def consume_columns(bootstrap: str, topic: str, _size: int, count: int) -> complex:
    import pyarrow as pa  # noqa: F401 - imported before the clock runs

    from klamm.client import AsyncConsumer

    async def main() -> complex:
        # As librdkafka, which compares checksums only with check.crcs.
        async with AsyncConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", check_crcs=False
        ) as consumer:
            consumer.assign([(topic, index) for index in await consumer.partitions_for(topic)])
            seen = first = 0
            began = 0j
            while seen < count:
                batch = await consumer.poll_arrow(1.0)
                if not seen and batch.num_rows:
                    began, first = clock(), batch.num_rows
                seen += batch.num_rows
            # What came before the clock ran is taken off the records, not only off the time.
            return (clock() - began) * count / max(seen - first, 1)

    return asyncio.run(main())


WORKS: dict[tuple[str, str], Callable[[str, str, int, int], complex]] = {
    ("klamm async", "produce"): produce_klamm_async,
    ("klamm", "produce"): produce_klamm,
    ("aiokafka", "produce"): produce_aiokafka,
    ("kafka-python", "produce"): produce_kafka_python,
    ("confluent-kafka", "produce"): produce_confluent,
    ("klamm async", "consume"): consume_klamm_async,
    ("klamm", "consume"): consume_klamm,
    ("aiokafka", "consume"): consume_aiokafka,
    ("kafka-python", "consume"): consume_kafka_python,
    ("confluent-kafka", "consume"): consume_confluent,
    ("klamm columns", "columns-in"): produce_columns,
    ("confluent-kafka", "columns-in"): produce_confluent_large,
    ("klamm columns", "columns-out"): consume_columns,
    ("confluent-kafka", "columns-out"): consume_confluent,
}


def main() -> None:
    client, work, bootstrap, topic, size, count = sys.argv[1:]
    took = WORKS[client, work](bootstrap, topic, int(size), int(count))
    print(json.dumps({"seconds": took.real, "cpu_s": took.imag, "records": int(count)}))


if __name__ == "__main__":
    main()
