"""A topic as one Arrow table, without a Python object per record: `read_topic`.

`bounded_read` reads it, `consumer.tables` decodes; `producer.tables` is the other direction.

Column names are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp, timestampType,
headers. Needs pyarrow (`pip install 'klamm[arrow]'`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client.core.arguments import seconds, several, text
from klamm.client.core.offset_specs import OffsetBound, parse_read_bound
from klamm.client.extras import require_pyarrow
from klamm.client.json_columns import FORMS, read_values
from klamm.client.registry_columns import read_registry_values, registry_reader
from klamm.records.arrow import schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.serde import SupportsColumns
    from klamm.client.settings import ConsumerSettings


def empty_batch() -> pa.RecordBatch:
    """No rows, all columns."""
    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415

    return pa.RecordBatch.from_pylist([], schema=schema())


def _default_settings(timeout_s: float | None) -> dict[str, Any]:
    """No topic is created by reading, and records deleted by retention meanwhile are skipped."""
    defaults = {"allow_auto_create_topics": False, "auto_offset_reset": "earliest"}
    # A second longer than the whole, so that `timeout_s` decides, and its error says what was waited for.
    return defaults if timeout_s is None else defaults | {"bootstrap_timeout_ms": math.ceil(timeout_s * 1000) + 1000}


def read_topic(
    topic: str,
    *,
    bootstrap: str,
    start: OffsetBound = "earliest",
    end: OffsetBound = "latest",
    isolation: str = "read_committed",
    partitions: Iterable[int] | None = None,
    timeout_s: float | None = None,
    value: str | SupportsColumns = "bytes",
    registry: str | Mapping[str, Any] | None = None,
    **settings: Unpack[ConsumerSettings],
) -> pa.Table:
    """All records of a topic between two times or offsets, as one table.

    `start` and `end` are "earliest", "latest", a datetime with a timezone, a timedelta (that long ago), milliseconds
    since 1970, or a dict of partitions to offsets (those not named: from the first record, to the last). `end` is
    looked up once, when reading begins, so the table is bounded whatever is written meanwhile. Records that are no
    longer in the log, at the start or deleted during the read, are left out: reading continues at the first record
    that exists (`auto_offset_reset="none"` raises OffsetOutOfRangeError instead).

    `value` is the form of the values: "bytes", "str" (text), "json", or "registry", for values with a schema of the
    registry whose address or settings are in `registry`. The fields of the last two become typed columns, those of a
    registry by the newest schema of the topic; a deserializer of a registry may be given as well. A value of another
    form raises SerializationError, unless `on_error` is set.

    Raises UnknownTopicOrPartitionError if the topic does not exist or is deleted meanwhile. `timeout_s` bounds the
    whole read (KafkaTimeoutError); without it, unreachable brokers are retried without limit, the first one for
    bootstrap.timeout.ms. Other settings are those of a consumer.
    """
    options: dict[str, Any] = {
        "bootstrap": bootstrap,
        "start": start,
        "end": end,
        "isolation": isolation,
        "partitions": partitions,
        "timeout_s": timeout_s,
        "value": value,
        "registry": registry,
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
    """In a notebook an event loop runs already: read on the thread of the blocking clients."""
    from klamm.client import loop_thread  # noqa: PLC0415 - needed in notebooks only

    thread = loop_thread.acquire()
    try:
        return thread.run(read_topic_async(topic, **options))
    finally:
        loop_thread.release(thread)


async def read_topic_async(
    topic: str,
    *,
    bootstrap: str,
    start: OffsetBound = "earliest",
    end: OffsetBound = "latest",
    isolation: str = "read_committed",
    partitions: Iterable[int] | None = None,
    timeout_s: float | None = None,
    value: str | SupportsColumns = "bytes",
    registry: str | Mapping[str, Any] | None = None,
    **settings: Unpack[ConsumerSettings],
) -> pa.Table:
    """`read_topic` for a running event loop."""
    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415

    from klamm.client.bounded_read import BoundedRead  # noqa: PLC0415 - a consumer, which imports this file

    # One "now" for both ends: with two, start=1h and end=0h would not be an hour apart.
    now_ms = time.time_ns() // 1_000_000
    text(topic, "topic of read_topic")
    reader = registry_reader(value, registry)
    if reader is None and value not in FORMS:
        raise ValueError(f"value={value!r} is not known: write {', '.join((*FORMS, 'registry'))}")
    if timeout_s is not None:
        seconds(timeout_s, "timeout_s of read_topic")
    read = BoundedRead(
        topic,
        parse_read_bound(start, "start", now_ms),
        parse_read_bound(end, "end", now_ms),
        None if partitions is None else several(partitions, int, "partitions of read_topic"),
        {"bootstrap.servers": bootstrap, "isolation.level": isolation},
        _default_settings(timeout_s) | settings,
    )
    table = pa.Table.from_batches(await read.run(timeout_s), schema=schema())
    if reader is not None:
        return await read_registry_values(table, reader, read.on_error)
    return await read_values(table, str(value), read.on_error)
