"""`AsyncConsumer`: returns records one by one, in lists or in columns; the shell over subscription, fetcher, group."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from klamm.client.argument_checks import check_arguments
from klamm.client.client_settings import consumer_settings
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.assignment import Assignment
from klamm.client.consumer.classic_protocol import ClassicMembership
from klamm.client.consumer.commits import Commits
from klamm.client.consumer.consumer_protocol import ConsumerMembership
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Mode, Subscription
from klamm.client.consumer.cursor import Cursor, PartitionLike
from klamm.client.consumer.fetch_positions import FetchPositions
from klamm.client.consumer.fetcher import Fetcher
from klamm.client.consumer.group import GroupMembership, RebalanceCallback
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.consumer.pending_lookup import PendingLookup
from klamm.client.errors import IllegalStateError, KafkaError, RecordError
from klamm.client.metrics import CoordinatorWork, Metrics
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.serde import LookupNeeded
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

# An iteration has no timeout; after an hour without records it only waits again.
_ITERATE_S = 3600.0
# How long a poll waits without being woken: auto.commit.interval.ms and max.poll.interval.ms pass without an event.
_WAIT_S_MAX = 1.0


@check_arguments
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
        self._callbacks: tuple[RebalanceCallback | None, RebalanceCallback | None, RebalanceCallback | None] = (
            None,
            None,
            None,
        )
        self._cluster: ClusterClient | None = None
        self._fetcher: Fetcher | None = None
        self._positions: FetchPositions | None = None
        self._coordinator: GroupCoordinator | None = None
        self._commits: Commits | None = None
        self._assignment: Assignment | None = None
        self._group: GroupMembership | None = None
        self._wakeup = asyncio.Event()
        self._lookup = PendingLookup()
        self._group_polling = False
        """Whether a poll runs `GroupMembership.poll`, callbacks included."""
        self._closed = False

    # Start and close

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
        self._create_parts(cluster)
        cluster.listeners.append(self._on_metadata)
        cluster.report("consumer", self._collect_metrics)
        self._on_metadata()

    def metrics(self) -> Metrics:
        """Totals and rates of this consumer, by Kafka's metric names."""
        if self._cluster is None:
            raise IllegalStateError("the consumer is not started")
        return self._cluster.metrics()

    def _collect_metrics(self) -> Metrics:
        assert self._cluster is not None
        lags = [self.lag(where) for where in self.subscription_state.assigned]
        return {
            **self._cluster.count_traffic(),
            **self._fetch_buffer.fetched.metrics(),
            **self._work.metrics(),
            "assigned-partitions": len(lags),
            "records-lag-max": max((lag for lag in lags if lag is not None), default=0),
        }

    def _create_parts(self, cluster: ClusterClient) -> None:
        """Create the parts that need a connected cluster."""
        subscription, wake = self.subscription_state, self._wakeup.set
        if self._group_id is not None:
            self._coordinator = GroupCoordinator(cluster, self._group_id)
        self._positions = FetchPositions(cluster, subscription, self._coordinator, wake)
        self._fetcher = Fetcher(cluster, subscription, wake, self._positions.out_of_range, self._fetch_buffer.fetched)
        if self._coordinator is not None:
            # The bound method, not its value: generation and member id change with every rebalance.
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
            # The commit in the background first: it must not overwrite the newer one that leaving makes.
            if self._commits is not None:
                await self._commits.stop()
            if self._group is not None:
                await self._leave(self._group)
            elif self._commits is not None:
                await self._commits.commit_before_revoke()
        finally:
            await self._disconnect()

    async def leave_group(self, timeout_s: float) -> None:
        """Leave without a commit or callbacks, when the program exits; TimeoutError after `timeout_s`.

        Without it the group would wait session.timeout.ms before other members get the partitions.
        """
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
        """Mark the consumer as closed; False if it was closed before or never started."""
        if self._closed:
            return False
        self._closed = True
        # A poll that waits in another task returns None instead of reading from a closed cluster.
        self._wakeup.set()
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
        # In this order: once the member has left, the coordinator refuses its commit.
        try:
            await self._assignment.revoke(self._assignment.owned)
        finally:
            await group.leave()

    @property
    def cluster(self) -> ClusterClient:
        """The connected cluster; IllegalStateError when not started or closed."""
        if self._cluster is None or self._closed:
            raise IllegalStateError("the consumer is not started or already closed")
        return self._cluster

    def _wanted_topics(self) -> set[str]:
        return set(self.subscription_state.topics) | {partition.topic for partition in self.subscription_state.assigned}

    def _on_metadata(self) -> None:
        """Match the pattern against new metadata, and pass the change on to the membership."""
        if self._cluster is None:
            return
        subscription = self.subscription_state
        if subscription.mode is Mode.PATTERN and self._cluster.table.topics:
            hidden = self.settings["exclude.internal.topics"]
            names = [topic.name for topic in self._cluster.table.topics.values() if not (hidden and topic.internal)]
            if subscription.match(names) and self._group is not None:
                self._group.rejoin()
        if self._group is not None:
            self._group.on_metadata_changed()
        self._wakeup.set()

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read topics, or all whose whole name a compiled pattern matches, shared with the group.

        The callbacks, plain or async, get a list of partitions and run during a poll: after partitions were assigned,
        before they are revoked, and when they were lost (`on_revoke` unless `on_lost` is given).
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

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read exactly these partitions, without group membership; offsets may still be committed for group.id."""
        self.subscription_state.assign_manually(TopicPartition(*partition) for partition in partitions)
        self._fetch_buffer.forget()
        if self._cluster is not None:
            self._cluster.wanted |= self._wanted_topics()
            self._cluster.request_update()
            assert self._fetcher is not None
            self._fetcher.wake()

    async def unsubscribe(self) -> None:
        """Read nothing any more; leaves the group."""
        # Taken out first: a metadata update during the leave must not make the old membership rejoin.
        group, self._group = self._group, None
        if group is not None:
            await self._leave(group)
        self._fetch_buffer.forget()
        self.subscription_state.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """The subscribed topics; with a pattern, those that it matches now."""
        return self.subscription_state.topics

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads now."""
        return set(self.subscription_state.assigned)

    # Reading

    async def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, at least one unless `timeout_s` passes; at most max.poll.records.

        Keeps group membership alive and commits the positions of earlier polls (with enable.auto.commit).
        """
        return await self._until(lambda: self._fetch_buffer.collect(max_records) or None, timeout_s) or []

    async def poll_arrow(self, timeout_s: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """As `poll`, in columns: a pyarrow.RecordBatch decoded without an object per record; empty after `timeout_s`.

        Whole batches are returned, so there may be more rows than `max_records`; without it, all that is buffered.
        Deserializers of a schema registry make typed columns; then a table has rows of one topic. Others are not used.
        """
        from klamm.client.columns import empty_batch  # noqa: PLC0415 - pyarrow is an extra
        from klamm.client.consumer.tables import Tables  # noqa: PLC0415
        from klamm.client.consumer.typed_columns import TypedColumns  # noqa: PLC0415

        if self._tables is None:
            self._tables = Tables(self._fetch_buffer, TypedColumns.of(self.settings), self.on_error)
        tables = self._tables
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            takes = await self._until(lambda: tables.take(max_records), max(deadline - loop.time(), 0.0))
            if takes is None:
                return empty_batch()
            assert self._fetcher is not None
            self._fetcher.fetch_now()  # brokers send the next records while these are decoded
            try:
                table = await tables.table(takes)
            except RecordError as error:
                await self._handle_record_error(error)
                continue
            finally:
                self._wakeup.set()  # another poll, in another task, may read these partitions again
            if table is not None:
                return table

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record[K, V]]:
        """Records one by one, without end; the position is behind the last record that was yielded."""
        while not self._closed:
            for record in await self.chunk():
                yield record

    async def chunk(self) -> Iterator[Record[K, V]]:
        """Records of one partition, at least one; those left in the iterator at the next call are returned again."""
        while True:
            batch = await self._until(self._fetch_buffer.chunk, _ITERATE_S)
            if batch is not None:
                return batch
            if self._closed:
                return iter(())

    async def _until(self, take: Callable[[], T | None], timeout_s: float) -> T | None:
        """The first value of `take` that is not None, tried whenever the consumer is woken.

        None after `timeout_s`, or when the consumer was closed meanwhile, possibly by a callback.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self.cluster  # noqa: B018 - raises when not started
        while True:
            # Cleared before the check: what arrives after it sets the event again, so no wake-up is lost.
            self._wakeup.clear()
            try:
                ready = await self._prepare(deadline)
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
                    await self._handle_record_error(error)
                    continue
                except LookupNeeded as needed:
                    if await self._lookup.wait(needed, deadline - loop.time()):
                        continue
                    return None
                if value is not None:
                    assert self._fetcher is not None
                    self._fetcher.wake()
                    return value
            left = deadline - loop.time()
            if left <= 0:
                return None
            if not self._wakeup.is_set():
                await self._wait(left)

    async def _handle_record_error(self, error: RecordError) -> None:
        """Raise, skip or call back for a record that cannot be read, by on.error; returns when it was skipped."""
        if self.on_error == "raise" or error.topic_partition is None:
            raise error
        # Taken before the callback, which may seek: then the skip must not move the position again.
        ticket = self._fetch_buffer.ticket(error)
        if self.on_error != "skip":
            outcome = self.on_error(error)
            if inspect.isawaitable(outcome):
                await outcome
        self._fetch_buffer.skip(error, ticket)

    async def _wait(self, left: float) -> None:
        """Wait to be woken, at most `left` seconds and never longer than _WAIT_S_MAX."""
        timer = asyncio.get_running_loop().call_later(min(left, _WAIT_S_MAX), self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            timer.cancel()

    async def _prepare(self, deadline: float) -> bool:
        """Advance membership, commits and positions until `deadline`; True when records may be returned."""
        cluster = self.cluster
        # Before the commit: positions must not be ahead of the records that the user has got.
        self._fetch_buffer.return_unread()
        subscription = self.subscription_state
        if subscription.mode is Mode.NONE:
            raise IllegalStateError("subscribe or assign before polling")
        if self._commits is not None:
            self._commits.commit_if_due()
        if subscription.mode is not Mode.PARTITIONS:
            if self._group is None:
                self._group = self._join_group(cluster)
            # Another poll runs it, perhaps the one whose callback called this poll: waiting would never end.
            if self._group_polling:
                return bool(subscription.assigned)
            self._group_polling = True
            try:
                if not await self._group.poll(deadline):
                    return bool(subscription.assigned)
            finally:
                self._group_polling = False
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
        """Generation and member id in the group, for `send_offsets_to_transaction` (KIP-447)."""
        if self._group_id is None:
            raise IllegalStateError("there is no group.id")
        if self._group is None:
            return GroupMetadata(self._group_id)
        return self._group.metadata()
