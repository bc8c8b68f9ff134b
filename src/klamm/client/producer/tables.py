"""Arrow tables to batches: rows grouped by partition, in parts of about batch.size, encoded when they are sent.

No Python object is created per row. A part waits as a range of rows of the table; it is encoded right before it goes to
the socket, into a buffer that was used before: the memory is in the processor's cache then, and the checksum is
computed once, with producer id and sequence already in place.
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

from klamm.client.core.arguments import text
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import IllegalStateError, RecordTooLargeError, error_for
from klamm.client.producer.batch import Batch, Delivery
from klamm.client.producer.core.table_columns import Chosen, as_table, chosen_columns, plain, plain_bytes, unfold
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
"""Parts that are buffered before other tasks of the loop run."""


class TablePart:
    """Rows of a table that form one batch (`batch.Part`)."""

    __slots__ = ("_buffer_pool", "_first", "_rows", "count", "size")

    def __init__(self, rows: ArrowRows, first: int, end: int, buffer_pool: BufferPool) -> None:
        self._rows = rows
        self._first = first
        self._buffer_pool = buffer_pool
        self.count = end - first
        self.size = rows.size(first, end)

    def encode(self, **header: Any) -> bytearray:
        """The whole batch, in a buffer of the pool if one is free."""
        return self._rows.encode(self._first, self.count, spare=self._buffer_pool.take(), **header)

    def release(self, data: bytearray) -> None:
        """Return the buffer to the pool."""
        self._buffer_pool.give(data)


class _Chunk(NamedTuple):
    """Rows of a table that were validated."""

    rows: pa.RecordBatch
    """As `table_columns.plain` returns them."""
    partitions: bytearray | None
    """The partition of every row as int32, if a partitioner chose them; -1 leaves the choice to the sticky one."""
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
    """Send rows as batches of about batch.size to their partitions; waits while buffer.memory is full.

    The whole table is validated before the first row is buffered: names, types, partitions and sizes of rows. An error
    after that (buffer.memory stays full, the producer is closed) has the buffered batches as `deliveries`.
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
    chunks = deque(await _validate_table(producer, topic, source, chosen, count, placed=number is not None))
    deliveries: list[Delivery] = []
    now_ms = time.time_ns() // 1_000_000
    try:
        while chunks:
            await _send_chunk(producer, topic, chunks.popleft(), number, count, now_ms, deliveries)
    except Exception as error:
        if deliveries:
            error.deliveries = deliveries  # type: ignore[attr-defined]
            error.add_note(f"{len(deliveries)} batches were buffered before; they are the `deliveries` of this error")
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
                await asyncio.sleep(0)  # responses are handled meanwhile


async def _enqueue(producer: AsyncProducer, topic: str, index: int, part: TablePart) -> Batch:
    """Pass a part to the sender; when buffer.memory is full, wait until half of it is free."""
    # Half, not just enough: waking for every batch that is delivered would cost a turn of the loop for each.
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
    first = usual = 0
    while first < rows.rows:
        low, high = first + 1, rows.rows
        guess = first + usual  # rows are often of one size: try the length of the previous part before searching
        if low < guess < high and HEADER_SIZE + rows.size(first, guess) <= limit < HEADER_SIZE + rows.size(
            first, guess + 1
        ):
            low = high = guess
        while low < high:
            middle = (low + high + 1) // 2
            if HEADER_SIZE + rows.size(first, middle) <= limit:
                low = middle
            else:
                high = middle - 1
        yield first, low
        first, usual = low, low - first


# Validation of a table before its first row is buffered


async def _validate_table(
    producer: AsyncProducer, topic: str, source: pa.Table, chosen: Chosen, count: int, *, placed: bool
) -> list[_Chunk]:
    """All rows in the form that is sent; RecordTooLargeError for a row that is too large, or a partitioner's error."""
    # The default partitioner is a kernel and runs when rows are sent; any other is called per row, and may raise.
    custom = not placed and "partition" not in chosen.roles and producer.settings["partitioner"] != "default"
    chunks: list[_Chunk] = []
    before = 0
    for batch in source.to_batches():
        if not batch.num_rows:
            continue
        if chunks:
            await asyncio.sleep(0)
        rows = plain(batch, chosen)
        _check_sizes(rows, producer.request_size, before)
        chunks.append(_Chunk(rows, _run_partitioner(producer, topic, rows, count) if custom else None, chosen.folded))
        before += batch.num_rows
    return chunks


def _number(partition: object) -> int:
    """A partition for all rows."""
    if not isinstance(partition, bool):
        with suppress(TypeError):
            return operator.index(partition)  # type: ignore[arg-type]
    raise TypeError(f"partition={partition!r}: write a number, or the name of a column with a number in every row")


def _extremes(source: pa.Table, name: str | None, number: int | None) -> tuple[int, int] | None:
    """The lowest and the highest partition that a column or a number names; None for neither."""
    if name is None or not source.num_rows:
        return None if number is None else (number, number)
    from pyarrow import compute  # noqa: PLC0415

    column = source.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} nulls: every row needs the number of a partition")
    extremes = compute.min_max(column).as_py()
    return extremes["min"], extremes["max"]


async def _partitions(producer: AsyncProducer, topic: str, wanted: tuple[int, int] | None) -> int:
    """The partition count, at least all those wanted; metadata is refreshed for one that is unknown."""
    count = len(producer.topics.update(topic).queues)
    if wanted is None or (wanted[0] >= 0 and wanted[1] < count):
        return count
    await producer.cluster.refresh([topic])
    count = len(producer.topics.update(topic).queues)
    if wanted[0] >= 0 and wanted[1] < count:
        return count
    wrong = wanted[0] if wanted[0] < 0 else wanted[1]
    raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, and no partition {wrong}")


def _check_sizes(rows: pa.RecordBatch, limit: int, before: int) -> None:
    """RecordTooLargeError for a row larger than max.request.size alone; `before` counts rows of earlier chunks."""
    # Nearly always decides: a row is no larger than all buffers of the table. The up to ten bytes of lengths of a
    # header are covered too, since its offsets, four bytes at least, are part of those buffers.
    if HEADER_SIZE + RECORD_OVERHEAD + 4 * rows.get_total_buffer_size() <= limit:
        return
    import pyarrow as pa  # noqa: PLC0415

    names = [column for column in ("key", "value", "headers") if column in rows.schema.names]
    folded = [name for name in names if pa.types.is_dictionary(rows.schema.field(name).type)]
    others = [name for name in names if name not in folded]
    # When even the longest entry of each dictionary fits, they need not be decoded to know that every row does.
    if folded:
        longest = sum(_longest(rows.column(column).dictionary) for column in folded)
        small = HEADER_SIZE + RECORD_OVERHEAD + longest <= limit // 2
        if small and (not others or _first_larger(rows.select(others), limit - longest) is None):
            return
    row = _first_larger(unfold(rows.select(names)), limit)
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
    larger = (
        first for first, end in _cuts(sizes, limit) if end == first + 1 and HEADER_SIZE + sizes.size(first, end) > limit
    )
    return next(larger, None)


# Partitions


def _by_partition(
    producer: AsyncProducer, topic: str, chunk: _Chunk, number: int | None, count: int
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Rows by partition: as a column names it, or as `send` would choose; None lets every part choose."""
    rows = unfold(chunk.rows) if chunk.folded else chunk.rows
    names = rows.schema.names
    if "partition" in names:
        partitions = _named_partitions(rows.column("partition"))
        yield from _group_rows(rows.drop_columns(["partition"]), partitions, _counts(partitions, count))
        return
    if number is not None or count == 1:
        yield number or 0, rows
        return
    if chunk.partitions is not None:
        partitions, counts = chunk.partitions, _counts(chunk.partitions, count)
    elif "key" not in names or producer.settings["partitioner.ignore.keys"]:
        yield None, rows
        return
    else:
        partitions, counts = _by_key(rows.column("key"), count)
    if counts[-1] == rows.num_rows:
        yield None, rows
        return
    if counts[-1]:
        partitions = _place_rest(producer, topic, rows, partitions, counts[-1])
        counts = _counts(partitions, count)
    yield from _group_rows(rows, partitions, counts)


def _named_partitions(column: pa.Array) -> bytearray:
    """The partitions that a column names, an int32 per row."""
    view = memoryview(column.buffers()[1]).cast("B")
    return bytearray(view[4 * column.offset : 4 * (column.offset + len(column))])


def _run_partitioner(producer: AsyncProducer, topic: str, rows: pa.RecordBatch, count: int) -> bytearray:
    """The partitions that a partitioner other than the default one chooses, called for every row as by `send`."""
    choose = producer.partitioner
    return bytearray(array("i", [choose(topic, key, count) for key in _keys(rows)]).tobytes())


def _keys(rows: pa.RecordBatch) -> Iterable[bytes | None]:
    if "key" not in rows.schema.names:
        return repeat(None, rows.num_rows)
    keys: list[bytes | None] = unfold(rows.select(["key"])).column("key").to_pylist()
    return keys


def _by_key(keys: pa.Array, count: int) -> tuple[bytearray, list[int]]:
    """The partition of every key by murmur2, -1 for rows without key; and the counts per partition, of -1 last."""
    placed, totals = bytearray(4 * len(keys)), bytearray(8 * count)
    buffers = binary_buffers(keys)
    if buffers is None:
        return placed, [0] * count + [len(keys)]
    nulls = partition_rows(len(keys), buffers, count, placed, totals)
    return placed, [*memoryview(totals).cast("q"), nulls]


def _counts(partitions: bytearray, count: int) -> list[int]:
    """The number of rows per partition, those without partition last."""
    counts = [0] * (count + 1)
    for entry in _numbers(partitions).value_counts().to_pylist():
        counts[entry["values"]] = entry["counts"]  # -1 indexes the last
    return counts


def _numbers(partitions: bytearray) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    return pa.Array.from_buffers(pa.int32(), len(partitions) // 4, [None, pa.py_buffer(partitions)])


def _place_rest(
    producer: AsyncProducer, topic: str, rows: pa.RecordBatch, partitions: bytearray, without: int
) -> bytearray:
    """Give rows without partition one, in runs of about batch.size; rows of a partition keep their order."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    row_size = RECORD_OVERHEAD + rows.nbytes // rows.num_rows
    run = max(producer.accumulator.batch_size // row_size, 1)
    topic_queues = producer.known_topics[topic]
    choices = pa.array([producer.topics.switch(topic_queues) for _ in range(0, without, run)], pa.int32())
    numbers = _numbers(partitions)
    lacking = pc.less(numbers, 0)
    ranks = pc.subtract(pc.cumulative_sum(lacking.cast(pa.int64())), 1)
    runs = pc.max_element_wise(pc.divide(ranks, run), 0)
    numbers = pc.if_else(lacking, choices.take(runs), numbers)
    return bytearray(memoryview(numbers.buffers()[1]).cast("B")[: 4 * rows.num_rows])


def _group_rows(rows: pa.RecordBatch, partitions: bytearray, counts: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows grouped by partition, in their order within each."""
    import pyarrow as pa  # noqa: PLC0415

    starts = bytearray(8 * len(counts))
    with memoryview(starts).cast("q") as view:
        total = 0
        for index, size in enumerate(counts):
            view[index] = total
            total += size
    order = bytearray(8 * rows.num_rows)
    group_rows(rows.num_rows, partitions, starts, order)
    taken = rows.take(pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(order)]))
    first = 0
    for index, size in enumerate(counts):
        if size:
            yield index, taken.slice(first, size)
            first += size
