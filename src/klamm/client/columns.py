"""Arrow out, without a Python object per record: `consumer.tables` decodes, `producer.tables` is the way in.

Column names are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp, timestampType,
headers. Needs pyarrow (`pip install 'klamm[arrow]'`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from klamm.client.types import TopicPartition
from klamm.records.arrow import schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.consumer.consumer import AsyncConsumer


def empty_batch() -> pa.RecordBatch:
    """No rows, all columns."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.RecordBatch.from_pylist([], schema=schema())


def read_topic(
    topic: str,
    *,
    bootstrap: str,
    start: str | int = "earliest",
    end: str | int = "latest",
    isolation: str = "read_committed",
    partitions: list[int] | None = None,
    timeout_s: float | None = None,
    **settings: Any,
) -> pa.Table:
    """All records of a topic between two moments, as one table.

    `start` and `end` are "earliest", "latest" or a time in milliseconds; `end` is looked up once, when reading begins,
    so the table is bounded whatever is written meanwhile. `timeout_s` bounds the whole. More settings are a consumer's.
    """
    options = {
        "bootstrap": bootstrap,
        "start": start,
        "end": end,
        "isolation": isolation,
        "partitions": partitions,
        "timeout_s": timeout_s,
        **settings,
    }
    if _in_loop():
        return _in_thread(topic, **options)
    return asyncio.run(read_topic_async(topic, **options))


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(topic: str, **options: Any) -> pa.Table:
    """In a notebook a loop runs already: read in the blocking face's thread."""
    from klamm.client import loop_thread  # noqa: PLC0415 - the rare way

    thread = loop_thread.acquire()
    try:
        return thread.run(read_topic_async(topic, **options))
    finally:
        loop_thread.release(thread)


async def read_topic_async(
    topic: str,
    *,
    bootstrap: str,
    start: str | int = "earliest",
    end: str | int = "latest",
    isolation: str = "read_committed",
    partitions: list[int] | None = None,
    timeout_s: float | None = None,
    **settings: Any,
) -> pa.Table:
    """`read_topic` for a running event loop."""
    import pyarrow as pa  # noqa: PLC0415

    from klamm.client.consumer import AsyncConsumer  # noqa: PLC0415

    chosen = {"bootstrap.servers": bootstrap, "isolation.level": isolation, "allow.auto.create.topics": False}
    async with asyncio.timeout(timeout_s), AsyncConsumer(chosen, **settings) as consumer:
        indexes = await consumer.partitions_for(topic) if partitions is None else partitions
        places = [TopicPartition(topic, each) for each in indexes]
        firsts = await _offsets(consumer, places, start)
        lasts = await _offsets(consumer, places, end)
        open_ends = {where: lasts[where] for where in places if firsts[where] < lasts[where]}
        consumer.assign(open_ends)
        for where in open_ends:
            consumer.seek(where, firsts[where])
        parts: list[pa.RecordBatch] = []
        while open_ends:
            batch = await consumer.poll_arrow(1.0)
            if batch.num_rows:
                parts.extend(_before(batch, open_ends))
            for where in list(open_ends):
                if consumer._subscription.state(where).position_reached(open_ends[where]):
                    del open_ends[where]
                    consumer.pause(where)
    return pa.Table.from_batches(parts, schema=schema())


async def _offsets(
    consumer: AsyncConsumer, places: list[TopicPartition], moment: str | int
) -> dict[TopicPartition, int]:
    if moment == "earliest":
        return await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    if moment == "latest":
        return ends
    if isinstance(moment, str):
        raise ValueError(  # noqa: TRY004 - a word was fine, this one is not
            f"{moment!r} is no moment: write earliest, latest or milliseconds since 1970"
        )
    found = await consumer.offsets_for_times(dict.fromkeys(places, moment))
    return {where: ends[where] if each is None else each.offset for where, each in found.items()}


def _before(batch: pa.RecordBatch, ends: dict[TopicPartition, int]) -> Iterator[pa.RecordBatch]:
    """The rows before the ends; partitions lie one after another in a batch."""
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    for where, end in ends.items():
        mine = batch if len(ends) == 1 else batch.filter(pc.equal(batch.column("partition"), where.partition))
        if not mine.num_rows:
            continue
        if mine.column("offset")[mine.num_rows - 1].as_py() >= end:
            mine = mine.filter(pc.less(mine.column("offset"), end))
        if mine.num_rows:
            yield mine
