"""Follows the topics of tables: reads them from the stored positions on, and applies what comes to the store.

One thread owns the consumer, the readers and all writes of a store. A topic that was deleted and created again, or
whose log does not reach back to the stored position any more, is read again from its beginning: deletions may be among
what is missing. New partitions are read from their beginning as soon as metadata shows them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from klamm.client import loop_thread
from klamm.client.config import CONSUMER_CONFIGS
from klamm.client.consumer import AsyncConsumer
from klamm.client.errors import KafkaTimeoutError, OffsetOutOfRangeError, error_for
from klamm.model.errors import ConfigError, ErrorCode
from klamm.model.ids import ZERO_UUID, TopicPartition, uuid_to_str
from klamm.pipeline.tables.record_reader import DELETED, BadTableRecord, RecordReader, TableChanges
from klamm.pipeline.tables.store import TableStore

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.2
_METADATA_AGE_MS: Final = 2000
"""How often metadata is refreshed: how long new partitions, or a topic created anew, go unnoticed."""
_RETRY_MAX_S: Final = 30.0
_UNKNOWN_S: Final = 2.0
"""How long metadata may not have a topic before it is said not to exist: news of a new one takes a moment."""
_SAMPLES_MAX: Final = 20
_PURGE_INTERVAL_S: Final = 30.0
_SMALL_ROWS: Final = 10_000
_PAUSE_RATIO: Final = 3.0
_PAUSE_MAX_S: Final = 1.0
"""A merge reads the keys of the whole table, however few rows come: after a small one the thread pauses three times as
long as it took, so that a trickle of changes takes a quarter of a core at most."""
_BATCH_ROWS_MAX: Final = 200_000
"""Records applied in one transaction: bounds the memory of decoded columns."""


@dataclass(slots=True)
class FollowedTable:
    """A table, its reader, and what was read of its topic so far."""

    name: str
    topic: str
    reader: RecordReader
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    """The next offset of each partition that is followed, as applied to the store."""
    records: int = 0
    bad_count: int = 0
    bad_samples: list[BadTableRecord] = field(default_factory=list)
    last_change: float = 0.0

    def count_bad(self, bad: Iterable[BadTableRecord]) -> None:
        """Count bad records and keep the newest as samples."""
        for record in bad:
            self.bad_count += 1
            self.bad_samples.append(record)
        del self.bad_samples[:-_SAMPLES_MAX]


class TopicFollower:
    """Reads the topics of tables in a thread until `close`."""

    def __init__(
        self,
        tables: Iterable[FollowedTable],
        store: TableStore,
        client: Mapping[str, Any],
        on_change: Callable[[frozenset[str]], None],
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._store = store
        self._on_change = on_change
        settings = {name: value for name, value in client.items() if name in CONSUMER_CONFIGS and name != "group.id"}
        self._settings = {
            "max.partition.fetch.bytes": str(4 << 20),
            **settings,
            # Without a reset: records that are missing mean that the table is read again, not that it goes on.
            "auto.offset.reset": "none",
            "allow.auto.create.topics": "false",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "metadata.max.age.ms": str(_METADATA_AGE_MS),
        }
        self._applied = threading.Condition()
        self._stopping = threading.Event()
        self._loop = loop_thread.acquire()
        self._consumer: AsyncConsumer[Any, Any] | None = None
        self.error: BaseException | None = None
        """Why following has stopped for now; None while it works."""
        self._thread: threading.Thread | None = None
        self._has_deleted = False
        self._purge_at = 0.0
        self._purge: tuple[Mapping[TopicPartition, int], int] | None = None
        """Where partitions ended at a time: when that was read, keys deleted before the time can be forgotten."""

    # Life

    def start(self) -> None:
        """Connect, find the positions, and begin; KafkaError or ConfigError when that fails."""
        self._open_consumer()
        self._thread = threading.Thread(target=self._follow, name="klamm-tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; what was applied stays in the store."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._close_consumer()
        loop_thread.release(self._loop)

    def _open_consumer(self) -> None:
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(self._settings)
        self._loop.run(consumer.start())
        self._consumer = consumer
        try:
            self._loop.run(self._find_positions(consumer))
        except BaseException:
            self._close_consumer()
            raise

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._loop.run(consumer.close())

    # Positions

    async def _find_positions(self, consumer: AsyncConsumer[Any, Any]) -> None:
        """Assign all partitions, each from its stored position; a table whose position is not valid starts again."""
        for table in self._tables.values():
            partitions = await _find_partitions(consumer, table)
            topic_id = _topic_id(consumer, table.topic)
            places = [TopicPartition(table.topic, partition) for partition in partitions]
            begins = await consumer.beginning_offsets(places)
            ends = await consumer.end_offsets(places)
            stored = self._store.positions(table.name)
            reason = _rebuild_reason(stored.topic_id, topic_id, stored.offsets, begins, ends)
            if reason is not None:
                _log.warning("table re-read from beginning table=%s: %s", table.name, reason)
                table.reader.forget_inferred()
                self._store.reset(table.name, table.reader.columns)
                stored = self._store.positions(table.name)
            table.topic_id = topic_id
            table.positions = {where.partition: stored.offsets.get(where.partition, begins[where]) for where in places}
        self._assign(consumer)

    def _assign(self, consumer: AsyncConsumer[Any, Any]) -> None:
        positions: dict[TopicPartition, int] = {}
        for table in self._tables.values():
            for partition, offset in table.positions.items():
                where = TopicPartition(table.topic, partition)
                # Several tables may have one topic: it is read from where the first of them is.
                positions[where] = min(offset, positions.get(where, offset))
        consumer.assign(positions)
        for where, offset in positions.items():
            consumer.seek(where, offset)

    async def _check_topics(self, consumer: AsyncConsumer[Any, Any]) -> None:
        """Look at the metadata for topics that were created anew or have more partitions."""
        metadata = consumer.cluster.table
        grown = False
        for table in self._tables.values():
            topic = metadata.topics.get(table.topic)
            if topic is None or topic.error_code:
                continue
            topic_id = _topic_id(consumer, table.topic)
            if table.topic_id and topic_id and topic_id != table.topic_id:
                await self._find_positions(consumer)
                return
            added = [
                TopicPartition(table.topic, number) for number in topic.partitions if number not in table.positions
            ]
            if added:
                begins = await consumer.beginning_offsets(added)
                table.positions |= {where.partition: begins[where] for where in added}
                grown = True
                _log.info("table has more partitions table=%s partitions=%d", table.name, len(table.positions))
        if grown:
            self._assign(consumer)

    # Reading

    def _follow(self) -> None:
        pause_s = 0.5
        while not self._stopping.is_set():
            try:
                if self._consumer is None:
                    self._open_consumer()
                assert self._consumer is not None
                self._read_next(self._consumer)
                self._purge_deleted(self._consumer)
            except Exception as error:  # noqa: BLE001 - following goes on after a pause, whatever failed
                self._fail(error)
                if self._stopping.wait(pause_s):
                    return
                pause_s = min(pause_s * 2, _RETRY_MAX_S)
            else:
                if self.error is not None:
                    _log.info("table follower reconnected")
                    self.error = None
                pause_s = 0.5

    def _fail(self, error: Exception) -> None:
        if self.error is None or str(self.error) != str(error):
            _log.warning("table follower disconnected: %s", error)
        with self._applied:
            self.error = error
            self._applied.notify_all()
        try:
            self._close_consumer()
        except Exception:  # noqa: BLE001 - it is given up anyway
            self._consumer = None

    def _read_next(self, consumer: AsyncConsumer[Any, Any]) -> None:
        batch, positions = self._loop.run(self._poll(consumer))
        if self._reset_truncated(positions):
            self._loop.run(self._find_positions(consumer))
            return
        changes = dict(self._decode(batch)) if batch.num_rows else {}
        moved = {
            table.name: {
                partition: offset
                for partition, offset in positions.get(table.topic, {}).items()
                if partition in table.positions and table.positions[partition] < offset
            }
            for table in self._tables.values()
        }
        moved = {name: offsets for name, offsets in moved.items() if offsets}
        if not moved and not changes:
            return
        began = time.monotonic()
        self._apply(changes, moved)
        if batch.num_rows < _SMALL_ROWS:
            self._stopping.wait(min((time.monotonic() - began) * _PAUSE_RATIO, _PAUSE_MAX_S))

    def _reset_truncated(self, positions: Mapping[str, Mapping[int, int]]) -> bool:
        """Forget tables whose topic lost records that were read (an unclean election): their rows may be among them."""
        truncated = False
        for table in self._tables.values():
            for partition, offset in positions.get(table.topic, {}).items():
                if offset < min(self._read_positions(table.topic, partition), default=0):
                    truncated = True
                    _log.warning(
                        "table re-read from beginning table=%s: partition %d was truncated from %d to %d",
                        *(table.name, partition, table.positions[partition], offset),
                    )
                    table.reader.forget_inferred()
                    self._store.reset(table.name, table.reader.columns)
                    break
        return truncated

    def _read_positions(self, topic: str, partition: int) -> list[int]:
        """Return how far each table of a topic has read a partition."""
        tables = [table for table in self._tables.values() if table.topic == topic]
        return [table.positions[partition] for table in tables if partition in table.positions]

    def _purge_deleted(self, consumer: AsyncConsumer[Any, Any]) -> None:
        """Remove deleted keys once no older version of them can come from another partition."""
        if self._purge is not None:
            ends, until_us = self._purge
            if self.behind(ends):
                return
            with self._store.transaction() as transaction:
                transaction.purge_deleted(until_us)
            self._purge = None
        elif self._has_deleted and time.monotonic() >= self._purge_at:
            until_us = time.time_ns() // 1000
            places = list(consumer.subscription_state.assigned)
            self._purge = self._loop.run(consumer.end_offsets(places)), until_us
            self._has_deleted = False
            self._purge_at = time.monotonic() + _PURGE_INTERVAL_S

    def _apply(self, changes: Mapping[str, TableChanges], moved: Mapping[str, Mapping[int, int]]) -> None:
        by_name = self._tables
        with self._store.transaction() as transaction:
            for name, change in changes.items():
                table = by_name[name]
                transaction.set_columns(name, table.reader.columns, table.reader.inferred_types)
                transaction.apply(name, change.rows, keys_may_change=change.keys_may_change)
                transaction.count_bad(name, len(change.bad))
            for name, offsets in moved.items():
                transaction.move(name, by_name[name].topic_id, offsets)
        with self._applied:
            for name, offsets in moved.items():
                by_name[name].positions |= offsets
            for name, change in changes.items():
                table = by_name[name]
                table.records += change.rows.num_rows + len(change.bad)
                table.last_change = time.time()
                self._has_deleted |= bool(pc.any(change.rows[DELETED]).as_py())
                table.count_bad(change.bad)
            self._applied.notify_all()
        for name, change in changes.items():
            for record in change.bad[:1]:
                _log.warning(
                    "record skipped table=%s topic=%s partition=%d offset=%d bad_records=%d: %s",
                    *(name, record.topic, record.partition, record.offset, by_name[name].bad_count, record.error),
                )
        self._on_change(frozenset(changes))

    async def _poll(self, consumer: AsyncConsumer[Any, Any]) -> tuple[pa.RecordBatch, dict[str, dict[int, int]]]:
        await self._check_topics(consumer)
        try:
            batch = await consumer.poll_arrow(_POLL_S, _BATCH_ROWS_MAX)
        except OffsetOutOfRangeError:
            # The log start has passed a position, or the log was cut: `_find_positions` decides what is read again.
            await self._find_positions(consumer)
            batch = await consumer.poll_arrow(0.0)
        positions: dict[str, dict[int, int]] = {}
        # Positions pass transaction markers and compacted offsets, which no row of the batch shows.
        for where, state in consumer.subscription_state.assigned.items():
            if state.position is not None:
                positions.setdefault(where.topic, {})[where.partition] = state.position
        return batch, positions

    def _decode(self, batch: pa.RecordBatch) -> Iterator[tuple[str, TableChanges]]:
        for table in self._tables.values():
            mine = batch if len(self._tables) == 1 else batch.filter(pc.equal(batch.column("topic"), table.topic))
            # Another table of the topic may be behind, so that records come again: bad ones would be counted twice.
            if any(other.topic == table.topic and other is not table for other in self._tables.values()):
                mine = _drop_read(mine, table.positions)
            if mine.num_rows:
                yield table.name, table.reader.read(mine)

    # Waiting

    def ends(self) -> dict[TopicPartition, int]:
        """Return where the followed partitions end now; KafkaError when the cluster does not answer."""
        consumer = self._consumer
        if consumer is None:
            raise ConfigError(f"the cluster cannot be reached: {self.error}")
        with self._applied:
            places = {
                TopicPartition(table.topic, partition)
                for table in self._tables.values()
                for partition in table.positions
            }
        return self._loop.run(consumer.end_offsets(places))

    def behind(self, goals: Mapping[TopicPartition, int]) -> int:
        """Return how many offsets are missing to these."""
        with self._applied:
            return sum(max(end - self._position(where, end), 0) for where, end in goals.items())

    def _position(self, where: TopicPartition, default: int) -> int:
        return min(self._read_positions(where.topic, where.partition), default=default)

    def wait_for(
        self, goals: Mapping[TopicPartition, int], timeout_s: float | None, report: Callable[[int], None] | None = None
    ) -> None:
        """Wait until everything before these offsets is applied; KafkaTimeoutError, or what stopped the follower."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            missing = self.behind(goals)
            if report is not None:
                report(missing)
            if not missing:
                return
            if self.error is not None:
                raise self.error
            if deadline is not None and time.monotonic() > deadline:
                raise KafkaTimeoutError(f"{missing} records are not read yet after {timeout_s:g} s")
            with self._applied:
                self._applied.wait(0.1)


def _drop_read(batch: pa.RecordBatch, positions: Mapping[int, int]) -> pa.RecordBatch:
    """Return the records from these positions on."""
    for partition in pc.unique(batch.column("partition")).to_pylist():
        is_read = pc.and_(
            pc.equal(batch.column("partition"), partition),
            pc.less(batch.column("offset"), positions.get(partition, 0)),
        )
        if pc.any(is_read).as_py():
            batch = batch.filter(pc.invert(is_read))
    return batch


async def _find_partitions(consumer: AsyncConsumer[Any, Any], table: FollowedTable) -> list[int]:
    try:
        await consumer.cluster.topic(table.topic, _UNKNOWN_S)
    except KafkaTimeoutError:
        words = f"there is no topic {table.topic}, which has the rows of {table.name}; `klamm pipeline run` makes it"
        raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words) from None
    return sorted(consumer.cluster.table.topics[table.topic].partitions)


def _topic_id(consumer: AsyncConsumer[Any, Any], topic: str) -> str:
    topic_id = consumer.cluster.table.topic_id(topic)
    # Brokers before KIP-516 have no topic ids: then a topic created anew is noticed by its offsets only.
    return "" if topic_id == ZERO_UUID else uuid_to_str(topic_id)


def _rebuild_reason(
    stored_id: str,
    topic_id: str,
    stored: Mapping[int, int],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> str | None:
    """Return why stored rows cannot be continued; None when they can, or when there are none."""
    if not stored:
        return None
    if stored_id and topic_id and stored_id != topic_id:
        return "the topic was deleted and created anew"
    by_partition = {where.partition: (begin, ends[where]) for where, begin in begins.items()}
    for partition, offset in stored.items():
        if partition not in by_partition:
            return f"partition {partition} does not exist any more"
        begin, end = by_partition[partition]
        if offset < begin:
            return f"partition {partition} was read up to offset {offset}, and its log starts at {begin}"
        if offset > end:
            return f"partition {partition} was read up to offset {offset}, and its log ends at {end}"
    return None
