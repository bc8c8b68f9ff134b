"""A bounded read of a topic: start and end offsets of every partition, and the conditions that end it early.

It fails when the topic is deleted meanwhile, does not mix in one that was created again under the same name, and reads
a log that was truncated up to its new end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import AsyncConsumer
from klamm.client.consumer.offsets import LATEST, list_offsets
from klamm.client.errors import KafkaError, KafkaTimeoutError, error_for
from klamm.client.types import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_UNKNOWN_S = 3.0
"""A topic missing from metadata for so long does not exist; a new one takes a moment to reach all brokers."""
_POLL_S = 0.1
"""The timeout of a poll: when the last records before an end are aborted, only positions move, without rows."""
_SILENCE_S = 1.0
"""After so long without rows, check whether the log was truncated."""
_PARTITIONS_NAMED = 5
"""Partitions named in the message of a timeout."""


class BoundedRead:
    """One read; `run` it once."""

    def __init__(
        self,
        topic: str,
        start: str | int | dict[int, int],
        end: str | int | dict[int, int],
        partitions: list[int] | None,
        config: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> None:
        self._topic = topic
        self._start = start
        self._end = end
        self._partitions = partitions
        self._consumer = AsyncConsumer(config, **settings)
        self.on_error = self._consumer.on_error
        self._waits_for = f"a broker of {config['bootstrap.servers']}"
        self._ends: dict[TopicPartition, int] = {}
        """Partitions not read to their end yet."""
        self._reached: dict[TopicPartition, int] = {}
        """The offset after the last row of every partition."""

    async def run(self, timeout_s: float | None) -> list[pa.RecordBatch]:
        """All rows; KafkaTimeoutError after `timeout_s`, UnknownTopicOrPartitionError when the topic does not exist."""
        watch = None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._consumer.start()
                watch = _TopicWatch(self._consumer.cluster, self._topic, limit)
                await self._find_ends()
                return await self._rows(watch)
        except TimeoutError as error:
            # The watch ends the read by expiring `limit`; its error is the reason then, not the time.
            if watch is not None:
                watch.raise_error()
            if isinstance(error, KafkaError):
                raise
            raise KafkaTimeoutError(f"{self._topic} was not read within {timeout_s:g} s: {self._progress()}") from None
        finally:
            if watch is not None:
                watch.stop()
            await self._consumer.close()  # outside of the timeout, which would cancel it

    def _progress(self) -> str:
        if not self._ends:
            return f"it waited for {self._waits_for}"
        state = self._consumer.subscription_state.state
        named = [
            f"{where} is at {state(where).position or self._reached[where]} of {end}"
            for where, end in list(self._ends.items())[:_PARTITIONS_NAMED]
        ]
        more = len(self._ends) - len(named)
        return ", ".join(named) + (f", and {more} more partitions" if more else "")

    # Start and end offsets

    async def _find_ends(self) -> None:
        consumer = self._consumer
        self._waits_for = f"the partitions of {self._topic}"
        partitions = await self._choose_partitions()
        self._waits_for = f"the offsets where {', '.join(map(str, partitions[:_PARTITIONS_NAMED]))} begin and end"
        # The ends once, before reading: records that arrive meanwhile do not count.
        firsts = await self._offsets(partitions, self._start, "earliest")
        lasts = await self._offsets(partitions, self._end, "latest")
        self._ends = {where: lasts[where] for where in partitions if firsts[where] < lasts[where]}
        self._reached = {where: firsts[where] for where in self._ends}
        consumer.assign(self._ends)
        for where, first in self._reached.items():
            consumer.seek(where, first)

    async def _choose_partitions(self) -> list[TopicPartition]:
        """The partitions to read; all that are named must exist."""
        known = await self._consumer.partitions_for(self._topic)
        chosen = known if self._partitions is None else self._partitions
        missing = [partition for partition in chosen if partition not in known]
        if missing:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{self._topic} has {len(known)} partitions, and no partition {missing[0]!r}",
            )
        for what, moment in (("start", self._start), ("end", self._end)):
            others = set(moment) - set(chosen) if isinstance(moment, dict) else None
            if others:
                raise ValueError(f"{what} has an offset for partition {min(others)}, which is not read")
        return [TopicPartition(self._topic, partition) for partition in dict.fromkeys(chosen)]

    async def _offsets(
        self, partitions: list[TopicPartition], moment: str | int | dict[int, int], otherwise: str
    ) -> dict[TopicPartition, int]:
        """The offset of `moment` in every partition; for partitions that a dict does not name, `otherwise`."""
        if moment == "earliest":
            return await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        if moment == "latest":
            return ends
        if isinstance(moment, dict):
            edges = ends if otherwise == "latest" else await self._consumer.beginning_offsets(partitions)
            # At most the end: an offset behind it would wait for records that may never come.
            return {where: min(moment.get(where.partition, edges[where]), ends[where]) for where in partitions}
        assert isinstance(moment, int)
        offsets = await self._consumer.offsets_for_times(dict.fromkeys(partitions, moment))
        return {where: ends[where] if position is None else position.offset for where, position in offsets.items()}

    # Reading

    async def _rows(self, watch: _TopicWatch) -> list[pa.RecordBatch]:
        consumer = self._consumer
        clock = asyncio.get_running_loop().time
        parts: list[pa.RecordBatch] = []
        last_rows = clock()
        while self._ends:
            batch = await consumer.poll_arrow(_POLL_S)
            watch.raise_error()  # before the rows are used: they may be of a new topic of that name
            if batch.num_rows:
                parts.extend(self._select_rows(batch))
                last_rows = clock()
            elif clock() - last_rows > _SILENCE_S:
                await self._refresh_ends()
                last_rows = clock()
            for where in list(self._ends):
                # By position, not by rows: the last offsets may be control batches or compacted away.
                if consumer.subscription_state.state(where).position_reached(self._ends[where]):
                    del self._ends[where]
                    consumer.pause(where)  # fetches of the others do not carry its records any more
        return parts

    def _select_rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows before the ends, without duplicates."""
        import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

        for where, end in self._ends.items():
            mine = batch if len(self._ends) == 1 else batch.filter(pc.equal(batch.column("partition"), where.partition))
            # After a truncation the consumer reads offsets again that were already returned.
            if mine.num_rows and mine.column("offset")[0].as_py() < self._reached[where]:
                mine = mine.filter(pc.greater_equal(mine.column("offset"), self._reached[where]))
            if mine.num_rows and mine.column("offset")[mine.num_rows - 1].as_py() >= end:
                mine = mine.filter(pc.less(mine.column("offset"), end))
            if mine.num_rows:
                self._reached[where] = mine.column("offset")[mine.num_rows - 1].as_py() + 1
                yield mine

    async def _refresh_ends(self) -> None:
        """Lower the ends of logs that lost their last records in an unclean election: they would never be reached."""
        committed = self._consumer.settings["isolation.level"] == "read_committed"
        with contextlib.suppress(KafkaError):  # repeated after the next _SILENCE_S
            wanted = dict.fromkeys(self._ends, LATEST)
            offsets = await list_offsets(self._consumer.cluster, wanted, _SILENCE_S, committed=committed)
            for where, last in offsets.items():
                self._ends[where] = min(self._ends[where], last.offset)


class _TopicWatch:
    """Expires `limit` when the consumer's metadata shows that the topic was deleted or created again."""

    def __init__(self, cluster: ClusterClient, topic: str, limit: asyncio.Timeout) -> None:
        self._cluster = cluster
        self._topic = topic
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._id: bytes = ZERO_UUID
        self._seen = False
        self._unknown_since: float | None = None
        self._error: KafkaError | None = None
        cluster.listeners.append(self._check_metadata)

    def raise_error(self) -> None:
        """Raise the error of the topic, if it cannot be read any more."""
        if self._error is not None:
            raise self._error from None

    def stop(self) -> None:
        """End the watch."""
        self._cluster.listeners.remove(self._check_metadata)

    def _check_metadata(self) -> None:
        # A failed refresh says nothing about the topic.
        if self._cluster.failure is not None or self._error is not None:
            return
        topic_metadata = self._cluster.table.topics.get(self._topic)
        if topic_metadata is None or topic_metadata.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._unknown()
            return
        self._unknown_since = None
        if topic_metadata.error_code:
            refusal = error_for(topic_metadata.error_code, f"topic {self._topic}")
            if not refusal.retriable:
                self._end(refusal)
            return
        if ZERO_UUID not in (self._id, topic_metadata.topic_id) and topic_metadata.topic_id != self._id:
            self._end_unknown(f"{self._topic} was deleted and created again while it was read")
        self._id, self._seen = topic_metadata.topic_id, True

    def _unknown(self) -> None:
        now = self._loop.time()
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since >= _UNKNOWN_S:
            self._end_unknown(
                f"{self._topic} was deleted while it was read" if self._seen else f"there is no topic {self._topic}"
            )

    def _end_unknown(self, reason: str) -> None:
        self._end(error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason))

    def _end(self, error: KafkaError) -> None:
        self._error = error
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time())
