"""Which records of a page a reader of committed records does not get: those of aborted and of open transactions.

Brokers list aborted transactions by producer and offset, and clients leave their records out. So the records of a page
are read again as committed ones: what is missing then was aborted, or is behind the last stable offset.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.consumer import AsyncConsumer
from klamm.console.clusters import ClusterLink
from klamm.console.core.record_views import ABORTED, UNDECIDED, ShownRecord
from klamm.console.read_request import POLL_S, READ_COMMITTED
from klamm.model.ids import TopicPartition

CHECK_S: Final = 2.0
_GAP_MAX: Final = 1000
"""Offsets between two records of a page that are read along; with more between them each is looked up by itself."""
_FETCH: Final = {"isolation.level": READ_COMMITTED, "fetch.max.wait.ms": 10, "max.partition.fetch.bytes": 512 << 10}


@dataclasses.dataclass(frozen=True, slots=True)
class MarkedRecords:
    """The records of a page with their marks."""

    records: list[ShownRecord]
    unchecked: int = 0
    """Records that there was no time for."""


async def mark_transactions(
    link: ClusterLink, topic: str, records: Sequence[ShownRecord], clock_s: Callable[[], float] = time.monotonic
) -> MarkedRecords:
    """Mark the records that readers of committed records do not get."""
    if not records:
        return MarkedRecords([])
    deadline_s = clock_s() + CHECK_S
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    marks: dict[tuple[int, int], str] = {}
    unchecked = 0
    async with link.consumer(**_FETCH) as consumer:
        stable = await consumer.end_offsets([TopicPartition(topic, partition) for partition in offsets])
        for where, end in stable.items():
            numbers = offsets[where.partition]
            marks |= {(where.partition, offset): UNDECIDED for offset in numbers if offset >= end}
            for run in split_runs(offset for offset in numbers if offset < end):
                if clock_s() >= deadline_s:
                    unchecked += len(run)
                    continue
                committed = await _read_offsets(consumer, where, run[0], run[-1] + 1, deadline_s, clock_s)
                if committed is None:
                    unchecked += len(run)
                    continue
                marks |= {(where.partition, offset): ABORTED for offset in run if offset not in committed}
    marked = [
        dataclasses.replace(record, transaction=marks.get((record.partition, record.offset), "")) for record in records
    ]
    return MarkedRecords(marked, unchecked)


def split_runs(offsets: Iterable[int]) -> list[list[int]]:
    """Return offsets in ascending runs that are read at once."""
    runs: list[list[int]] = []
    for offset in sorted(offsets):
        if runs and offset - runs[-1][-1] <= _GAP_MAX:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    return runs


async def _read_offsets(
    consumer: AsyncConsumer[bytes | None, bytes | None],
    where: TopicPartition,
    begin: int,
    end: int,
    deadline_s: float,
    clock_s: Callable[[], float],
) -> set[int] | None:
    """Return the offsets of committed records in a range; None when the time does not suffice."""
    consumer.assign([where])
    consumer.seek(where, begin)
    offsets: set[int] = set()
    while await consumer.position(where) < end:
        if clock_s() >= deadline_s:
            return None
        # Records that are there are returned without a wait: other pages must get their turn.
        await asyncio.sleep(0)
        offsets.update(record.offset for record in await consumer.poll(POLL_S))
    return offsets


async def count_undecided(link: ClusterLink, topic: str, partitions: Sequence[int]) -> int:
    """Return how many offsets are behind the last stable ones, where readers of committed records do not come yet."""
    places = [TopicPartition(topic, partition) for partition in partitions]
    admin = await link.admin()
    # In this order: a transaction that ends in between makes the difference smaller, never negative.
    ends = await admin.list_available_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
    stable = await admin.list_available_offsets(dict.fromkeys(places, OffsetSpec.LATEST), isolation=READ_COMMITTED)
    return sum(max(end.offset - stable[where].offset, 0) for where, end in ends.items() if where in stable)
