"""Arrow out: fetched batches to a table without a Python object per record; `producer.tables` is the way in.

Column names are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp, timestampType,
headers. Needs pyarrow (`pip install 'klamm[arrow]'`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.consumer.subscription import Assigned
from klamm.client.errors import CorruptRecordError
from klamm.client.types import TopicPartition
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records.arrow import to_arrow_of
from klamm.records.batch import BatchView
from klamm.records.columnar import decode_columns

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.consumer.consumer import AsyncConsumer
    from klamm.client.consumer.shelf import Shelf

_POLL_BYTES = 16 << 20
"""When a poll has so much, it leaves the rest to the next one."""


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


class _Take(NamedTuple):
    """Batches of one partition that a poll took from the shelf."""

    state: Assigned
    batches: list[BatchView]

    @property
    def rows(self) -> int:
        return sum(each.record_count for each in self.batches)

    def give_back(self, kept: int = 0) -> None:
        """Put all but the first few batches back."""
        rest = self.batches[kept:]
        del self.batches[kept:]
        self.state.batches.extendleft(reversed(rest))
        self.state.buffered += sum(each.size for each in rest)


def collect_arrow(shelf: Shelf, ask: Callable[[], None], max_records: int | None) -> pa.RecordBatch | None:
    """What lies ready on a shelf as one batch of rows, partition after partition; None when there is nothing.

    `ask` has more fetched while this is decoded.
    """
    takes: list[_Take] = []
    rows = size = 0
    for state in shelf.turns():
        state.undecode()
        if not takes and not state.batches:
            state.raise_error()
        begun = bool(state.batches) and state.batches[0].base_offset < (state.position or 0)
        if begun and takes:
            break  # only rows from its position on are wanted, so it is decoded alone
        batches: list[BatchView] = []
        while state.batches and size < _POLL_BYTES and (max_records is None or rows < max_records):
            batch = state.batches.popleft()
            state.buffered -= batch.size
            batches.append(batch)
            rows += batch.record_count
            size += batch.size
        if batches:
            takes.append(_Take(state, batches))
        if begun or size >= _POLL_BYTES or (max_records is not None and rows >= max_records):
            break
    if not takes:
        return None
    ask()
    found, decoded = _decoded(takes, check_crcs=shelf.check_crcs)
    for state, batches in decoded:
        last = batches[-1]
        state.position = last.next_offset if state.batches else max(state.fetch_offset, last.next_offset)
        state.position_epoch = last.leader_epoch
        shelf.had_turn(state)
    return found if found.num_rows else None


def _decoded(takes: list[_Take], *, check_crcs: bool) -> tuple[pa.RecordBatch, list[_Take]]:
    """All of it in one go; where something is wrong or too much, the first partition, then its first batch alone.

    What is not decoded goes back. A batch that cannot be read raises, for its partition only.
    """
    first = takes[0].state
    try:
        columns = decode_columns((batch for take in takes for batch in take.batches), check_crc=check_crcs)
        places = [(take.state.where.topic, take.state.where.partition, take.rows) for take in takes]
        return to_arrow_of(columns, places, from_offset=first.position if len(takes) == 1 else None), takes
    except (CorruptBatch, KlammError) as error:
        for take in takes[1:]:
            take.give_back()
        if len(takes) == 1 and len(takes[0].batches) == 1:
            where = f"{first.where} from offset {first.position}"
            first.spoil(CorruptRecordError(ErrorCode.CORRUPT_MESSAGE, f"{where}: {error}"))
            first.raise_error()
        if len(takes) == 1:
            takes[0].give_back(kept=1)
    return _decoded(takes[:1], check_crcs=check_crcs)


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
