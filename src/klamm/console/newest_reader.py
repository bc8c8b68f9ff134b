"""Reads the newest records that pass: slices of each partition, from its end backwards.

Consumers read forwards only, so a slice counts when all of it was read. Partitions whose unread records may be the
newest come first; the size of a slice follows the bytes of the one before. A reading that stops early has read the
newest part, and the next one goes on before it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from klamm.client.consumer import AsyncConsumer
from klamm.console.core.record_views import ShownRecord
from klamm.console.read_request import BY_TIME, POLL_S, ReadLimits, ReadRequest, ReadResult, passes, show_all
from klamm.console.record_decoder import BytesRecord, LookupBudget
from klamm.model.ids import TopicPartition

_FIRST_OFFSETS: Final = 4
"""Of the first slice of a partition, when the size of its records is not known."""
_GROWTH: Final = 16
"""How many times longer a slice may be than the one before: a few records tell little of the others."""
_SLICE_BYTES: Final = 2 << 20
_GROUP_BYTES: Final = 8 << 20
"""Of the slices that are read at the same time. At twice as many those that are not complete are given up."""
_UNKNOWN_SHARE: Final = 32
"""Partitions whose sizes are not known that are read at the same time."""

BytesConsumer = AsyncConsumer[bytes | None, bytes | None]
_frontier: Final = attrgetter("frontier_ms")


class PartitionTail:
    """What was read of a partition: all of it from `upper` to its end."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.upper = end
        self.frontier_ms = math.inf
        """The time of the oldest record that was read: those that were not read are about as old, or older."""
        self.passing: deque[ShownRecord] = deque()
        """Records that pass and are not among the result, the newest first."""
        self._offsets = _FIRST_OFFSETS
        self._bytes_per_offset: float | None = None
        self._was_empty = True

    @property
    def is_open(self) -> bool:
        """Whether there are records that were not read."""
        return self.upper > self.begin

    @property
    def position(self) -> int | None:
        """The offset before which the next reading goes on; None when nothing is left."""
        # Records that pass and found no room on the page are read again.
        offset = self.passing[0].offset + 1 if self.passing else self.upper
        return offset if offset > self.begin else None

    def slice_offsets(self, most: float = math.inf) -> int:
        """Return how many offsets to read next; `most` is how many records are of use."""
        offsets: float = self._offsets
        if self._bytes_per_offset is not None:
            offsets = min(offsets, max(_SLICE_BYTES // self._bytes_per_offset, 1))
        # An empty slice is one of markers or compacted records: its offsets do not say how many records there are.
        return int(offsets if self._was_empty else min(offsets, most))

    def estimate_bytes(self, offsets: int) -> float:
        """Return how many bytes a slice probably has."""
        known = self._bytes_per_offset
        return _GROUP_BYTES / _UNKNOWN_SHARE if known is None else known * offsets

    def keep(self, passing: Sequence[ShownRecord], lower: int, scanned_bytes: int, oldest_ms: float = math.inf) -> None:
        """Take a slice that was read from `lower` on."""
        self.passing.extend(reversed(passing))
        offsets, self.upper = self.upper - lower, lower
        self.frontier_ms = min(self.frontier_ms, oldest_ms)
        self._was_empty = not scanned_bytes
        self._offsets = max(offsets, _FIRST_OFFSETS) * _GROWTH
        if scanned_bytes:
            self._bytes_per_offset = scanned_bytes / offsets

    def shrink(self, read_offsets: int, read_bytes: int) -> None:
        """Read less next time: a slice turned out to be too large."""
        self._offsets = max(self._offsets // _GROWTH, 1)
        if read_offsets > 0 and read_bytes:
            self._bytes_per_offset = read_bytes / read_offsets


class _Slice:
    """A slice that is being read."""

    def __init__(self, tail: PartitionTail, offsets: int) -> None:
        self.tail = tail
        self.lower = max(tail.upper - offsets, tail.begin)
        self.position = self.lower
        self.passing: list[ShownRecord] = []
        self.records = 0
        self.bytes = 0
        self.oldest_ms = math.inf

    @property
    def is_complete(self) -> bool:
        return self.position >= self.tail.upper

    def add(self, record: BytesRecord, size: int) -> None:
        if not self.records:
            self.oldest_ms = record.timestamp
        self.records += 1
        self.bytes += size
        self.position = record.offset + 1


class NewestReader:
    """One reading."""

    def __init__(
        self,
        consumer: BytesConsumer,
        request: ReadRequest,
        bounds: Mapping[TopicPartition, tuple[int, int]],
        result: ReadResult,
        limits: ReadLimits,
    ) -> None:
        self._consumer = consumer
        self._request = request
        self._tails = {where: PartitionTail(begin, end) for where, (begin, end) in bounds.items()}
        self._result = result
        self._limits = limits
        self._budget = LookupBudget()
        self._group_max = len(bounds)
        self._has_progress = False
        self._is_filtered = request.where is not None or request.key is not None

    async def read(self) -> None:
        """Fill the result."""
        result, limit = self._result, self._request.limit
        while len(result.records) < limit:
            wanted = self._choose(limit - len(result.records))
            if not wanted:
                record = self._take()
                if record is None:
                    break
                result.records.append(record)
                continue
            result.stopped = self._find_stop()
            if result.stopped:
                self._take_rest(limit)
                break
            await self._read_group(wanted)
        result.positions = {
            where.partition: tail.position for where, tail in self._tails.items() if tail.position is not None
        }
        if result.positions and not result.stopped:
            result.stopped = "limit"
        result.records.sort(key=BY_TIME, reverse=True)

    def _find_stop(self) -> str:
        stop = self._limits.find_stop(self._result)
        # Slices that were too large have used up the bytes: at least one record is shown, whatever its size.
        return stop if stop != "bytes" or self._has_progress else ""

    def _take(self) -> ShownRecord | None:
        """Remove and return the newest record that passes; None when there is none."""
        # By partition from its end: so the next reading goes on before an offset, whatever the times of records are.
        tails = [tail for tail in self._tails.values() if tail.passing]
        return max(tails, key=_head_time).passing.popleft() if tails else None

    def _take_rest(self, limit: int) -> None:
        while len(self._result.records) < limit and (record := self._take()) is not None:
            self._result.records.append(record)

    def _choose(self, missing: int) -> dict[TopicPartition, _Slice]:
        """Return slices that may have a newer record than those that are known, as many as are read at a time."""
        newest_ms = max((tail.passing[0].timestamp for tail in self._tails.values() if tail.passing), default=-math.inf)
        open_tails = {where: tail for where, tail in self._tails.items() if tail.is_open}
        if not any(not tail.passing and tail.frontier_ms > newest_ms for tail in open_tails.values()):
            return {}
        # Also those that will soon be needed: each group costs the cluster's answer time.
        short = {
            where: tail
            for where, tail in open_tails.items()
            if (len(tail.passing) * len(self._tails) < missing if tail.passing else tail.frontier_ms > newest_ms)
        }
        slices: dict[TopicPartition, _Slice] = {}
        group_bytes = 0.0
        for where, tail in sorted(short.items(), key=lambda item: _frontier(item[1]), reverse=True)[: self._group_max]:
            offsets = tail.slice_offsets(math.inf if self._is_filtered else missing)
            group_bytes += tail.estimate_bytes(offsets)
            if slices and group_bytes > _GROUP_BYTES:
                break
            slices[where] = _Slice(tail, offsets)
        return slices

    async def _read_group(self, slices: dict[TopicPartition, _Slice]) -> None:
        consumer = self._consumer
        consumer.assign(slices)
        # Those of the group before stay paused.
        consumer.resume(*slices)
        for where, part in slices.items():
            consumer.seek(where, part.lower)
        unread = dict(slices)
        while unread and not self._limits.is_late and not self._is_too_large(slices):
            # Records that are there are returned without a wait: other pages must get their turn.
            await asyncio.sleep(0)
            await self._scan(await consumer.poll(POLL_S), unread)
            for where, part in list(unread.items()):
                # Offsets of markers and compacted records are passed without a record.
                part.position = max(part.position, await consumer.position(where))
                if part.is_complete:
                    del unread[where]
                    consumer.pause(where)
        for where, part in slices.items():
            if where in unread:
                part.tail.shrink(part.position - part.lower, part.bytes)
            else:
                part.tail.keep(part.passing, part.lower, part.bytes, part.oldest_ms)
                self._result.scanned += part.records
                self._has_progress = True
        if unread:
            self._group_max = max(len(slices) // 2, 1)

    def _is_too_large(self, slices: Mapping[TopicPartition, _Slice]) -> bool:
        # A single record is read whatever its size.
        if len(slices) == 1 and all(part.tail.upper - part.lower == 1 for part in slices.values()):
            return False
        return sum(part.bytes for part in slices.values()) > 2 * _GROUP_BYTES

    async def _scan(self, records: Sequence[BytesRecord], unread: Mapping[TopicPartition, _Slice]) -> None:
        wanted = [
            record
            for record in records
            if record.topic_partition in unread and record.offset < unread[record.topic_partition].tail.upper
        ]
        for record, shown in zip(wanted, await show_all(wanted, self._request, self._budget), strict=True):
            part = unread[record.topic_partition]
            size = len(record.value or b"") + len(record.key or b"")
            part.add(record, size)
            self._result.scanned_bytes += size
            if passes(shown, self._request):
                part.passing.append(shown)


def _head_time(tail: PartitionTail) -> tuple[int, int]:
    record = tail.passing[0]
    return record.timestamp, record.partition
