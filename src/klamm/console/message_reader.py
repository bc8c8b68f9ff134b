"""Reads records for the messages page: the last ones, from an offset or a time, those that a filter passes, new ones.

A reading is bounded by records, bytes and time; it returns what it has then, and where the next one goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.client.consumer import AsyncConsumer
from klamm.client.producer.core.partitioners import by_murmur2
from klamm.console.clusters import ClusterLink
from klamm.console.core.record_views import ShownRecord
from klamm.console.newest_reader import NewestReader
from klamm.console.read_request import BY_TIME, POLL_S, ReadLimits, ReadRequest, ReadResult, passes, show_all
from klamm.console.record_decoder import LookupBudget, RecordDecoder
from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition

__all__ = ["RECORDS_MAX", "ReadRequest", "ReadResult", "TailEvent", "follow_records", "read_one", "read_records"]

READ_S: Final = 4.0
RECORDS_MAX: Final = 500
SCAN_BYTES_MAX: Final = 64 << 20
_FETCH: Final = {"max.poll.records": 1000, "fetch.max.wait.ms": 100, "max.partition.fetch.bytes": 512 << 10}
_READ_FETCH: Final = {**_FETCH, "fetch.max.wait.ms": 10}
"""A client fetches ahead: at the end of a partition this would hold back the next fetch from the same broker."""
_TAIL_QUEUE_MAX: Final = 200
"""Records of one poll that a live view gets; the rest is counted and left out."""


async def read_records(
    link: ClusterLink, request: ReadRequest, clock_s: Callable[[], float] = time.monotonic
) -> ReadResult:
    """Read what a page shows; HttpRefusal 404 for a topic or partition that does not exist."""
    result = ReadResult()
    limits = ReadLimits(clock_s, READ_S, SCAN_BYTES_MAX)
    async with link.consumer(**_READ_FETCH, **{"isolation.level": request.isolation}) as consumer:
        wanted = await _choose_partitions(consumer, request)
        result.partitions = [partition.partition for partition in wanted]
        begins = await consumer.beginning_offsets(wanted)
        ends = await consumer.end_offsets(wanted)
        if request.start == "last":
            bounds = _find_bounds(request, begins, ends)
            await NewestReader(consumer, request, bounds, result, limits).read()
            return result
        starts = await _find_starts(consumer, request, wanted, begins, ends)
        open_partitions = {partition for partition, start in starts.items() if start < ends[partition]}
        if open_partitions:
            consumer.assign(sorted(open_partitions))
            for partition in open_partitions:
                consumer.seek(partition, starts[partition])
            await _scan(consumer, request, open_partitions, ends, result, limits)
    result.records.sort(key=BY_TIME)
    return result


def _find_bounds(
    request: ReadRequest, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return where each partition begins and ends, or where an earlier reading stopped on its way back."""
    if not request.positions:
        return {where: (begin, ends[where]) for where, begin in begins.items()}
    positions = dict(request.positions)
    return {
        where: (begin, min(positions[where.partition], ends[where]))
        for where, begin in begins.items()
        if where.partition in positions
    }


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
    timed = await consumer.offsets_for_times(dict.fromkeys(wanted, request.time_ms))
    return {where: ends[where] if (at := timed[where]) is None else at.offset for where in wanted}


async def _scan(
    consumer: AsyncConsumer[bytes | None, bytes | None],
    request: ReadRequest,
    open_partitions: set[TopicPartition],
    ends: dict[TopicPartition, int],
    result: ReadResult,
    limits: ReadLimits,
) -> None:
    is_filtered = request.where is not None or request.key is not None
    positions: dict[TopicPartition, int] = {}
    budget = LookupBudget()
    while open_partitions:
        result.stopped = limits.find_stop(result)
        if result.stopped:
            break
        # Records that are there are returned without a wait: other pages must get their turn.
        await asyncio.sleep(0)
        records = await consumer.poll(POLL_S)
        # First, for all of them: a reading that reaches its limit goes on with the partitions it did not come to.
        for record in reversed(records):
            positions[record.topic_partition] = record.offset
        # Without those that arrived after the page was requested: a busy topic would never end.
        wanted = [record for record in records if record.offset < ends[record.topic_partition]]
        if not is_filtered:
            # No record behind the limit is decoded for nothing.
            del wanted[request.limit - len(result.records) :]
        for record, shown in zip(wanted, await show_all(wanted, request, budget), strict=True):
            positions[record.topic_partition] = record.offset + 1
            result.scanned += 1
            result.scanned_bytes += len(record.value or b"") + len(record.key or b"")
            if passes(shown, request):
                result.records.append(shown)
                if len(result.records) >= request.limit:
                    result.stopped = "limit"
                    break
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


@dataclass(frozen=True, slots=True)
class TailEvent:
    """New records of a topic, and how many more there were than a page can show."""

    records: list[ShownRecord]
    left_out: int
    scanned: int


async def follow_records(link: ClusterLink, request: ReadRequest) -> AsyncGenerator[TailEvent, None]:
    """Yield records as they arrive, until the caller stops; also an event without records each second."""
    async with link.consumer(**_FETCH, **{"isolation.level": request.isolation}) as consumer:
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
            shown = await show_all(records, request, LookupBudget())
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
