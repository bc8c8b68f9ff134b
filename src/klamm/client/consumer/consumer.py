"""`AsyncConsumer`: records out, one by one, in lists or in columns; the shell over subscription, fetcher and group."""

from __future__ import annotations

import asyncio
import inspect
import logging
import operator
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from klamm.client.cluster import Cluster
from klamm.client.config import consumer_settings
from klamm.client.consumer.classic import ClassicGroup
from klamm.client.consumer.fetcher import Fetcher
from klamm.client.consumer.group import Callback
from klamm.client.consumer.modern import ModernGroup
from klamm.client.consumer.offsets import (
    EARLIEST,
    LATEST,
    GroupCoordinator,
    commit,
    epoch_ends,
    fetch_committed,
    list_offsets,
)
from klamm.client.consumer.subscription import Assigned, Mode, Subscription
from klamm.client.errors import (
    CorruptRecordError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetError,
    OffsetOutOfRangeError,
    SerializationError,
)
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.serde import deserializer
from klamm.client.types import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records import kernels
from klamm.records.batch import BatchView

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = logging.getLogger(__name__)

_ITERATE_S = 3600.0
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


class AsyncConsumer:
    """Reads records; on the event loop it was started on.

    async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self.settings = consumer_settings(config, keywords)
        settings = self.settings
        self._key_deserializer = deserializer(settings["key.deserializer"], "key.deserializer")
        self._value_deserializer = deserializer(settings["value.deserializer"], "value.deserializer")
        self._subscription = Subscription()
        self._group_id = settings["group.id"]
        self._auto_commit: bool = settings["enable.auto.commit"]
        self._auto_commit_s = settings.seconds("auto.commit.interval.ms")
        self._committed_only = settings["isolation.level"] == "read_committed"
        self._check_crcs: bool = settings["check.crcs"]
        self._max_records = settings.number("max.poll.records")
        self._api_s = settings.seconds("default.api.timeout.ms")
        self._on_assign: Callback | None = None
        self._on_revoke: Callback | None = None
        self._on_lost: Callback | None = None
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._coordinator: GroupCoordinator | None = None
        self._group: ClassicGroup | ModernGroup | None = None
        self._news = asyncio.Event()
        self._next_commit = 0.0
        self._committing: asyncio.Task[None] | None = None
        self._iterated: tuple[Assigned, int, list[Record], Iterator[Record]] | None = None
        self._turn: list[TopicPartition] = []
        self._closed = False

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach the cluster; BrokersUnreachableError when nobody answers."""
        if self._cluster is not None:
            return
        cluster = Cluster(self.settings)
        cluster.auto_create = self.settings["allow.auto.create.topics"]
        cluster.wanted |= self._wanted_topics()
        cluster.all_topics = self._subscription.mode is Mode.PATTERN
        try:
            await cluster.start()
        except BaseException:
            await cluster.close()
            raise
        self._cluster = cluster
        self._fetcher = Fetcher(cluster, self._subscription, self._news.set, self._out_of_range)
        if self._group_id is not None:
            self._coordinator = GroupCoordinator(cluster, self._group_id)
        cluster.listeners.append(self._learn)
        self._learn()

    async def close(self) -> None:
        """Commit (with enable.auto.commit), leave the group and the cluster."""
        if self._closed:
            return
        self._closed = True
        cluster = self._cluster
        if cluster is None:
            return
        try:
            if self._committing is not None:
                self._committing.cancel()
                await asyncio.gather(self._committing, return_exceptions=True)
            if self._group is not None:
                owned = self.assigned_now
                try:
                    if owned:
                        await self.revoke(owned)
                finally:
                    await self._group.leave()
            elif self._auto_commit:
                await self._commit_quietly()
        finally:
            assert self._fetcher is not None
            await self._fetcher.stop()
            await cluster.close()

    @property
    def cluster(self) -> Cluster:
        """What is known of the cluster."""
        if self._cluster is None or self._closed:
            raise IllegalStateError("the consumer is not started or already closed")
        return self._cluster

    def _wanted_topics(self) -> set[str]:
        return set(self._subscription.topics) | {each.topic for each in self._subscription.assigned}

    def _learn(self) -> None:
        """Metadata has changed."""
        if self._cluster is None:
            return
        subscription = self._subscription
        if subscription.mode is Mode.PATTERN and self._cluster.table.topics:
            hidden = self.settings["exclude.internal.topics"]
            names = [each.name for each in self._cluster.table.topics.values() if not (hidden and each.internal)]
            if subscription.match(names) and self._group is not None:
                self._group.rejoin()
        if self._group is not None:
            self._group.changed()
        self._news.set()

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read topics, or all that a compiled pattern matches, shared with the group.

        The callbacks, plain or async, get a list of partitions and are called while polling: after partitions came,
        before they go, and when they are gone already (`on_revoke` unless `on_lost` is given).
        """
        if self._group_id is None:
            raise IllegalStateError("subscribing needs a group.id; assign() reads partitions without a group")
        if isinstance(topics, re.Pattern):
            self._subscription.subscribe_pattern(topics)
        else:
            self._subscription.subscribe(topics)
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        if self._cluster is not None:
            self._cluster.all_topics = self._subscription.mode is Mode.PATTERN
            self._cluster.wanted |= self._subscription.topics
            self._cluster.request_update()
        if self._group is not None:
            self._group.rejoin()

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, without a group's say; offsets may still be committed for group.id."""
        self._subscription.assign_manually(TopicPartition(*each) for each in partitions)
        self._forget_iterated()
        if self._cluster is not None:
            self._cluster.wanted |= self._wanted_topics()
            self._cluster.request_update()
            assert self._fetcher is not None
            self._fetcher.wake()

    async def unsubscribe(self) -> None:
        """Read nothing any more; leaves the group."""
        group, self._group = self._group, None
        if group is not None:
            if self.assigned_now:
                await self.revoke(self.assigned_now)
            await group.leave()
        self._forget_iterated()
        self._subscription.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, those a pattern matches now included."""
        return self._subscription.topics

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads now."""
        return set(self._subscription.assigned)

    @property
    def assigned_now(self) -> list[TopicPartition]:
        """The same in order."""
        return sorted(self._subscription.assigned)

    # The group's host

    @property
    def topics(self) -> frozenset[str]:
        """The topics wanted."""
        return self._subscription.topics

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now."""
        return self.assigned_now

    def wake(self) -> None:
        """The group wants something of the next poll."""
        self._news.set()

    async def give(self, partitions: Iterable[TopicPartition]) -> None:
        """Have partitions added; tell the user."""
        added = list(partitions)
        self._subscription.take([*self._subscription.assigned, *added])
        await self._call(self._on_assign, added)
        assert self._fetcher is not None
        self._fetcher.wake()

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit, tell the user, then have partitions taken away."""
        gone = list(partitions)
        self._settle()
        if self._auto_commit:
            await self._commit_quietly()
        await self._call(self._on_revoke, gone)
        self._drop(gone)

    async def lose(self) -> None:
        """Have all partitions taken away: others may have them already."""
        gone = self.assigned_now
        if gone:
            await self._call(self._on_lost or self._on_revoke, gone)
            self._drop(gone)

    def _drop(self, gone: list[TopicPartition]) -> None:
        if self._iterated is not None and self._iterated[0].where in gone:
            self._forget_iterated()
        self._subscription.take([each for each in self._subscription.assigned if each not in set(gone)])

    async def _call(self, callback: Callback | None, partitions: list[TopicPartition]) -> None:
        if callback is None:
            return
        outcome = callback(partitions)
        if inspect.isawaitable(outcome):
            await outcome

    # Reading

    async def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[Record]:
        """The next records, at least one unless `timeout_s` passes; at most max.poll.records.

        Keeps the membership of the group alive and commits what was returned before (with enable.auto.commit).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        limit = self._max_records if max_records is None else max_records
        while True:
            self._news.clear()
            if await self._ready(deadline):
                records = self._collect(limit)
                if records:
                    return records
            left = deadline - loop.time()
            if left <= 0:
                return []
            if not self._news.is_set():
                await self._wait(left)

    async def _wait(self, left: float) -> None:
        """For news, but look again now and then: commits and membership have their times too."""
        try:
            async with asyncio.timeout(min(left, 1.0)):
                await self._news.wait()
        except TimeoutError:
            return

    async def _ready(self, deadline: float) -> bool:
        """Membership, commits and positions, as far as they get before `deadline`."""
        cluster = self.cluster
        self._settle()
        subscription = self._subscription
        if subscription.mode is Mode.NONE:
            raise IllegalStateError("subscribe or assign before polling")
        if subscription.mode is not Mode.PARTITIONS:
            if self._group is None:
                self._group = self._join_group(cluster)
            self._auto_commit_due()
            if not await self._group.poll(deadline):
                return bool(subscription.assigned)
        else:
            self._auto_commit_due()
        await self._positions(deadline)
        assert self._fetcher is not None
        self._fetcher.wake()
        return True

    def _join_group(self, cluster: Cluster) -> ClassicGroup | ModernGroup:
        assert self._coordinator is not None
        if self.settings["group.protocol"] == "consumer":
            return ModernGroup(cluster, self._coordinator, _Host(self))
        return ClassicGroup(cluster, self._coordinator, _Host(self))

    def _collect(self, limit: int) -> list[Record]:
        """Decode what lies ready, partitions by turns, none of them in pieces smaller than need be."""
        found: list[Record] = []
        assigned = self._subscription.assigned
        self._turn = [each for each in self._turn if each in assigned]
        self._turn += [each for each in assigned if each not in set(self._turn)]
        for where in list(self._turn):
            state = assigned[where]
            if state.paused:
                continue
            records = self._decode(state, limit - len(found))
            if records:
                found += records
                self._turn.remove(where)
                self._turn.append(where)
            if len(found) >= limit:
                break
            if state.error is not None and not found:
                error, state.error = state.error, None
                raise error
        if found:
            assert self._fetcher is not None
            self._fetcher.wake()
        return found

    def _decode(self, state: Assigned, limit: int) -> list[Record]:
        """At most `limit` records of one partition; its position moves behind them."""
        found: list[Record] = []
        while len(found) < limit:
            if not state.pending:
                if not state.batches:
                    break
                if not self._decode_batch(state):
                    break
                continue
            room = limit - len(found)
            if len(state.pending) <= room:
                found += state.pending
                state.pending = []
            else:
                found += state.pending[:room]
                del state.pending[:room]
        if found:
            last = found[-1]
            state.position = last.offset + 1
            state.position_epoch = last.leader_epoch
            if not state.pending and not state.batches and state.fetch_offset > state.position:
                state.position = state.fetch_offset
        if found and (self._key_deserializer is not None or self._value_deserializer is not None):
            return self._deserialized(state, found)
        return found

    def _decode_batch(self, state: Assigned) -> bool:
        batch = state.batches[0]
        try:
            state.pending = self._rows(state, batch)
        except (CorruptBatch, KlammError) as error:
            where = f"{state.where} at offset {max(batch.base_offset, state.position or 0)}"
            state.clear()
            state.fetch_offset = state.position if state.position is not None else -1
            state.error = CorruptRecordError(ErrorCode.CORRUPT_MESSAGE, f"{where}: {error}")
            return False
        state.batches.popleft()
        state.buffered -= batch.size
        if not state.pending and not state.batches:
            state.position = max(state.position or 0, state.fetch_offset)
        return True

    def _rows(self, state: Assigned, batch: BatchView) -> list[Record]:
        if self._check_crcs:
            batch.check_crc()
        rows: list[Record] = kernels.decode_client_records(
            batch.unpacked_records(),
            batch.record_count,
            batch.base_offset,
            batch.base_timestamp,
            batch.max_timestamp if batch.is_log_append_time else None,
            state.position or 0,
            Record,
            state.where.topic,
            state.where.partition,
            batch.leader_epoch,
        )
        return rows

    def _deserialized(self, state: Assigned, records: list[Record]) -> list[Record]:
        made: list[Record] = []
        for record in records:
            key, value = record.key, record.value
            try:
                if self._key_deserializer is not None:
                    key = self._key_deserializer(record.topic, key)
                if self._value_deserializer is not None:
                    value = self._value_deserializer(record.topic, value)
            except KafkaError as error:
                state.seek(record.offset, record.leader_epoch)
                if made:
                    break
                raise SerializationError(f"{state.where} offset {record.offset}: {error}") from error
            made.append(record._replace(key=key, value=value))
        return made

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record]:
        """Records one by one, for ever; the position follows what was handed out."""
        while not self._closed:
            for record in await self.chunk():
                yield record

    async def chunk(self) -> Iterator[Record]:
        """Some records of one partition, waited for; those left in the iterator at the next call are given back."""
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            if await self._ready(loop.time() + _ITERATE_S):
                records = self._one_partition()
                if records is not None:
                    return records
            if not self._news.is_set():
                await self._wait(_ITERATE_S)

    def _one_partition(self) -> Iterator[Record] | None:
        """Records of one partition, of which some may be given back."""
        for where in [*self._turn, *self._subscription.assigned]:
            state = self._subscription.assigned.get(where)
            if state is None or state.paused:
                continue
            records = self._decode(state, self._max_records)
            if records:
                if where in self._turn:
                    self._turn.remove(where)
                self._turn.append(where)
                handing = iter(records)
                self._iterated = (state, state.ticket, records, handing)
                assert self._fetcher is not None
                self._fetcher.wake()
                return handing
            if state.error is not None:
                error, state.error = state.error, None
                raise error
        return None

    def _settle(self) -> None:
        """What an iteration was given and has not handed out goes back."""
        if self._iterated is None:
            return
        state, ticket, records, handing = self._iterated
        self._iterated = None
        left = operator.length_hint(handing)
        if left and state.ticket == ticket and self._subscription.assigned.get(state.where) is state:
            rest = records[len(records) - left :]
            if self._key_deserializer is None and self._value_deserializer is None:
                state.pending[:0] = rest
                state.position = rest[0].offset
            else:
                state.seek(rest[0].offset)
        records.clear()

    def _forget_iterated(self) -> None:
        if self._iterated is not None:
            self._iterated[2].clear()
            self._iterated = None

    async def poll_arrow(self, timeout_s: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """As `poll`, in columns: a pyarrow.RecordBatch decoded without an object per record; empty after `timeout_s`.

        Whole batches are returned, so there may be somewhat more than `max_records`; without it, all that lies ready.
        """
        from klamm.client.columns import collect_arrow, empty_batch  # noqa: PLC0415 - pyarrow is an extra

        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self._news.clear()
            if await self._ready(deadline):
                found = collect_arrow(self, max_records)
                if found is not None:
                    assert self._fetcher is not None
                    self._fetcher.wake()
                    return found
            left = deadline - loop.time()
            if left <= 0:
                return empty_batch()
            if not self._news.is_set():
                await self._wait(left)

    # Positions

    async def _positions(self, deadline: float) -> None:
        """Find out where to begin, for partitions that do not know, and check those whose leader changed."""
        lacking = [each for each in self._subscription.assigned.values() if each.position is None]
        loop = asyncio.get_running_loop()
        if lacking:
            limit_s = max(deadline - loop.time(), 0.05)
            try:
                await self._begin(lacking, min(self._api_s, max(limit_s, 1.0)))
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._news.set()
                await asyncio.sleep(min(0.05, max(deadline - loop.time(), 0)))
        await self._validate()

    async def _begin(self, lacking: list[Assigned], timeout_s: float) -> None:
        tickets = {each.where: each.ticket for each in lacking}
        asked = [each for each in lacking if each.reset is None]
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if asked and self._coordinator is not None:
            places = [each.where for each in asked]
            committed = await fetch_committed(self._coordinator, places, timeout_s, stable=self._committed_only)
        for state in asked:
            found = committed.get(state.where)
            if state.ticket != tickets[state.where] or state.position is not None:
                continue
            if found is not None:
                state.seek(found.offset, found.leader_epoch)
            else:
                state.reset = self._default_reset(state)
        resets = {each.where: each for each in lacking if each.position is None and each.reset is not None}
        if not resets:
            return
        wanted = {where: each.reset for where, each in resets.items() if each.reset is not None}
        offsets = await list_offsets(self.cluster, wanted, timeout_s, committed=self._committed_only)
        ends = {where: LATEST for where in wanted if offsets[where].offset < 0}
        if ends:  # nothing as young as that: the end
            offsets |= await list_offsets(self.cluster, ends, timeout_s, committed=self._committed_only)
        for where, state in resets.items():
            if state.position is None and self._subscription.assigned.get(where) is state:
                state.seek(offsets[where].offset, -1)

    def _default_reset(self, state: Assigned) -> int:
        policy = self.settings.text("auto.offset.reset")
        if policy == "earliest":
            return EARLIEST
        if policy == "latest":
            return LATEST
        if policy == "none":
            raise NoOffsetError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._group_id} has no offset for {state.where}; auto.offset.reset=none",
            )
        match = _ISO_DURATION.fullmatch(policy.partition(":")[2])
        days, hours, minutes, seconds = (float(each or 0) for each in match.groups()) if match else (0.0, 0.0, 0.0, 0.0)
        span_ms = ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000
        return max(time.time_ns() // 1_000_000 - int(span_ms), 0)

    def _out_of_range(self, state: Assigned) -> None:
        """The broker does not have the offset."""
        offset = state.fetch_offset
        if self.settings.text("auto.offset.reset") == "none":
            state.clear()
            state.error = OffsetOutOfRangeError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{state.where} has no offset {offset}; auto.offset.reset=none"
            )
            state.fetch_offset = offset
            return
        _log.info("%s has no offset %d; auto.offset.reset decides", state.where, offset)
        state.need_reset(self._default_reset(state))

    async def _validate(self) -> None:
        """After a change of leader: is what was read still in the log? If not, go back to where the logs part."""
        table = self.cluster.table
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for where, state in self._subscription.assigned.items():
            known = table.partition(where)
            if known is None or known.leader < 0 or state.position is None or state.position_epoch < 0:
                continue
            if state.validated_epoch >= known.leader_epoch:
                continue
            if state.validated_epoch < 0 and state.position_epoch >= known.leader_epoch:
                state.validated_epoch = known.leader_epoch
                continue
            by_leader.setdefault(known.leader, {})[where] = (known.leader_epoch, state.position_epoch)
        for leader, wanted in by_leader.items():
            try:
                ends = await epoch_ends(self.cluster, leader, wanted)
            except KafkaError as error:
                if not error.retriable:
                    for where in wanted:
                        self._subscription.assigned[where].validated_epoch = wanted[where][0]
                self.cluster.request_update()
                continue
            for where, (current, _) in wanted.items():
                found = self._subscription.assigned.get(where)
                if found is None or found.position is None or where not in ends:
                    self.cluster.request_update()
                    continue
                epoch, end = ends[where]
                if 0 <= end < found.position:
                    _log.warning("%s was truncated to %d by a new leader; going on from there", where, end)
                    found.seek(end, epoch)
                found.validated_epoch = current

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, leader_epoch: int = -1) -> None:
        """Go on at an offset with the next poll."""
        if offset < 0:
            raise ValueError(f"{offset} is no offset; seek_to_beginning and seek_to_end go to the ends")
        self._settle()
        self._subscription.state(TopicPartition(*partition)).seek(offset, leader_epoch)
        self._news.set()

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on at the first record, of all partitions without any."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on behind the last record, of all partitions without any."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Iterable[TopicPartition | tuple[str, int]], timestamp: int) -> None:
        self._settle()
        for where in [TopicPartition(*each) for each in partitions] or list(self._subscription.assigned):
            self._subscription.state(where).need_reset(timestamp)
        self._news.set()

    async def position(self, partition: TopicPartition | tuple[str, int], timeout_s: float | None = None) -> int:
        """The offset of the next record of a partition."""
        self._settle()
        state = self._subscription.state(TopicPartition(*partition))
        deadline = asyncio.get_running_loop().time() + (self._api_s if timeout_s is None else timeout_s)
        while state.position is None:
            await self._begin([state], max(deadline - asyncio.get_running_loop().time(), 0.05))
            if asyncio.get_running_loop().time() > deadline:
                raise KafkaTimeoutError(f"the position of {state.where} could not be found out in time")
        return state.position

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out nothing of these partitions until they are resumed; membership is not affected."""
        for each in partitions:
            self._subscription.state(TopicPartition(*each)).paused = True

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out records of these partitions again."""
        for each in partitions:
            self._subscription.state(TopicPartition(*each)).paused = False
        self._news.set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {where for where, state in self._subscription.assigned.items() if state.paused}

    def lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """How far the position is behind the end as the last fetch saw it; None before the first."""
        state = self._subscription.state(TopicPartition(*partition))
        end = state.last_stable_offset if self._committed_only else state.high_watermark
        return None if state.position is None or end < 0 else max(end - state.position, 0)

    # Committing

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit offsets, those of all that was handed out without any; CommitFailedError when the group went on."""
        if self._coordinator is None:
            raise IllegalStateError("committing needs a group.id")
        self._settle()
        wanted = (
            self._consumed()
            if offsets is None
            else {
                TopicPartition(*where): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
                for where, each in offsets.items()
            }
        )
        if wanted:
            await commit(self._coordinator, wanted, self.group_metadata, self._api_s)

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            where: OffsetAndMetadata(state.position, "", state.position_epoch)
            for where, state in self._subscription.assigned.items()
            if state.position is not None
        }

    def _auto_commit_due(self) -> None:
        if not self._auto_commit:
            return
        now = asyncio.get_running_loop().time()
        if not self._next_commit:
            self._next_commit = now + self._auto_commit_s
        idle = self._committing is None or self._committing.done()
        if now >= self._next_commit and idle:
            self._next_commit = now + self._auto_commit_s
            consumed = self._consumed()
            if consumed:
                self._committing = asyncio.create_task(self._commit_in_background(consumed), name="klamm auto commit")

    async def _commit_in_background(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        assert self._coordinator is not None
        try:
            await commit(self._coordinator, offsets, self.group_metadata, self._auto_commit_s or 1.0)
        except KafkaError as error:
            _log.warning("offsets were not committed, the next attempt will: %s", error)

    async def _commit_quietly(self) -> None:
        """What was handed out, before partitions go; a failure costs duplicates, not records."""
        if self._committing is not None and not self._committing.done():
            await asyncio.gather(self._committing, return_exceptions=True)
        consumed = self._consumed()
        if not consumed or self._coordinator is None:
            return
        try:
            await commit(self._coordinator, consumed, self.group_metadata, min(5.0, self._api_s))
        except KafkaError as error:
            _log.warning("offsets were not committed before partitions were given up: %s", error)

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is."""
        if self._coordinator is None:
            raise IllegalStateError("committed offsets need a group.id")
        wanted = [TopicPartition(*each) for each in partitions]
        found = await fetch_committed(self._coordinator, wanted, self._api_s, stable=self._committed_only)
        return {where: found.get(where) for where in wanted}

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for `send_offsets_to_transaction`."""
        if self._group_id is None:
            raise IllegalStateError("there is no group.id")
        if self._group is None:
            return GroupMetadata(self._group_id)
        return self._group.metadata()

    # Looking around

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after times (ms since the epoch); None where there is none."""
        wanted = {TopicPartition(*where): at for where, at in times.items()}
        found = await list_offsets(self.cluster, wanted, self._api_s, committed=self._committed_only)
        return {where: each if each.offset >= 0 else None for where, each in found.items()}

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """The first offset of partitions."""
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read."""
        return await self._ends(partitions, LATEST)

    async def _ends(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, int]:
        wanted = {TopicPartition(*each): timestamp for each in partitions}
        found = await list_offsets(self.cluster, wanted, self._api_s, committed=self._committed_only)
        return {where: each.offset for where, each in found.items()}

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        await self.cluster.topic(topic, self._api_s)
        return sorted(self.cluster.table.topics[topic].partitions)


class _Host:
    """What a group sees of its consumer."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self.assign = consumer.give
        self.revoke = consumer.revoke
        self.lose = consumer.lose
        self.wake = consumer.wake

    @property
    def topics(self) -> frozenset[str]:
        return self._consumer.topics

    @property
    def owned(self) -> list[TopicPartition]:
        return self._consumer.assigned_now
