"""Arrow out, without a Python object per record: `consumer.tables` decodes, `producer.tables` is the way in.

`read_topic` is a whole topic as one table; `bounded` reads it.

Column names are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp, timestampType,
headers. Needs pyarrow (`pip install 'klamm[arrow]'`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from klamm.client.arguments import seconds, several, text
from klamm.client.core.offset_specs import ReadBound, parse_read_bound
from klamm.client.extras import require_pyarrow
from klamm.client.json_columns import FORMS, read_values
from klamm.records.arrow import schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.settings import ConsumerSettings


def empty_batch() -> pa.RecordBatch:
    """No rows, all columns."""
    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415

    return pa.RecordBatch.from_pylist([], schema=schema())


def _usually(timeout_s: float | None) -> dict[str, Any]:
    """Reading makes no topics, and what was deleted meanwhile must not take the rest with it.

    With a limit for the whole, a broker is waited for as long as that.
    """
    usual = {"allow_auto_create_topics": False, "auto_offset_reset": "earliest"}
    return usual if timeout_s is None else usual | {"bootstrap_timeout_ms": math.ceil(timeout_s * 1000) + 1000}


def read_topic(
    topic: str,
    *,
    bootstrap: str,
    start: ReadBound = "earliest",
    end: ReadBound = "latest",
    isolation: str = "read_committed",
    partitions: Iterable[int] | None = None,
    timeout_s: float | None = None,
    value: str = "bytes",
    **settings: Unpack[ConsumerSettings],
) -> pa.Table:
    """All records of a topic between two moments, as one table.

    `start` and `end` are "earliest", "latest", a datetime with a timezone, a timedelta (that long ago), milliseconds
    since 1970, or a dict of partitions to offsets (those not named: from the first record, to the last). `end` is
    looked up once, when reading begins, so the table is bounded whatever is written meanwhile. What is no longer in the
    log, at the start or deleted while it is read, is left out: reading goes on at the first record there is
    (`auto_offset_reset="none"` raises OffsetOutOfRangeError instead).

    `value` says what values are: "bytes", "str" (text), or "json", whose fields become columns of the types they have.
    What is none is a SerializationError, unless `on_error` says otherwise.

    UnknownTopicOrPartitionError when there is no such topic, or not any more. `timeout_s` bounds the whole
    (KafkaTimeoutError); without it, brokers that are away are waited for, the first one for bootstrap.timeout.ms. More
    settings are a consumer's.
    """
    options: dict[str, Any] = {
        "bootstrap": bootstrap,
        "start": start,
        "end": end,
        "isolation": isolation,
        "partitions": partitions,
        "timeout_s": timeout_s,
        "value": value,
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
    start: ReadBound = "earliest",
    end: ReadBound = "latest",
    isolation: str = "read_committed",
    partitions: Iterable[int] | None = None,
    timeout_s: float | None = None,
    value: str = "bytes",
    **settings: Unpack[ConsumerSettings],
) -> pa.Table:
    """`read_topic` for a running event loop."""
    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415

    from klamm.client.bounded_read import BoundedRead  # noqa: PLC0415 - a consumer, which imports this file

    now_ms = time.time_ns() // 1_000_000
    text(topic, "topic of read_topic")
    if value not in FORMS:
        raise ValueError(f"value={value!r} is not known: write {', '.join(FORMS)}")
    if timeout_s is not None:
        seconds(timeout_s, "timeout_s of read_topic")
    read = BoundedRead(
        topic,
        parse_read_bound(start, "start", now_ms),
        parse_read_bound(end, "end", now_ms),
        None if partitions is None else several(partitions, int, "partitions of read_topic"),
        {"bootstrap.servers": bootstrap, "isolation.level": isolation},
        _usually(timeout_s) | settings,
    )
    table = pa.Table.from_batches(await read.run(timeout_s), schema=schema())
    return await read_values(table, value, read.on_error)
