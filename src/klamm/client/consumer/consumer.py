"""`AsyncConsumer`: records out, one by one, in lists or in columns; the shell over subscription, fetcher and group."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from klamm.client.argument_checks import checked
from klamm.client.cluster import ClusterClient
from klamm.client.config import consumer_settings
from klamm.client.consumer.assignment import Assignment
from klamm.client.consumer.classic_protocol import ClassicMembership
from klamm.client.consumer.commits import Commits
from klamm.client.consumer.consumer_protocol import ConsumerMembership
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Mode, Subscription
from klamm.client.consumer.cursor import Cursor, Place
from klamm.client.consumer.fetch_positions import FetchPositions
from klamm.client.consumer.fetcher import Fetcher
from klamm.client.consumer.group import Callback, GroupMembership
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.errors import IllegalStateError, KafkaError, RecordError
from klamm.client.metrics import CoordinatorWork, Metrics
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.types import K, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.consumer.tables import Tables
    from klamm.client.serde import Deserializer
    from klamm.client.settings import ConsumerSettings

T = TypeVar("T")
K1 = TypeVar("K1")
V1 = TypeVar("V1")

_ITERATE_S = 3600.0


@checked
class AsyncConsumer(Cursor, Generic[K, V]):
    """Reads records; on the event loop it was started on.

    async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)
    """

    @overload
    def __init__(
        self: AsyncConsumer[bytes | None, bytes | None], config: None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[bytes | None, V1 | None],
        config: None = None,
        /,
        *,
        value_deserializer: Deserializer[V1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K1 | None, bytes | None],
        config: None = None,
        /,
        *,
        key_deserializer: Deserializer[K1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K1 | None, V1 | None],
        config: None = None,
        /,
        *,
        key_deserializer: Deserializer[K1],
        value_deserializer: Deserializer[V1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[Any, Any],
        config: Mapping[str, Any] | None = None,
        /,
        *,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self.settings = consumer_settings(config, keywords)
        settings = self.settings
        self.subscription_state = Subscription()
        self._fetch_buffer = FetchBuffer(self.subscription_state, settings)
        self._tables: Tables | None = None
        self._work = CoordinatorWork()
        self.on_error: Any = settings["on.error"]
        """raise, skip or a function, plain or async."""
        self._group_id = settings["group.id"]
        self._committed_only = settings["isolation.level"] == "read_committed"
        self._api_s = settings.seconds("default.api.timeout.ms")
        self._callbacks: tuple[Callback | None, Callback | None, Callback | None] = (None, None, None)
        self._cluster: ClusterClient | None = None
        self._fetcher: Fetcher | None = None
        self._positions: FetchPositions | None = None
        self._coordinator: GroupCoordinator | None = None
        self._commits: Commits | None = None
        self._assignment: Assignment | None = None
        self._group: GroupMembership | None = None
        self._news = asyncio.Event()
        self._joining = False
        """Whether a poll does what membership asks for, callbacks included."""
        self._closed = False

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster; BrokersUnreachableError when no broker answers."""
        if self._cluster is not None:
            return
        cluster = ClusterClient(self.settings)
        cluster.auto_create = self.settings["allow.auto.create.topics"]
        cluster.wanted |= self._wanted_topics()
        cluster.all_topics = self.subscription_state.mode is Mode.PATTERN
        await cluster.start()
        self._cluster = cluster
        self._be_ready(cluster)
        cluster.listeners.append(self._learn)
        cluster.report("consumer", self._count)
        self._learn()

    def metrics(self) -> Metrics:
        """What this consumer has done so far, by Kafka's names of metrics."""
        if self._cluster is None:
            raise IllegalStateError("the consumer is not started")
        return self._cluster.metrics()

    def _count(self) -> Metrics:
        assert self._cluster is not None
        lags = [self.lag(where) for where in self.subscription_state.assigned]
        return {
            **self._cluster.count_traffic(),
            **self._fetch_buffer.fetched.metrics(),
            **self._work.metrics(),
            "assigned-partitions": len(lags),
            "records-lag-max": max((lag for lag in lags if lag is not None), default=0),
        }

    def _be_ready(self, cluster: ClusterClient) -> None:
        """Everything that needs a cluster to be there."""
        subscription, wake = self.subscription_state, self._news.set
        if self._group_id is not None:
            self._coordinator = GroupCoordinator(cluster, self._group_id)
        self._positions = FetchPositions(cluster, subscription, self._coordinator, wake)
        self._fetcher = Fetcher(cluster, subscription, wake, self._positions.out_of_range, self._fetch_buffer.fetched)
        if self._coordinator is not None:
            member, work = self.group_metadata, self._work
            self._commits = Commits(self._coordinator, subscription, self.settings, member, work)
            self._assignment = Assignment(
                subscription, self._fetch_buffer, self._commits, self._fetcher.wake, wake, work
            )
            self._assignment.on_assign, self._assignment.on_revoke, self._assignment.on_lost = self._callbacks

    async def close(self) -> None:
        """Commit (with enable.auto.commit), leave the group and the cluster."""
        if not self._begin_closing():
            return
        try:
            if self._commits is not None:
                await self._commits.stop()
            if self._group is not None:
                await self._leave(self._group)
            elif self._commits is not None:
                await self._commits.before_leaving()
        finally:
            await self._disconnect()

    async def leave_group(self, timeout_s: float) -> None:
        """Close without a commit and without callbacks, for a program that ends; TimeoutError after `timeout_s`."""
        if not self._begin_closing():
            return
        try:
            async with asyncio.timeout(timeout_s):
                if self._commits is not None:
                    await self._commits.stop()
                if self._group is not None:
                    await self._group.leave()
        finally:
            await self._disconnect()

    def _begin_closing(self) -> bool:
        """Whether there is anything left to close."""
        if self._closed:
            return False
        self._closed = True
        self._news.set()
        if self._tables is not None:
            self._tables.close()
        return self._cluster is not None

    async def _disconnect(self) -> None:
        assert self._fetcher is not None
        assert self._cluster is not None
        await self._fetcher.stop()
        await self._cluster.close()

    async def _leave(self, group: GroupMembership) -> None:
        assert self._assignment is not None
        try:
            await self._assignment.revoke(self._assignment.owned)
        finally:
            await group.leave()

    @property
    def cluster(self) -> ClusterClient:
        """What is known of the cluster."""
        if self._cluster is None or self._closed:
            raise IllegalStateError("the consumer is not started or already closed")
        return self._cluster

    def _wanted_topics(self) -> set[str]:
        return set(self.subscription_state.topics) | {partition.topic for partition in self.subscription_state.assigned}

    def _learn(self) -> None:
        """Metadata has changed."""
        if self._cluster is None:
            return
        subscription = self.subscription_state
        if subscription.mode is Mode.PATTERN and self._cluster.table.topics:
            hidden = self.settings["exclude.internal.topics"]
            names = [topic.name for topic in self._cluster.table.topics.values() if not (hidden and topic.internal)]
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
        """Read topics, or all whose whole name a compiled pattern matches, shared with the group.

        The callbacks, plain or async, get a list of partitions and are called while polling: after partitions came,
        before they go, and when they are gone already (`on_revoke` unless `on_lost` is given).
        """
        if self._group_id is None:
            raise IllegalStateError("subscribing needs a group.id; assign() reads partitions without a group")
        if isinstance(topics, re.Pattern):
            self.subscription_state.subscribe_pattern(topics)
        else:
            self.subscription_state.subscribe(topics)
        self._callbacks = (on_assign, on_revoke, on_lost)
        if self._assignment is not None:
            self._assignment.on_assign, self._assignment.on_revoke, self._assignment.on_lost = self._callbacks
        if self._cluster is not None:
            self._cluster.all_topics = self.subscription_state.mode is Mode.PATTERN
            self._cluster.wanted |= self.subscription_state.topics
            self._cluster.request_update()
        if self._group is not None:
            self._group.rejoin()

    def assign(self, partitions: Iterable[Place]) -> None:
        """Read exactly these partitions, without a group's say; offsets may still be committed for group.id."""
        self.subscription_state.assign_manually(TopicPartition(*partition) for partition in partitions)
        self._fetch_buffer.forget()
        if self._cluster is not None:
            self._cluster.wanted |= self._wanted_topics()
            self._cluster.request_update()
            assert self._fetcher is not None
            self._fetcher.wake()

    async def unsubscribe(self) -> None:
        """Read nothing any more; leaves the group."""
        group, self._group = self._group, None
        if group is not None:
            await self._leave(group)
        self._fetch_buffer.forget()
        self.subscription_state.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to, those a pattern matches now included."""
        return self.subscription_state.topics

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads now."""
        return set(self.subscription_state.assigned)

    # Reading

    async def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, at least one unless `timeout_s` passes; at most max.poll.records.

        Keeps the membership of the group alive and commits what was returned before (with enable.auto.commit).
        """
        return await self._until(lambda: self._fetch_buffer.collect(max_records) or None, timeout_s) or []

    async def poll_arrow(self, timeout_s: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """As `poll`, in columns: a pyarrow.RecordBatch decoded without an object per record; empty after `timeout_s`.

        Whole batches are returned, so there may be somewhat more than `max_records`; without it, all that lies ready.
        """
        from klamm.client.columns import empty_batch  # noqa: PLC0415 - pyarrow is an extra
        from klamm.client.consumer.tables import Tables  # noqa: PLC0415

        if self._tables is None:
            self._tables = Tables(self._fetch_buffer)
        tables = self._tables
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            takes = await self._until(lambda: tables.take(max_records), max(deadline - loop.time(), 0.0))
            if takes is None:
                return empty_batch()
            assert self._fetcher is not None
            self._fetcher.ask()  # more comes while this is decoded
            try:
                table = await tables.table(takes)
            except RecordError as error:
                await self._pass_over(error)
                continue
            finally:
                self._news.set()  # another poll may have these partitions now
            if table is not None:
                return table

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record[K, V]]:
        """Records one by one, for ever; the position follows what was handed out."""
        while not self._closed:
            for record in await self.chunk():
                yield record

    async def chunk(self) -> Iterator[Record[K, V]]:
        """Some records of one partition, waited for; those left in the iterator at the next call are given back."""
        while True:
            batch = await self._until(self._fetch_buffer.chunk, _ITERATE_S)
            if batch is not None:
                return batch
            if self._closed:
                return iter(())

    async def _until(self, take: Callable[[], T | None], timeout_s: float) -> T | None:
        """What `take` finds, tried whenever there is news.

        None when there was nothing before `timeout_s`, or when the consumer was closed meanwhile, as a callback may.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self.cluster  # noqa: B018 - says so when there is none
        while True:
            self._news.clear()
            try:
                ready = await self._ready(deadline)
            except KafkaError:
                if not self._closed:
                    raise
                ready = False
            if self._closed:
                return None
            if ready:
                try:
                    value = take()
                except RecordError as error:
                    await self._pass_over(error)
                    continue
                if value is not None:
                    assert self._fetcher is not None
                    self._fetcher.wake()
                    return value
            left = deadline - loop.time()
            if left <= 0:
                return None
            if not self._news.is_set():
                await self._wait(left)

    async def _pass_over(self, error: RecordError) -> None:
        """Do with a record that cannot be read as on.error says; returns when it was skipped."""
        if self.on_error == "raise" or error.topic_partition is None:
            raise error
        ticket = self._fetch_buffer.ticket(error)
        if self.on_error != "skip":
            outcome = self.on_error(error)
            if inspect.isawaitable(outcome):
                await outcome
        self._fetch_buffer.skip(error, ticket)

    async def _wait(self, left: float) -> None:
        """For news, but look again now and then: commits and membership have their times too."""
        alarm = asyncio.get_running_loop().call_later(min(left, 1.0), self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()

    async def _ready(self, deadline: float) -> bool:
        """Membership, commits and positions, as far as they get before `deadline`."""
        cluster = self.cluster
        self._fetch_buffer.settle()
        subscription = self.subscription_state
        if subscription.mode is Mode.NONE:
            raise IllegalStateError("subscribe or assign before polling")
        if self._commits is not None:
            self._commits.due()
        if subscription.mode is not Mode.PARTITIONS:
            if self._group is None:
                self._group = self._join_group(cluster)
            if self._joining:  # another poll does it, perhaps the one whose callback this is
                return bool(subscription.assigned)
            self._joining = True
            try:
                if not await self._group.poll(deadline):
                    return bool(subscription.assigned)
            finally:
                self._joining = False
        assert self._positions is not None
        await self._positions.find(deadline)
        assert self._fetcher is not None
        self._fetcher.wake()
        return True

    def _join_group(self, cluster: ClusterClient) -> GroupMembership:
        assert self._coordinator is not None
        assert self._assignment is not None
        if self.settings["group.protocol"] == "consumer":
            return ConsumerMembership(cluster, self._coordinator, self._assignment)
        return ClassicMembership(cluster, self._coordinator, self._assignment)

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for `send_offsets_to_transaction`."""
        if self._group_id is None:
            raise IllegalStateError("there is no group.id")
        if self._group is None:
            return GroupMetadata(self._group_id)
        return self._group.metadata()
