"""Tables into batches: rows by the partition they go to, in parts of about batch.size, encoded when they are sent.

No Python object is made per row. A part waits as the place of its rows in the table; its bytes are made right before
they go to the socket, in a buffer that was used before: memory is touched while it is in the processor's cache, and the
checksum is taken once, with producer id and sequence already in place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from klamm.client.errors import IllegalStateError, KafkaError, RecordTooLargeError
from klamm.client.producer.batch import Batch, Delivery
from klamm.client.producer.transactions import TransactionStatus
from klamm.client.spares import Spares
from klamm.model.errors import ErrorCode
from klamm.records import kernels
from klamm.records.arrow import ArrowRows, binary_buffers
from klamm.records.batch import HEADER_SIZE

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.producer.producer import AsyncProducer
_BURST = 16
"""Parts handed over without letting others run."""


class TablePart:
    """Some rows of a table, on their way into one batch (`batch.Part`)."""

    __slots__ = ("_first", "_rows", "_spares", "count", "size")

    def __init__(self, rows: ArrowRows, first: int, end: int, spares: Spares) -> None:
        self._rows = rows
        self._first = first
        self._spares = spares
        self.count = end - first
        self.size = rows.size(first, end)

    def encode(self, **header: Any) -> bytearray:
        """The whole batch, in a buffer used before where there is one."""
        return self._rows.encode(self._first, self.count, spare=self._spares.take(), **header)

    def done(self, data: bytearray) -> None:
        """The buffer may be used again."""
        self._spares.give(data)


async def send_table(
    producer: AsyncProducer,
    topic: str,
    table: pa.Table | pa.RecordBatch,
    *,
    key: str | None,
    value: str | None,
    headers: str | None,
    timestamp: str | None,
    partition: int | str | None,
) -> list[Delivery]:
    """Rows to batches of about batch.size, each to its partition; waits while buffers are full."""
    import pyarrow as pa  # noqa: PLC0415

    if value is not None and value not in table.schema.names:
        raise ValueError(f"there is no column {value!r}: value=... names the one to send, or None for no values")
    if producer._transactions is not None:
        producer._transactions.require(TransactionStatus.IN_TRANSACTION)
    names = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
    present = {name: column for name, column in names.items() if column is not None and column in table.schema.names}
    await producer.cluster.topic(topic, producer._block_s)
    found = producer._topics.learn(topic)
    now_ms = time.time_ns() // 1_000_000
    limit = min(producer._accumulator.batch_size, producer._request_size)
    deliveries: list[Delivery] = []
    for rows in [table] if isinstance(table, pa.RecordBatch) else table.to_batches():
        if not rows.num_rows:
            continue
        chosen = pa.RecordBatch.from_arrays([_plain(rows.column(each)) for each in present.values()], list(present))
        for index, group in _by_partition(producer, topic, rows, chosen, partition):
            for part in _parts(ArrowRows(group, now_ms), limit, producer._spares):
                if part.count == 1 and HEADER_SIZE + part.size > producer._request_size:
                    raise RecordTooLargeError(
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"a row of {part.size} bytes is larger than max.request.size={producer._request_size}",
                    )
                where = producer._topics.switch(found) if index is None else index
                batch = await _enqueue(producer, topic, where, part)
                deliveries.append(Delivery(batch, part.count - 1, now_ms))
                if not len(deliveries) % _BURST:
                    await asyncio.sleep(0)  # answers must be heard meanwhile
    return deliveries


async def _enqueue(producer: AsyncProducer, topic: str, index: int, part: TablePart) -> Batch:
    """Hand a part to the sender; when buffers are full, wait until they are half empty."""
    loop = asyncio.get_running_loop()
    accumulator = producer._accumulator
    if accumulator.used and accumulator.used + part.size > accumulator.memory_bytes:
        deadline = loop.time() + producer._block_s
        while accumulator.used and accumulator.used + part.size > accumulator.memory_bytes:
            await producer._wait_for_room(accumulator.memory_bytes // 2, deadline)
    if producer._closed:
        raise IllegalStateError("the producer is closed")
    assert producer._sender is not None
    with producer._guard:
        queue = producer._known[topic].queues[index]
        batch = Batch.of_part(queue.where, loop.time(), part)
        accumulator.add(queue, batch)
        accumulator.filled = False
    producer._sender.push(queue.where)
    return batch


def _plain(column: pa.Array) -> pa.Array:
    """Dictionaries unfolded, 64-bit offsets narrowed: what the kernels read."""
    import pyarrow as pa  # noqa: PLC0415

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind):
        column = column.cast(pa.binary())
    return column


def _parts(rows: ArrowRows, limit: int, spares: Spares) -> Iterator[TablePart]:
    """All rows in parts of at most `limit` bytes, and at least one row each."""
    at = usual = 0
    while at < rows.rows:
        low, high = at + 1, rows.rows
        guess = at + usual  # rows are often of one size
        if low < guess < high and HEADER_SIZE + rows.size(at, guess) <= limit < HEADER_SIZE + rows.size(at, guess + 1):
            low = high = guess
        while low < high:
            middle = (low + high + 1) // 2
            if HEADER_SIZE + rows.size(at, middle) <= limit:
                low = middle
            else:
                high = middle - 1
        yield TablePart(rows, at, low, spares)
        at, usual = low, low - at


# Partitions


def _by_partition(
    producer: AsyncProducer, topic: str, rows: pa.RecordBatch, chosen: pa.RecordBatch, partition: int | str | None
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Rows by the partition they go to: told, or by key as `send` would choose; None leaves it to each part."""
    settings = producer.settings
    count = len(producer._known[topic].queues)
    if isinstance(partition, int):
        if not 0 <= partition < count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, not {partition}")
        yield partition, chosen
    elif isinstance(partition, str):
        yield from _grouped(chosen, *_told(rows.column(partition), count, topic))
    elif "key" not in chosen.schema.names or settings["partitioner.ignore.keys"]:
        yield None, chosen
    elif settings["partitioner"] == "default":
        yield from _grouped(chosen, *_by_key(producer, topic, chosen.column("key"), count))
    else:
        yield from _grouped(chosen, *_asked(producer, topic, chosen.column("key"), count))


def _told(column: pa.Array, count: int, topic: str) -> tuple[bytearray, list[int]]:
    """The partitions that a column names, an int32 per row, and how many rows go to each."""
    import pyarrow as pa  # noqa: PLC0415

    column = column.cast(pa.int32()).fill_null(-1)
    counts = [0] * count
    for each in column.value_counts().to_pylist():
        if not 0 <= each["values"] < count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, not {each['values']}"
            )
        counts[each["values"]] = each["counts"]
    view = memoryview(column.buffers()[1]).cast("B")
    return bytearray(view[4 * column.offset : 4 * (column.offset + len(column))]), counts


def _by_key(producer: AsyncProducer, topic: str, keys: pa.Array, count: int) -> tuple[bytearray, list[int]]:
    """Kafka's own places for keys; rows without one go together to the next sticky partition."""
    placed, totals = bytearray(4 * len(keys)), bytearray(8 * count)
    buffers = binary_buffers(keys)
    if buffers is None:
        nulls = len(keys)
        placed[:] = b"\xff" * len(placed)
    else:
        nulls = kernels.partition_rows(len(keys), buffers, count, placed, totals)
    counts = list(memoryview(totals).cast("q"))
    if nulls:
        other = producer._topics.switch(producer._known[topic])
        view = memoryview(placed).cast("i")
        for row in range(len(keys)):
            if view[row] < 0:
                view[row] = other
        counts[other] += nulls
    return placed, counts


def _asked(producer: AsyncProducer, topic: str, keys: pa.Array, count: int) -> tuple[bytearray, list[int]]:
    """The places another partitioner chooses; it is asked for every key."""
    placed = bytearray(4 * len(keys))
    view = memoryview(placed).cast("i")
    counts = [0] * count
    for row, each in enumerate(keys.to_pylist()):
        index = producer._partitioner(topic, each, count)
        view[row] = producer._topics.switch(producer._known[topic]) if index < 0 else index
        counts[view[row]] += 1
    return placed, counts


def _grouped(chosen: pa.RecordBatch, placed: bytearray, counts: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of one partition after those of another."""
    import pyarrow as pa  # noqa: PLC0415

    rows = chosen.num_rows
    starts = bytearray(8 * len(counts))
    with memoryview(starts).cast("q") as view:
        total = 0
        for index, size in enumerate(counts):
            view[index] = total
            total += size
    order = bytearray(8 * rows)
    kernels.group_rows(rows, placed, starts, order)
    taken = chosen.take(pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(order)]))
    at = 0
    for index, size in enumerate(counts):
        if size:
            yield index, taken.slice(at, size)
            at += size
