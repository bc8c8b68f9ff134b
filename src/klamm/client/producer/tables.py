"""Tables into batches: rows by the partition they go to, in parts of about batch.size, encoded when they are sent.

No Python object is made per row. A part waits as the place of its rows in the table; its bytes are made right before
they go to the socket, in a buffer that was used before: memory is touched while it is in the processor's cache, and the
checksum is taken once, with producer id and sequence already in place.
"""

from __future__ import annotations

import asyncio
import operator
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.arguments import text
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import IllegalStateError, RecordTooLargeError, error_for
from klamm.client.producer.batch import Batch, Delivery
from klamm.client.producer.core.table_columns import Chosen, as_table, chosen_columns, plain, plain_bytes, unfolded
from klamm.client.producer.core.transactions import TransactionStatus
from klamm.client.producer.table_json import is_wanted, with_json
from klamm.client.producer.waiting_send import wait_for_memory
from klamm.model.errors import ErrorCode
from klamm.records.arrow import ArrowRows, binary_buffers
from klamm.records.batch import HEADER_SIZE, RECORD_OVERHEAD
from klamm.records.kernels.partitioning import group_rows, partition_rows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.producer.producer import AsyncProducer
_BURST = 16
"""Parts handed over without letting others run."""


class TablePart:
    """Some rows of a table, on their way into one batch (`batch.Part`)."""

    __slots__ = ("_buffer_pool", "_first", "_rows", "count", "size")

    def __init__(self, rows: ArrowRows, first: int, end: int, buffer_pool: BufferPool) -> None:
        self._rows = rows
        self._first = first
        self._buffer_pool = buffer_pool
        self.count = end - first
        self.size = rows.size(first, end)

    def encode(self, **header: Any) -> bytearray:
        """The whole batch, in a buffer used before where there is one."""
        return self._rows.encode(self._first, self.count, spare=self._buffer_pool.take(), **header)

    def done(self, data: bytearray) -> None:
        """The buffer may be used again."""
        self._buffer_pool.give(data)


class _Chunk(NamedTuple):
    """Rows of a table that were looked at and can be sent."""

    rows: pa.RecordBatch
    """As `table_columns.plain` has them."""
    places: bytearray | None
    """A partition per row, an int32 each, where a partitioner was asked beforehand; -1 leaves it to the sticky one."""
    folded: bool
    """Whether some columns are dictionaries."""


async def send_table(
    producer: AsyncProducer,
    topic: str,
    table: Any,
    *,
    key: str | None,
    value: str | None,
    headers: str | None,
    timestamp: str | None,
    partition: int | str | None,
) -> list[Delivery]:
    """Rows to batches of about batch.size, each to its partition; waits while buffers are full.

    Nothing is accepted before all of the table was looked at: names, types, partitions and sizes of rows. What goes
    wrong later (buffers stay full, the producer is closed) is raised with what was accepted as `deliveries`.
    """
    text(topic, "topic of send_arrow")
    source = as_table(table)
    number = None if partition is None or isinstance(partition, str) else _number(partition)
    named = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
    if is_wanted(source.schema, value):
        source = await with_json(source, {**named, "partition": partition})
    chosen = chosen_columns(source.schema, named | ({"partition": partition} if number is None else {}))
    if producer.transactions is not None:
        producer.transactions.require(TransactionStatus.IN_TRANSACTION)
    await producer.cluster.topic(topic, producer.block_s)
    count = await _partitions(producer, topic, _extremes(source, chosen.name("partition"), number))
    chunks = deque(await _looked_at(producer, topic, source, chosen, count, placed=number is not None))
    deliveries: list[Delivery] = []
    now_ms = time.time_ns() // 1_000_000
    try:
        while chunks:
            await _send_chunk(producer, topic, chunks.popleft(), number, count, now_ms, deliveries)
    except Exception as error:
        if deliveries:
            error.deliveries = deliveries  # type: ignore[attr-defined]
            error.add_note(f"{len(deliveries)} batches were accepted before; `deliveries` of this error tells of them")
        raise
    return deliveries


async def _send_chunk(
    producer: AsyncProducer,
    topic: str,
    chunk: _Chunk,
    number: int | None,
    count: int,
    now_ms: int,
    deliveries: list[Delivery],
) -> None:
    topic_queues = producer.known_topics[topic]
    limit = min(producer.accumulator.batch_size, producer.request_size)
    for index, group in _by_partition(producer, topic, chunk, number, count):
        for part in _parts(ArrowRows(group, now_ms), limit, producer.buffer_pool):
            where = producer.topics.switch(topic_queues) if index is None else index
            batch = await _enqueue(producer, topic, where, part)
            deliveries.append(Delivery(batch, part.count - 1, now_ms))
            if not len(deliveries) % _BURST:
                await asyncio.sleep(0)  # answers must be heard meanwhile


async def _enqueue(producer: AsyncProducer, topic: str, index: int, part: TablePart) -> Batch:
    """Hand a part to the sender; when buffers are full, wait until they are half empty."""
    loop = asyncio.get_running_loop()
    accumulator = producer.accumulator
    if accumulator.used and accumulator.used + part.size > accumulator.memory_bytes:
        deadline = loop.time() + producer.block_s
        while accumulator.used and accumulator.used + part.size > accumulator.memory_bytes:
            await wait_for_memory(producer, accumulator.memory_bytes // 2, deadline)
    if producer.closed:
        raise IllegalStateError("the producer is closed")
    assert producer.sender is not None
    with producer.guard:
        queue = producer.known_topics[topic].queues[index]
        batch = Batch.of_part(queue.where, loop.time(), part)
        accumulator.add(queue, batch)
        accumulator.filled = False
    producer.sender.push(queue.where)
    return batch


def _parts(rows: ArrowRows, limit: int, buffer_pool: BufferPool) -> Iterator[TablePart]:
    """All rows in parts of at most `limit` bytes, and at least one row each."""
    for first, end in _cuts(rows, limit):
        yield TablePart(rows, first, end, buffer_pool)


def _cuts(rows: ArrowRows, limit: int) -> Iterator[tuple[int, int]]:
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
        yield at, low
        at, usual = low, low - at


# Looking at a table before anything of it is accepted


async def _looked_at(
    producer: AsyncProducer, topic: str, source: pa.Table, chosen: Chosen, count: int, *, placed: bool
) -> list[_Chunk]:
    """All rows, as they can be sent; RecordTooLargeError for one that cannot, what a partitioner raises as it is."""
    asked = not placed and "partition" not in chosen.roles and producer.settings["partitioner"] != "default"
    chunks: list[_Chunk] = []
    before = 0
    for batch in source.to_batches():
        if not batch.num_rows:
            continue
        if chunks:
            await asyncio.sleep(0)
        rows = plain(batch, chosen)
        _check_sizes(rows, producer.request_size, before)
        chunks.append(_Chunk(rows, _asked(producer, topic, rows, count) if asked else None, chosen.folded))
        before += batch.num_rows
    return chunks


def _number(partition: object) -> int:
    """A partition for all rows."""
    if not isinstance(partition, bool):
        with suppress(TypeError):
            return operator.index(partition)  # type: ignore[arg-type]
    raise TypeError(f"partition={partition!r}: write a number, or the name of a column with a number in every row")


def _extremes(source: pa.Table, name: str | None, number: int | None) -> tuple[int, int] | None:
    """The lowest and the highest partition that are asked for, by a column or by a number; None for neither."""
    if name is None or not source.num_rows:
        return None if number is None else (number, number)
    from pyarrow import compute  # noqa: PLC0415

    column = source.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} nulls: every row needs the number of a partition")
    extremes = compute.min_max(column).as_py()
    return extremes["min"], extremes["max"]


async def _partitions(producer: AsyncProducer, topic: str, wanted: tuple[int, int] | None) -> int:
    """How many partitions there are, all those wanted among them; an unknown one may have been added just now."""
    count = len(producer.topics.learn(topic).queues)
    if wanted is None or (wanted[0] >= 0 and wanted[1] < count):
        return count
    await producer.cluster.refresh([topic])
    count = len(producer.topics.learn(topic).queues)
    if wanted[0] >= 0 and wanted[1] < count:
        return count
    wrong = wanted[0] if wanted[0] < 0 else wanted[1]
    raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, none of number {wrong}")


def _check_sizes(rows: pa.RecordBatch, limit: int, before: int) -> None:
    """RecordTooLargeError when a row alone is larger than a request may be; `before` are rows of chunks before."""
    # A row is no larger than all memory of the table; that a header takes up to ten bytes besides what it is does
    # not matter, as its offsets, four bytes at least, are of that memory.
    if HEADER_SIZE + RECORD_OVERHEAD + 4 * rows.get_total_buffer_size() <= limit:
        return
    import pyarrow as pa  # noqa: PLC0415

    names = [column for column in ("key", "value", "headers") if column in rows.schema.names]
    folded = [name for name in names if pa.types.is_dictionary(rows.schema.field(name).type)]
    others = [name for name in names if name not in folded]
    if folded:  # any row may have the longest entry: when that fits, they need not be unfolded to know
        longest = sum(_longest(rows.column(column).dictionary) for column in folded)
        small = HEADER_SIZE + RECORD_OVERHEAD + longest <= limit // 2
        if small and (not others or _first_larger(rows.select(others), limit - longest) is None):
            return
    row = _first_larger(unfolded(rows.select(names)), limit)
    if row is not None:
        raise RecordTooLargeError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"row {before + row} is larger than max.request.size={limit}; nothing of the table was sent",
        )


def _longest(entries: pa.Array) -> int:
    from pyarrow import compute  # noqa: PLC0415

    return compute.max(compute.binary_length(plain_bytes(entries))).as_py() or 0


def _first_larger(rows: pa.RecordBatch, limit: int) -> int | None:
    """The first row that is larger than `limit` with a batch around it."""
    sizes = ArrowRows(rows, 0)
    larger = (at for at, end in _cuts(sizes, limit) if end == at + 1 and HEADER_SIZE + sizes.size(at, end) > limit)
    return next(larger, None)


# Partitions


def _by_partition(
    producer: AsyncProducer, topic: str, chunk: _Chunk, number: int | None, count: int
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Rows by the partition they go to: told, or as `send` would choose; None leaves it to each part."""
    rows = unfolded(chunk.rows) if chunk.folded else chunk.rows
    names = rows.schema.names
    if "partition" in names:
        places = _told(rows.column("partition"))
        yield from _grouped(rows.drop_columns(["partition"]), places, _counts(places, count))
        return
    if number is not None or count == 1:
        yield number or 0, rows
        return
    if chunk.places is not None:
        places, counts = chunk.places, _counts(chunk.places, count)
    elif "key" not in names or producer.settings["partitioner.ignore.keys"]:
        yield None, rows
        return
    else:
        places, counts = _by_key(rows.column("key"), count)
    if counts[-1] == rows.num_rows:
        yield None, rows
        return
    if counts[-1]:
        places = _all_placed(producer, topic, rows, places, counts[-1])
        counts = _counts(places, count)
    yield from _grouped(rows, places, counts)


def _told(column: pa.Array) -> bytearray:
    """The partitions that a column names, an int32 per row."""
    view = memoryview(column.buffers()[1]).cast("B")
    return bytearray(view[4 * column.offset : 4 * (column.offset + len(column))])


def _asked(producer: AsyncProducer, topic: str, rows: pa.RecordBatch, count: int) -> bytearray:
    """The places that a partitioner other than the default one chooses; it is asked for every row, as `send` does."""
    choose = producer.partitioner
    return bytearray(array("i", [choose(topic, key, count) for key in _keys(rows)]).tobytes())


def _keys(rows: pa.RecordBatch) -> Iterable[bytes | None]:
    if "key" not in rows.schema.names:
        return repeat(None, rows.num_rows)
    keys: list[bytes | None] = unfolded(rows.select(["key"])).column("key").to_pylist()
    return keys


def _by_key(keys: pa.Array, count: int) -> tuple[bytearray, list[int]]:
    """Kafka's own places for keys, -1 for rows without one; how many there are of each, the latter at the end."""
    placed, totals = bytearray(4 * len(keys)), bytearray(8 * count)
    buffers = binary_buffers(keys)
    if buffers is None:
        return placed, [0] * count + [len(keys)]
    nulls = partition_rows(len(keys), buffers, count, placed, totals)
    return placed, [*memoryview(totals).cast("q"), nulls]


def _counts(places: bytearray, count: int) -> list[int]:
    """How many rows go to each partition, those that go to none at the end."""
    counts = [0] * (count + 1)
    for entry in _numbers(places).value_counts().to_pylist():
        counts[entry["values"]] = entry["counts"]  # -1 is the last
    return counts


def _numbers(places: bytearray) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    return pa.Array.from_buffers(pa.int32(), len(places) // 4, [None, pa.py_buffer(places)])


def _all_placed(
    producer: AsyncProducer, topic: str, rows: pa.RecordBatch, places: bytearray, without: int
) -> bytearray:
    """Rows without a place get one in runs of about batch.size: so they lie between the others as they came."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    row_size = RECORD_OVERHEAD + rows.nbytes // rows.num_rows
    run = max(producer.accumulator.batch_size // row_size, 1)
    topic_queues = producer.known_topics[topic]
    choices = pa.array([producer.topics.switch(topic_queues) for _ in range(0, without, run)], pa.int32())
    numbers = _numbers(places)
    lacking = pc.less(numbers, 0)
    ranks = pc.subtract(pc.cumulative_sum(lacking.cast(pa.int64())), 1)
    runs = pc.max_element_wise(pc.divide(ranks, run), 0)
    numbers = pc.if_else(lacking, choices.take(runs), numbers)
    return bytearray(memoryview(numbers.buffers()[1]).cast("B")[: 4 * rows.num_rows])


def _grouped(rows: pa.RecordBatch, places: bytearray, counts: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of one partition after those of another, those of each as they came."""
    import pyarrow as pa  # noqa: PLC0415

    starts = bytearray(8 * len(counts))
    with memoryview(starts).cast("q") as view:
        total = 0
        for index, size in enumerate(counts):
            view[index] = total
            total += size
    order = bytearray(8 * rows.num_rows)
    group_rows(rows.num_rows, places, starts, order)
    taken = rows.take(pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(order)]))
    at = 0
    for index, size in enumerate(counts):
        if size:
            yield index, taken.slice(at, size)
            at += size
