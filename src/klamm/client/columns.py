"""Arrow in and out: fetched batches to a table, a table to batches, without a Python object per record.

Column names are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp, timestampType,
headers. Needs pyarrow (`pip install 'klamm[arrow]'`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from klamm.client.errors import CorruptRecordError, IllegalStateError, KafkaError, RecordTooLargeError
from klamm.client.producer.batch import RECORD_OVERHEAD, Batch, Delivery
from klamm.client.types import TopicPartition
from klamm.model.errors import ErrorCode, KlammError
from klamm.records import kernels
from klamm.records.arrow import binary_buffers, from_arrow, to_arrow
from klamm.records.batch import HEADER_SIZE
from klamm.records.columnar import decode_columns
from klamm.records.compression import CODEC_NAMES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.consumer.consumer import AsyncConsumer
    from klamm.client.consumer.subscription import Assigned
    from klamm.client.producer.producer import AsyncProducer

_POLL_BYTES = 512 << 10
"""When a poll has so much of some partitions, it leaves the others to the next one: joining them would cost a copy."""
_TAKE_BYTES = 16 << 20
"""What one poll takes at most of a partition."""


def schema() -> pa.Schema:
    """The columns of every table that comes out."""
    import pyarrow as pa  # noqa: PLC0415 - an optional extra

    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pair)),
        ]
    )


def empty_batch() -> pa.RecordBatch:
    """No rows, all columns."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.RecordBatch.from_pylist([], schema=schema())


# Out


def collect_arrow(consumer: AsyncConsumer, max_records: int | None) -> pa.RecordBatch | None:
    """What lies ready in a consumer as one batch of rows; None when there is nothing."""
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    assigned = consumer._subscription.assigned
    turn = [*(each for each in consumer._turn if each in assigned), *assigned]
    for where in dict.fromkeys(turn):
        state = assigned[where]
        if state.paused:
            continue
        if state.batches or state.pending:
            room = None if max_records is None else max_records - rows
            part, taken = _take(consumer, state, room)
            if part is not None and part.num_rows:
                parts.append(part)
                rows += part.num_rows
                size += taken
                if where in consumer._turn:
                    consumer._turn.remove(where)
                consumer._turn.append(where)
        if state.error is not None and not parts:
            error, state.error = state.error, None
            raise error
        if size >= _POLL_BYTES or (max_records is not None and rows >= max_records):
            break
    return _joined(parts) if parts else None


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _take(consumer: AsyncConsumer, state: Assigned, max_records: int | None) -> tuple[pa.RecordBatch | None, int]:
    """Whole batches of one partition; its position moves behind them."""
    if state.pending:  # records that were decoded for a poll come back as batches with the next fetch
        position = state.position
        assert position is not None
        state.seek(position, state.position_epoch)
        return None, 0
    batches = []
    rows = size = 0
    while state.batches and size < _TAKE_BYTES and (max_records is None or rows < max_records):
        batch = state.batches.popleft()
        batches.append(batch)
        rows += batch.record_count
        size += batch.size
    state.buffered -= size
    assert consumer._fetcher is not None
    consumer._fetcher.ask()
    try:
        columns = decode_columns(batches, check_crc=consumer._check_crcs)
    except KlammError as error:
        position = state.position or 0
        state.clear()
        state.fetch_offset = position
        state.error = CorruptRecordError(ErrorCode.CORRUPT_MESSAGE, f"{state.where} from offset {position}: {error}")
        return None, 0
    table = to_arrow(columns, state.where.topic, state.where.partition, from_offset=state.position)
    last = batches[-1]
    state.position = last.next_offset if state.batches else max(state.fetch_offset, last.next_offset)
    state.position_epoch = last.leader_epoch
    return table, size


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


# In


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
        from klamm.client.producer.transactions import TransactionStatus  # noqa: PLC0415

        producer._transactions.require(TransactionStatus.IN_TRANSACTION)
    names = {"key": key, "value": value, "headers": headers, "timestamp": timestamp}
    present = {name: column for name, column in names.items() if column is not None and column in table.schema.names}
    count = await producer.cluster.topic(topic, producer._block_s)
    producer._learn_topic(topic)
    deliveries: list[Delivery] = []
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    for rows in batches:
        if not rows.num_rows:
            continue
        chosen = pa.RecordBatch.from_arrays([_plain(rows.column(each)) for each in present.values()], list(present))
        for index, part in _by_partition(producer, topic, rows, chosen, partition, count):
            for piece in _pieces(part, producer._accumulator.batch_size):
                delivery = await _send_piece(producer, topic, index, piece)
                deliveries.append(delivery)
    return deliveries


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


def _by_partition(
    producer: AsyncProducer,
    topic: str,
    rows: pa.RecordBatch,
    chosen: pa.RecordBatch,
    partition: int | str | None,
    count: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by the partition they go to: told, by key as `send` would choose, or sticky without."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(partition, int):
        if not 0 <= partition < count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, not {partition}")
        yield partition, chosen
        return
    if isinstance(partition, str):
        column = rows.column(partition).cast(pa.int32()).fill_null(-1)
        placed = bytearray(
            memoryview(column.buffers()[1]).cast("B")[4 * column.offset : 4 * (column.offset + len(column))]
        )
        counts = _counted(placed, count, topic)
    else:
        keys = binary_buffers(chosen.column("key")) if "key" in chosen.schema.names else None
        if (
            keys is None
            or producer.settings["partitioner"] != "default"
            or producer.settings["partitioner.ignore.keys"]
        ):
            yield from _spread(producer, topic, chosen, count)
            return
        placed = bytearray(4 * rows.num_rows)
        totals = bytearray(8 * count)
        nulls = kernels.partition_rows(rows.num_rows, keys, count, placed, totals)
        counts = list(memoryview(totals).cast("q"))
        if nulls:
            sticky = producer._topics[topic].sticky
            other = sticky.switch(count)
            view = memoryview(placed).cast("i")
            for row in range(rows.num_rows):
                if view[row] < 0:
                    view[row] = other
            counts[other] += nulls
            view.release()
    yield from _grouped(chosen, placed, counts)


def _counted(placed: bytearray, count: int, topic: str) -> list[int]:
    counts = [0] * count
    for index in memoryview(placed).cast("i"):
        if not 0 <= index < count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, not {index}")
        counts[index] += 1
    return counts


def _grouped(chosen: pa.RecordBatch, placed: bytearray, counts: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    rows = chosen.num_rows
    starts = bytearray(8 * len(counts))
    view = memoryview(starts).cast("q")
    total = 0
    for index, size in enumerate(counts):
        view[index] = total
        total += size
    view.release()
    order = bytearray(8 * rows)
    kernels.group_rows(rows, placed, starts, order)
    taken = chosen.take(pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(order)]))
    at = 0
    for index, size in enumerate(counts):
        if size:
            yield index, taken.slice(at, size)
            at += size


def _spread(
    producer: AsyncProducer, topic: str, chosen: pa.RecordBatch, count: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pieces of about batch.size to one partition after another; a partitioner of the user's is asked per key."""
    name = producer.settings["partitioner"]
    if "key" in chosen.schema.names and name != "default":
        placed = bytearray(4 * chosen.num_rows)
        view = memoryview(placed).cast("i")
        counts = [0] * count
        for row, each in enumerate(chosen.column("key").to_pylist()):
            index = producer._partitioner(topic, each, count)
            view[row] = producer._topics[topic].sticky.switch(count) if index < 0 else index
            counts[view[row]] += 1
        view.release()
        yield from _grouped(chosen, placed, counts)
        return
    found = producer._topics[topic]
    for piece in _pieces(chosen, producer._accumulator.batch_size):
        loads = producer._loads(found) if producer._adaptive else None
        yield found.sticky.switch(count, loads), piece


def _pieces(part: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Slices of at most `limit` bytes, and at least one row each."""
    spans = []
    for name in ("key", "value"):
        if name in part.schema.names:
            buffers = binary_buffers(part.column(name))
            if buffers is not None:
                spans.append(memoryview(buffers[1]).cast("i")[buffers[3] :])
    headed = "headers" in part.schema.names
    overhead = RECORD_OVERHEAD + (64 if headed else 0)
    rows, at = part.num_rows, 0
    while at < rows:
        low, high = at + 1, rows
        while low < high:
            middle = (low + high + 1) // 2
            size = HEADER_SIZE + overhead * (middle - at) + sum(span[middle] - span[at] for span in spans)
            if size <= limit:
                low = middle
            else:
                high = middle - 1
        yield part.slice(at, low - at)
        at = low


async def _send_piece(producer: AsyncProducer, topic: str, index: int, piece: pa.RecordBatch) -> Delivery:
    loop = asyncio.get_running_loop()
    settings = producer.settings
    name = settings["compression.type"]
    level = settings[f"compression.{name}.level"] if f"compression.{name}.level" in settings.given else None
    now_ms = time.time_ns() // 1_000_000
    transactional = producer._transactions is not None
    data = from_arrow(piece, now_ms=now_ms, codec=int(CODEC_NAMES[name]), level=level)
    if len(data) > producer._request_size and piece.num_rows > 1:
        middle = piece.num_rows // 2
        await _send_piece(producer, topic, index, piece.slice(0, middle))
        return await _send_piece(producer, topic, index, piece.slice(middle))
    if len(data) > producer._request_size:
        raise RecordTooLargeError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a row of {len(data)} bytes is larger than max.request.size={producer._request_size}",
        )
    accumulator = producer._accumulator
    deadline = loop.time() + producer._block_s
    while accumulator.used and accumulator.used + len(data) > accumulator.memory_bytes:
        if producer._closed:
            raise IllegalStateError("the producer is closed")
        await producer.room(deadline)
    assert not transactional or producer._transactions is not None
    sender = producer._sender
    assert sender is not None
    with producer._guard:
        queue = accumulator.queue(TopicPartition(topic, index))
        batch = Batch.of_columns(queue.where, loop.time(), data, piece.num_rows)
        accumulator.add(queue, batch)
        accumulator.filled = False
    sender.wake()
    await asyncio.sleep(0)
    return Delivery(batch, piece.num_rows - 1, now_ms)
