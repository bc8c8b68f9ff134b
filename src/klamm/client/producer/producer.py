"""`AsyncProducer`: records in, promises out; the shell over accumulator, sender and transactions."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from klamm.client.cluster import Cluster
from klamm.client.config import producer_settings
from klamm.client.errors import (
    BufferFullError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from klamm.client.producer.accumulator import Accumulator, PartitionQueue
from klamm.client.producer.batch import RECORD_OVERHEAD, Batch, Delivery
from klamm.client.producer.coordinator import Coordinator, GroupMetadata
from klamm.client.producer.identity import Identity
from klamm.client.producer.partitioners import Sticky, partitioner
from klamm.client.producer.sender import Sender
from klamm.client.producer.transactions import Transactions, TransactionStatus
from klamm.client.serde import serializer
from klamm.client.types import Headers, OffsetAndMetadata, RecordMetadata, TopicPartition
from klamm.model.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

S = TransactionStatus
_LONG_S = 3600.0 * 24 * 365


class _Topic:
    """What is needed to place a record of a topic."""

    __slots__ = ("queues", "sticky")

    def __init__(self, queues: list[PartitionQueue], sticky: Sticky) -> None:
        self.queues = queues
        self.sticky = sticky


class AsyncProducer:
    """Sends records; on the event loop it was started on.

    async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
        delivery = await producer.send("orders", b"value", key=b"key")
        metadata = await delivery

    `send` waits only while buffers are full; what it returns can be awaited, or left alone: `flush` and `close` wait
    for everything.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self.settings = producer_settings(config, keywords)
        settings = self.settings
        self._chance = random.Random()  # noqa: S311 - no secret
        self._key_serializer = serializer(settings["key.serializer"], "key.serializer")
        self._value_serializer = serializer(settings["value.serializer"], "value.serializer")
        self._partitioner = partitioner(
            settings["partitioner"], self._chance, ignore_keys=settings["partitioner.ignore.keys"]
        )
        self._adaptive: bool = settings["partitioner.adaptive.partitioning.enable"]
        self._request_size = settings.number("max.request.size")
        self._block_s = settings.seconds("max.block.ms")
        self._accumulator = Accumulator(
            settings.number("batch.size"), settings.seconds("linger.ms"), settings.number("buffer.memory")
        )
        transactional_id = settings["transactional.id"]
        self._transactions = None if transactional_id is None else Transactions(transactional_id)
        self._identity = Identity() if settings["enable.idempotence"] or transactional_id is not None else None
        self._topics: dict[str, _Topic] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._coordinator: Coordinator | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._guard: AbstractContextManager[Any] = nullcontext()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_at: Callable[[float], None] = lambda _when: None
        """Has the sender look at a time; the blocking face calls it from other threads."""
        self._closed = False

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(None if kind is None else 0)

    async def start(self) -> None:
        """Reach the cluster; BrokersUnreachableError when nobody answers."""
        if self._cluster is not None:
            return
        cluster = Cluster(self.settings)
        cluster.auto_create = self.settings["allow.auto.create.topics"]
        try:
            await cluster.start()
        except BaseException:
            await cluster.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._cluster = cluster
        self._sender = Sender(
            cluster,
            self._accumulator,
            self._identity,
            self._transactions,
            self._guard,
            self._prepare,
            self._let_in,
        )
        if self._identity is not None:
            self._coordinator = Coordinator(cluster, self._identity, self._transactions)
        self._wake_at = self._sender.wake_at
        cluster.listeners.append(self._learn)

    async def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, for at most `timeout_s`, and leave; what is left fails. An open transaction aborts."""
        if self._closed:
            return
        self._closed = True
        if self._cluster is None:
            return
        sender = self._sender
        assert sender is not None
        transactions = self._transactions
        try:
            if transactions is not None and transactions.status in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
                with suppress(KafkaError):
                    await self._end(commit=False, timeout_s=min(timeout_s or 5.0, self._block_s) or 1.0)
            elif timeout_s is None or timeout_s > 0:
                with suppress(KafkaError):
                    await self.flush(timeout_s)
        finally:
            await sender.stop()
            if self._preparing is not None:
                self._preparing.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await self._preparing
            left = IllegalStateError("the producer was closed before the record was delivered")
            for batch in list(self._accumulator.incomplete):
                self._accumulator.release(batch)
                batch.fail(left)
            self._let_in()
            await self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """What is known of the cluster."""
        if self._cluster is None or self._closed:
            raise IllegalStateError("the producer is not started or already closed")
        return self._cluster

    # Records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery:
        """Hand over a record; waits while buffer.memory is full, and for metadata of a topic not seen before.

        BufferFullError or KafkaTimeoutError after max.block.ms, RecordTooLargeError at once.
        """
        if self._key_serializer is not None:
            key = self._key_serializer(topic, key)
        if self._value_serializer is not None:
            value = self._value_serializer(topic, value)
        delivery = self.append(topic, value, key, partition, timestamp, headers)
        if delivery is None:
            delivery = await self._send_slowly(topic, value, key, partition, timestamp, headers)
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        if self._accumulator.filled:
            self._accumulator.filled = False
            assert self._sender is not None
            self._sender.wake()
            await asyncio.sleep(0)  # a loop of sends must not keep the sender from running
        return delivery

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordMetadata:
        """Hand over a record and wait until it is stored."""
        return await (await self.send(topic, value, key, **options))

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers | None,
    ) -> Delivery | None:
        """Put bytes into the accumulator if that can be done now; None when it means waiting."""
        found = self._topics.get(topic)
        if found is None or self._closed:
            return None
        if self._transactions is not None:
            self._transactions.require(S.IN_TRANSACTION)
        size = RECORD_OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                value = _as_bytes(value, "value")
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes(key, "key")
            size += len(key)
        pairs: Any = ()
        if headers:
            pairs, more = _pairs(headers)
            size += more
        accumulator = self._accumulator
        if accumulator.used + size > accumulator.memory_bytes and (accumulator.used or size > accumulator.memory_bytes):
            return None
        if size > self._request_size:
            raise RecordTooLargeError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes is larger than max.request.size={self._request_size}",
            )
        queues = found.queues
        if partition is None:
            index = self._partitioner(topic, key, len(queues))
            if index < 0:
                index = self._sticky(found, size)
        elif 0 <= partition < len(queues):
            index = partition
        else:
            return None
        now = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        queue = queues[index]
        batch = queue.open
        if batch is None or batch.size + size > accumulator.batch_size:
            batch = self._roll(queue)
        rows = batch.rows
        rows.append((now, key, value, pairs))
        batch.size += size
        accumulator.used += size
        return Delivery(batch, len(rows) - 1, now)

    def _sticky(self, found: _Topic, size: int) -> int:
        sticky = found.sticky
        if sticky.partition < 0 or sticky.partition >= len(found.queues) or sticky.took(size):
            sticky.switch(len(found.queues), self._loads(found) if self._adaptive else None)
        return sticky.partition

    def _loads(self, found: _Topic) -> list[int]:
        assert self._cluster is not None
        leader = self._cluster.table.leader
        assert self._loop is not None
        slow_s = self.settings.seconds("partitioner.availability.timeout.ms")
        before = self._loop.time() - slow_s if slow_s else None
        return [
            -1 if leader(queue.where) < 0 or (before is not None and queue.stuck_since(before)) else len(queue)
            for queue in found.queues
        ]

    def _roll(self, queue: PartitionQueue) -> Batch:
        assert self._loop is not None
        batch = self._accumulator.roll(queue, self._loop.time())
        self._wake_at(batch.created + self._accumulator.linger_s)
        return batch

    async def _send_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers | None,
        append: Callable[..., Delivery | None] | None = None,
    ) -> Delivery:
        """The record needs metadata or room first."""
        append = append or self.append
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._block_s
        while True:
            cluster = self.cluster
            if topic not in self._topics:
                await cluster.topic(topic, max(deadline - loop.time(), 0))
                self._learn_topic(topic)
            found = self._topics[topic]
            if partition is not None and not 0 <= partition < len(found.queues):
                await self._more_partitions(topic, partition, deadline)
            delivery = append(topic, value, key, partition, timestamp, headers)
            if delivery is not None:
                return delivery
            await self.room(deadline)

    async def _more_partitions(self, topic: str, partition: int, deadline: float) -> None:
        """A partition nobody knows yet may have been added a moment ago."""
        await self.cluster.refresh([topic])
        self._learn_topic(topic)
        count = len(self._topics[topic].queues)
        if not 0 <= partition < count:
            loop = asyncio.get_running_loop()
            if loop.time() >= deadline or partition < 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has {count} partitions, none of number {partition}"
                )
            raise KafkaTimeoutError(f"{topic} has {count} partitions, none of number {partition}")

    async def room(self, deadline: float) -> None:
        """Wait until memory was freed; BufferFullError when the time is over."""
        loop = asyncio.get_running_loop()
        assert self._sender is not None
        self._accumulator.flushing += 1  # nobody may linger while others cannot get in
        self._sender.wake()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise BufferFullError(
                f"buffer.memory={self._accumulator.memory_bytes} stayed full for max.block.ms={self._block_s * 1000:g}"
            ) from None
        finally:
            self._accumulator.flushing -= 1
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _let_in(self) -> None:
        """Memory was freed: those who wait try again."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _learn(self) -> None:
        """Metadata has changed: topics may have grown."""
        assert self._cluster is not None
        for name, found in self._topics.items():
            if self._cluster.table.partition_count(name) > len(found.queues):
                self._learn_topic(name)

    def _learn_topic(self, topic: str) -> None:
        assert self._cluster is not None
        count = self._cluster.table.partition_count(topic)
        queues = [self._accumulator.queue(TopicPartition(topic, index)) for index in range(count)]
        known = self._topics.get(topic)
        if known is None:
            sticky = Sticky(self.settings.number("batch.size"), self._chance)
            self._topics[topic] = _Topic(queues, sticky)
        elif count > len(known.queues):
            known.queues = queues

    async def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key: str | None = "key",
        value: str | None = "value",
        headers: str | None = "headers",
        timestamp: str | None = "timestamp",
        partition: int | str | None = None,
    ) -> list[Delivery]:
        """Send every row of a table; the names say which columns are key, value and so on.

        A column that is not there is left out (key, headers, timestamp, partition). `partition` is a number for all
        rows or a column's name. Returns a promise per batch, that of its last record.
        """
        from klamm.client.columns import send_table  # noqa: PLC0415 - pyarrow is an extra

        return await send_table(
            self, topic, table, key=key, value=value, headers=headers, timestamp=timestamp, partition=partition
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and wait until it is known what became of it; failures are told by the deliveries."""
        assert self._sender is not None
        with self._guard:
            waiting = list(self._accumulator.incomplete)
        if not waiting:
            return
        self._accumulator.flushing += 1
        self._sender.wake()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in waiting:
                    if not batch.done:
                        await _finished(batch)
        except TimeoutError:
            raise KafkaTimeoutError(f"not everything was delivered within {timeout_s:g} s") from None
        finally:
            self._accumulator.flushing -= 1

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, waiting for metadata if need be."""
        await self.cluster.topic(topic, self._block_s)
        return sorted(self.cluster.table.topics[topic].partitions)

    # Identity and transactions

    def _prepare(self) -> None:
        """The sender needs an id, or partitions announced."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.create_task(self._prepare_now(), name="klamm producer preparing")

    async def _prepare_now(self) -> None:
        assert self._sender is not None
        assert self._coordinator is not None
        assert self._identity is not None
        try:
            if self._transactions is None:
                given = await self._coordinator.get_id(_LONG_S)
                with self._guard:
                    self._identity.given(*given, self._accumulator.queues.values())
            elif self._transactions.unannounced:
                await self._coordinator.announce(frozenset(self._transactions.unannounced), self._block_s)
        except KafkaError as error:
            if self._transactions is not None:
                self._coordinator.failed(error)
            else:
                with self._guard:
                    self._accumulator.fail_waiting(error)
                self._let_in()
        self._sender.wake()

    def _need_transactions(self) -> Transactions:
        if self._transactions is None:
            raise IllegalStateError("transactions need a transactional.id")
        if self._cluster is None or self._closed:
            raise IllegalStateError("the producer is not started or already closed")
        return self._transactions

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id: older producers of it are fenced, what they left open is ended."""
        transactions = self._need_transactions()
        transactions.require(S.UNINITIALIZED)
        transactions.move(S.INITIALIZING)
        assert self._coordinator is not None
        assert self._identity is not None
        try:
            given = await self._coordinator.get_id(self._block_s if timeout_s is None else timeout_s)
        except KafkaError as error:
            if error.retriable:
                transactions.move(S.UNINITIALIZED)
            else:
                transactions.fatal(error)
            raise
        except BaseException:
            transactions.move(S.UNINITIALIZED)
            raise
        self._identity.given(*given, self._accumulator.queues.values())
        transactions.move(S.READY)

    def begin_transaction(self) -> None:
        """Begin: what is sent from now on counts when it is committed."""
        transactions = self._need_transactions()
        transactions.require(S.READY)
        transactions.move(S.IN_TRANSACTION)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction; `group` is `consumer.group_metadata()`."""
        transactions = self._need_transactions()
        transactions.require(S.IN_TRANSACTION)
        if not offsets:
            return
        assert self._coordinator is not None
        wanted = {
            TopicPartition(*where): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            for where, each in offsets.items()
        }
        member = GroupMetadata(group) if isinstance(group, str) else group
        try:
            await self._coordinator.send_offsets(wanted, member, self._block_s)
        except KafkaError as error:
            raise self._coordinator.failed(error) from None

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Deliver everything and commit; when any of it failed, TransactionAbortableError: then abort."""
        transactions = self._need_transactions()
        transactions.require(S.IN_TRANSACTION)
        await self._end(commit=True, timeout_s=self._block_s if timeout_s is None else timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """End the transaction as if it had not been; its records are never seen by those who read committed."""
        transactions = self._need_transactions()
        transactions.require(S.IN_TRANSACTION, S.ABORTABLE_ERROR)
        await self._end(commit=False, timeout_s=self._block_s if timeout_s is None else timeout_s)

    async def _end(self, *, commit: bool, timeout_s: float) -> None:
        transactions, coordinator, identity = self._transactions, self._coordinator, self._identity
        assert transactions is not None
        assert coordinator is not None
        assert identity is not None
        if commit:
            transactions.move(S.COMMITTING)
            try:
                await self.flush(timeout_s)
            except BaseException:
                transactions.fail(KafkaTimeoutError("not everything was delivered in time"))
                raise
            if transactions.failed is not None:
                if transactions.status is S.FATAL_ERROR:
                    raise transactions.failed
                raise TransactionAbortableError(
                    ErrorCode.TRANSACTION_ABORTABLE, f"the transaction can only be aborted: {transactions.failed}"
                ) from transactions.failed
        else:
            transactions.move(S.ABORTING)
            dropped = TransactionAbortableError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")
            with self._guard:
                self._accumulator.fail_waiting(dropped)
            for batch in list(self._accumulator.incomplete):
                await _finished(batch)
        try:
            given = await coordinator.end(timeout_s, commit=commit) if transactions.touched else None
            if given is None and identity.bump_needed:
                given = await coordinator.get_id(timeout_s, keep=True)
        except KafkaError as error:
            if isinstance(error, ProducerFencedError) or not error.retriable:
                transactions.fatal(error) if not commit else transactions.fail(error)
                if transactions.status not in (S.FATAL_ERROR, S.ABORTABLE_ERROR):
                    transactions.fatal(error)
            else:  # nobody knows how it ended; only the next init_transactions of the id can tell
                transactions.fatal(error)
            raise
        if given is not None:
            identity.given(*given, self._accumulator.queues.values())
        transactions.move(S.READY)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, aborted when it raises."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if self._transactions is not None and self._transactions.status in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction()
        except TransactionAbortableError:
            await self.abort_transaction()
            raise


async def _finished(batch: Batch) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not waiter.done():
            waiter.set_result(None)

    batch.when_done(done)
    await waiter


def _as_bytes(data: Any, what: str) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"a {what} is bytes or None, not {type(data).__name__}; {what}.serializer can make bytes of others")


def _pairs(headers: Headers) -> tuple[list[tuple[str | bytes, bytes | None]], int]:
    """Headers as the kernels take them, and the most bytes they may need."""
    pairs: list[tuple[str | bytes, bytes | None]] = []
    size = 0
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in items:
        if not isinstance(name, str | bytes):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        data = None if value is None else _as_bytes(value, "header")
        size += 4 * len(name) + len(data or b"") + 10
        pairs.append((name, data))
    return pairs, size
