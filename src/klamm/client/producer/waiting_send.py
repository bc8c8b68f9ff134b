"""Sending a record that cannot be appended at once: its topic is unknown, or buffer.memory is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.client.core.arguments import text, whole
from klamm.client.errors import UnknownTopicOrPartitionError
from klamm.client.producer.batch import Delivery
from klamm.model.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.client.producer.producer import AsyncProducer
    from klamm.client.types import Headers


async def send_when_possible(
    producer: AsyncProducer,
    append: Callable[..., Delivery | None],
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int | None,
    timestamp: int | None,
    headers: Headers | None,
) -> Delivery:
    """Wait for metadata and for buffer memory, then `append` a record; for at most max.block.ms."""
    text(topic, "topic of send")
    partition = None if partition is None else whole(partition, "partition of send")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + producer.block_s
    while True:
        cluster = producer.cluster
        if topic not in producer.known_topics:
            await cluster.topic(topic, max(deadline - loop.time(), 0))
            producer.topics.update(topic)
        if partition is not None and not 0 <= partition < len(producer.known_topics[topic].queues):
            await _find_partition(producer, topic, partition)
        delivery = append(topic, value, key, partition, timestamp, headers)
        if delivery is not None:
            return delivery
        # Another caller may take the freed memory first: then append returns None again.
        await wait_for_memory(producer, producer.accumulator.memory_bytes, deadline)


async def wait_for_memory(producer: AsyncProducer, below: int, deadline: float) -> None:
    """Wait until memory was freed and at most `below` bytes are used; BufferFullError at `deadline`."""
    assert producer.sender is not None
    await producer.backpressure.wait(below, producer.block_s, deadline, producer.sender.wake)


async def _find_partition(producer: AsyncProducer, topic: str, partition: int) -> None:
    """Refresh the metadata of a topic: a partition that is not known yet may have been added just now."""
    await producer.cluster.refresh([topic])
    count = len(producer.topics.update(topic).queues)
    if not 0 <= partition < count:
        raise UnknownTopicOrPartitionError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, and no partition {partition}"
        )
