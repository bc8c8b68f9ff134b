"""Reads records for the messages page: the last ones, from an offset or a time, those that a filter passes, new ones.

A reading is bounded by records, bytes and time; it returns what it has then, and where the next one goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from klamm.client.consumer import AsyncConsumer
from klamm.client.filter import Filter
from klamm.client.producer.core.partitioners import by_murmur2
from klamm.console.clusters import ClusterLink
from klamm.console.core.record_views import HIDDEN, SchemaNote, ShownRecord, mask_header, mask_key, mask_value
from klamm.console.record_decoder import BytesRecord, LookupBudget, RecordDecoder, names_schema
from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition

READ_S: Final = 4.0
RECORDS_MAX: Final = 500
SCAN_BACK: Final = 10_000
"""Records per partition that a filter over the last ones looks at; the page offers to look further back."""
_SCAN_BYTES_MAX: Final = 64 << 20
_POLL_S: Final = 0.25
_KEPT_MAX: Final = 4 * RECORDS_MAX
_ORDER: Final = attrgetter("timestamp", "partition", "offset")
_FETCH: Final = {"max.poll.records": 1000, "fetch.max.wait.ms": 100, "max.partition.fetch.bytes": 512 << 10}
_TAIL_QUEUE_MAX: Final = 200
"""Records of one poll that a live view gets; the rest is counted and left out."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read."""

    topic: str
    start: str = "last"
    """last, earliest, offset, time, or resume."""
    partition: int | None = None
    offset: int = 0
    time_ms: int = 0
    limit: int = 50
    where: Filter | None = None
    key: bytes | None = None
    scan_back: int = SCAN_BACK
    positions: tuple[tuple[int, int], ...] = ()
    """Partition and offset, to go on where an earlier reading stopped."""
    masked: Sequence[Sequence[str]] = ()
    """Paths of fields that are hidden."""
    decoder: RecordDecoder | None = None
    """Of the registry; without it bytes are shown as they are."""
    encoded_keys: bool = False
    """Whether keys have a schema: the key that is searched for is not what the partition was computed from."""


@dataclass(slots=True)
class ReadResult:
    """Records, and how far the reading came."""

    records: list[ShownRecord] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    partitions: list[int] = field(default_factory=list)
    """The partitions that were read: one for a key."""
    positions: dict[int, int] = field(default_factory=dict)
    """The next offset of each partition that was not read to its end."""
    earlier: bool = False
    """Whether there are records before the first that was scanned."""
    stopped: str = ""
    """limit, time, bytes; empty when everything was read."""


async def read_records(
    link: ClusterLink, request: ReadRequest, clock_s: Callable[[], float] = time.monotonic
) -> ReadResult:
    """Read what a page shows; HttpRefusal 404 for a topic or partition that does not exist."""
    result = ReadResult()
    async with link.consumer(**_FETCH) as consumer:
        wanted = await _choose_partitions(consumer, request)
        result.partitions = [partition.partition for partition in wanted]
        begins = await consumer.beginning_offsets(wanted)
        ends = await consumer.end_offsets(wanted)
        starts = await _find_starts(consumer, request, wanted, begins, ends)
        result.earlier = any(starts[partition] > begins[partition] for partition in starts)
        open_partitions = {partition for partition, start in starts.items() if start < ends[partition]}
        if open_partitions:
            consumer.assign(sorted(open_partitions))
            for partition in open_partitions:
                consumer.seek(partition, starts[partition])
            await _scan(consumer, request, open_partitions, ends, result, clock_s() + READ_S, clock_s)
    if request.start == "last":
        keep_newest(result, request.limit)
    else:
        result.records.sort(key=_ORDER)
        del result.records[request.limit :]
    return result


def keep_newest(result: ReadResult, limit: int) -> None:
    """Keep the newest records, the newest first."""
    result.records.sort(key=_ORDER, reverse=True)
    del result.records[limit:]


async def _choose_partitions(
    consumer: AsyncConsumer[bytes | None, bytes | None], request: ReadRequest
) -> list[TopicPartition]:
    indexes = await consumer.partitions_for(request.topic)
    if request.partition is not None:
        if request.partition not in indexes:
            raise HttpRefusal(404, f"{request.topic} has no partition {request.partition}")
        return [TopicPartition(request.topic, request.partition)]
    # Java's partitioner: the other partitions cannot have the key, unless the topic grew or a client has its own rule.
    if request.key is not None and not request.encoded_keys:
        return [TopicPartition(request.topic, by_murmur2(request.key, len(indexes)))]
    return [TopicPartition(request.topic, index) for index in indexes]


async def _find_starts(
    consumer: AsyncConsumer[bytes | None, bytes | None],
    request: ReadRequest,
    wanted: list[TopicPartition],
    begins: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if request.start == "earliest":
        return begins
    if request.start == "offset":
        return {where: min(max(request.offset, begins[where]), ends[where]) for where in wanted}
    if request.start == "resume":
        positions = dict(request.positions)
        return {
            where: min(max(positions[where.partition], begins[where]), ends[where])
            for where in wanted
            if where.partition in positions
        }
    if request.start == "time":
        timed = await consumer.offsets_for_times(dict.fromkeys(wanted, request.time_ms))
        return {where: ends[where] if (at := timed[where]) is None else at.offset for where in wanted}
    # Any of the last N records may be in one partition, so each is read N back.
    back = request.limit if request.where is None and request.key is None else max(request.scan_back, request.limit)
    return {where: max(ends[where] - back, begins[where]) for where in wanted}


async def _scan(
    consumer: AsyncConsumer[bytes | None, bytes | None],
    request: ReadRequest,
    open_partitions: set[TopicPartition],
    ends: dict[TopicPartition, int],
    result: ReadResult,
    deadline_s: float,
    clock_s: Callable[[], float],
) -> None:
    keeps_newest = request.start == "last"
    is_filtered = request.where is not None or request.key is not None
    positions: dict[TopicPartition, int] = {}
    budget = LookupBudget()
    while open_partitions:
        if clock_s() >= deadline_s:
            result.stopped = "time"
            break
        records = await consumer.poll(_POLL_S)
        # First, for all of them: a reading that reaches its limit goes on with the partitions it did not come to.
        for record in reversed(records):
            positions[record.topic_partition] = record.offset
        # Without those that arrived after the page was requested: a busy topic would never end.
        wanted = [record for record in records if record.offset < ends[record.topic_partition]]
        if not is_filtered and not keeps_newest:
            # No record behind the limit is decoded for nothing.
            del wanted[request.limit - len(result.records) :]
        for record, shown in zip(wanted, await _show_all(wanted, request, budget), strict=True):
            positions[record.topic_partition] = record.offset + 1
            result.scanned += 1
            result.scanned_bytes += len(record.value or b"") + len(record.key or b"")
            if passes(shown, request):
                result.records.append(shown)
                if not keeps_newest and len(result.records) >= request.limit:
                    result.stopped = "limit"
                    break
                # A filter that passes most of a million records must not keep them all.
                if len(result.records) >= _KEPT_MAX:
                    keep_newest(result, request.limit)
        if not result.stopped and result.scanned_bytes > _SCAN_BYTES_MAX:
            result.stopped = "bytes"
        if result.stopped:
            break
        for where in list(open_partitions):
            # Offsets of markers and compacted records are passed without a record.
            if await consumer.position(where) >= ends[where]:
                open_partitions.discard(where)
    if result.stopped:
        for where in open_partitions:
            position = positions.get(where)
            if position is None:
                position = await consumer.position(where)
            if position < ends[where]:
                result.positions[where.partition] = position


async def _show_all(
    records: Sequence[BytesRecord], request: ReadRequest, budget: LookupBudget
) -> Sequence[ShownRecord]:
    """Return records decoded, then masked: a filter must not see a hidden field in any form."""
    if request.decoder is None:
        shown = [show_record(record) for record in records]
    else:
        # In a thread: the registry is waited for there, and a thousand records take long to decode.
        shown = await asyncio.to_thread(request.decoder.decode_all, records, budget)
    return [mask_record(record, request.masked) for record in shown] if request.masked else shown


def show_record(record: BytesRecord) -> ShownRecord:
    """Return a record with the bytes that it has."""
    return ShownRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        tuple(record.headers or ()),
    )


def passes(record: ShownRecord, request: ReadRequest) -> bool:
    """Whether a record has the key and passes the filter."""
    # Of a masked topic by what is visible of the key: a search must not confirm a guess of the rest.
    if request.key is not None and record.key != mask_key(request.key, request.masked):
        return False
    return request.where is None or request.where(record)


def mask_record(record: ShownRecord, masked: Sequence[Sequence[str]]) -> ShownRecord:
    """Return the record without hidden fields in key, value and headers."""
    key, note = record.key, record.key_schema
    is_decoded = note is not None and not note.error
    # Bytes of a schema that were not decoded may have any field.
    is_encoded = key is not None and not is_decoded and names_schema(key, "key", record.headers)
    return dataclasses.replace(
        record,
        key=HIDDEN if is_encoded else mask_key(key, masked),
        value=mask_value(record.value, masked),
        headers=tuple((name, mask_header(name, data, masked)) for name, data in record.headers),
        key_schema=_hide_error(note),
        value_schema=_hide_error(record.value_schema),
    )


def _hide_error(note: SchemaNote | None) -> SchemaNote | None:
    """A validator quotes the value that it refuses."""
    return note if note is None or not note.error else dataclasses.replace(note, error="it could not be decoded")


@dataclass(frozen=True, slots=True)
class TailEvent:
    """New records of a topic, and how many more there were than a page can show."""

    records: list[ShownRecord]
    left_out: int
    scanned: int


async def follow_records(link: ClusterLink, request: ReadRequest) -> AsyncGenerator[TailEvent, None]:
    """Yield records as they arrive, until the caller stops; also an event without records each second."""
    async with link.consumer(**_FETCH) as consumer:
        wanted = await _choose_partitions(consumer, request)
        ends = await consumer.end_offsets(wanted)
        consumer.assign(wanted)
        for where, end in ends.items():
            consumer.seek(where, end)
        # The first event says that the view is at the end: what is written from now on is shown.
        yield TailEvent([], 0, 0)
        while True:
            records = await consumer.poll(1.0)
            # A budget for each poll: a view that is open for days meets new schemas all the time.
            shown = await _show_all(records, request, LookupBudget())
            passing = [record for record in shown if passes(record, request)]
            # The newest: a person follows the end of the topic, not its middle.
            yield TailEvent(passing[-_TAIL_QUEUE_MAX:], max(len(passing) - _TAIL_QUEUE_MAX, 0), len(records))


async def read_one(
    link: ClusterLink,
    topic: str,
    partition: int,
    offset: int,
    masked: Sequence[Sequence[str]],
    decoder: RecordDecoder | None = None,
) -> ShownRecord:
    """Return one record, with its own bytes unless there is a decoder; HttpRefusal 404 for none at the offset."""
    request = ReadRequest(topic, "offset", partition, offset, limit=1, masked=masked, decoder=decoder)
    result = await read_records(link, request)
    # A compacted or deleted offset answers with the next record, which is another one.
    if not result.records or result.records[0].offset != offset:
        raise HttpRefusal(404, f"{topic}-{partition} has no record at offset {offset}; it was deleted or compacted")
    return result.records[0]
