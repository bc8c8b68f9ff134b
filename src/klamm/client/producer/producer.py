"""`AsyncProducer`: takes records, returns deliveries; the shell over accumulator, sender and session."""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from klamm.client.argument_checks import check_arguments
from klamm.client.at_exit import report_unsent
from klamm.client.client_settings import producer_settings
from klamm.client.cluster import ClusterClient
from klamm.client.core.arguments import function
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from klamm.client.metrics import Metrics
from klamm.client.producer.backpressure import Backpressure
from klamm.client.producer.batch import Batch, Delivery
from klamm.client.producer.coordinator import Coordinator, GroupMetadata
from klamm.client.producer.core.accumulator import Accumulator, PartitionQueue
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.partitioners import partitioner
from klamm.client.producer.core.rows import as_bytes, as_timestamp, header_pairs
from klamm.client.producer.core.topics import ProducerTopics
from klamm.client.producer.core.transactions import Transactions, TransactionStatus
from klamm.client.producer.prepared_transaction import PreparedTransaction
from klamm.client.producer.sender import Sender
from klamm.client.producer.session import Session
from klamm.client.producer.waiting_send import send_when_possible
from klamm.client.serde import LookupNeeded, RecordSerializers, serializer
from klamm.client.types import Headers, OffsetAndMetadata, RecordMetadata, TopicPartition
from klamm.model.errors import ErrorCode
from klamm.records.batch import RECORD_OVERHEAD

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.settings import ProducerSettings


_LATEST_MS = (1 << 63) - 1
_POOLED_BUFFERS = 6
"""Buffers of encoded tables that are kept for reuse, including those that a socket has not taken yet."""
_BURST_BYTES, _BURST_BATCHES = 1 << 16, 16
"""How much a loop of sends may fill before the sender runs, when it waits for responses anyway."""


def _wake_nothing(when: float) -> None:
    """Used in place of the sender until `start`."""


@check_arguments
class AsyncProducer:
    """Sends records; on the event loop it was started on.

    async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
        delivery = await producer.send("orders", b"value", key=b"key")
        metadata = await delivery

    `send` waits only while buffer.memory is full; the delivery that it returns need not be awaited: `flush` and `close`
    wait for all records.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ProducerSettings]) -> None:
        self.settings = values = producer_settings(config, settings)
        chance = random.Random()  # noqa: S311 - no secret
        # Attributes without an underscore are for the client's own modules (tables, blocking_producer), not for users.
        key_serializer = serializer(values["key.serializer"], "key.serializer")
        value_serializer = serializer(values["value.serializer"], "value.serializer")
        self.serializers: RecordSerializers | None = None
        if key_serializer is not None or value_serializer is not None:
            self.serializers = RecordSerializers(key_serializer, value_serializer)
        self.partitioner = partitioner(values["partitioner"], chance, ignore_keys=values["partitioner.ignore.keys"])
        self.request_size = values.number("max.request.size")
        self._largest = min(self.request_size, values.number("buffer.memory"))
        self.block_s = values.seconds("max.block.ms")
        self.accumulator = Accumulator(
            values.number("batch.size"), values.seconds("linger.ms"), values.number("buffer.memory")
        )
        transactional_id = values["transactional.id"]
        self.transactions = None if transactional_id is None else Transactions(transactional_id)
        self._identity = ProducerIdentity() if values["enable.idempotence"] or transactional_id is not None else None
        self.topics = ProducerTopics(self.accumulator, values, chance)
        self.known_topics = self.topics.known
        self.backpressure = Backpressure(self.accumulator)
        self.buffer_pool = BufferPool(_POOLED_BUFFERS)
        self._cluster: ClusterClient | None = None
        self.sender: Sender | None = None
        self.session: Session | None = None
        self.guard: AbstractContextManager[Any] = nullcontext()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.wake_at: Callable[[float], None] = _wake_nothing
        """Wakes the sender at a time; the blocking producer replaces it, since it appends on other threads."""
        self.closed = False
        self._burst = min(max(_BURST_BYTES // max(self.accumulator.batch_size, 1), 1), _BURST_BATCHES)
        self._unsent_batches = 0
        """Batches filled since the sender last ran."""
        # Of the accumulator, not of self: a finalizer with a reference to its object would keep it alive.
        self.unclosed = weakref.finalize(self, report_unsent, self.accumulator)

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
        await cluster.start()
        self._loop = asyncio.get_running_loop()
        self._cluster = cluster
        self.topics.use_table(cluster.table, self._loop.time)
        wake_waiters = self.backpressure.wake_waiters
        if self._identity is not None:
            coordinator = Coordinator(cluster, self._identity, self.transactions)
            self.session = Session(
                self._identity,
                self.transactions,
                coordinator,
                self.accumulator,
                self.guard,
                self.flush,
                wake_waiters,
                self.block_s,
            )
        self.sender = Sender(
            cluster, self.accumulator, self._identity, self.transactions, self.guard, self.session, wake_waiters
        )
        self.wake_at = self.sender.wake_at
        cluster.listeners.append(self.topics.update_all)
        cluster.report("producer", self._collect_metrics)

    def metrics(self) -> Metrics:
        """Totals and rates of this producer, by Kafka's metric names."""
        if self._cluster is None or self.sender is None:
            raise IllegalStateError("the producer is not started")
        return self._cluster.metrics()

    def _collect_metrics(self) -> Metrics:
        assert self._cluster is not None
        assert self.sender is not None
        accumulator = self.accumulator
        return {
            **self._cluster.count_traffic(),
            **self.sender.sent.metrics(),
            "requests-in-flight": self.sender.in_flight,
            "buffer-total-bytes": accumulator.memory_bytes,
            "buffer-available-bytes": max(accumulator.memory_bytes - accumulator.used, 0),
        }

    async def close(self, timeout_s: float | None = None) -> None:
        """Deliver all records, for at most `timeout_s`, and disconnect; the rest fails. Aborts an open transaction."""
        if self.closed:
            return
        self.closed = True
        self.unclosed.detach()
        if self._cluster is None:
            return
        sender, session = self.sender, self.session
        assert sender is not None
        try:
            if session is not None and session.open:
                await session.abort_quietly(timeout_s)
            elif timeout_s is None or timeout_s > 0:
                with suppress(KafkaError):
                    await self.flush(timeout_s)
        finally:
            await sender.stop()
            if session is not None:
                await session.stop()
            # After the sender stopped, so that nothing is sent whose delivery has failed.
            left = IllegalStateError("the producer was closed before the record was delivered")
            for batch in list(self.accumulator.incomplete):
                self.accumulator.release(batch)
                batch.fail(left)
            self.backpressure.wake_all()
            await self._cluster.close()

    @property
    def cluster(self) -> ClusterClient:
        """The connected cluster; IllegalStateError when not started or closed."""
        if self._cluster is None or self.closed:
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
        """Buffer a record; waits while buffer.memory is full, and for metadata of a topic that is new to it.

        BufferFullError or KafkaTimeoutError after max.block.ms, RecordTooLargeError at once.
        """
        if on_delivery is not None:
            function(on_delivery, "on_delivery of send")
        if self.serializers is not None:
            try:
                value, key, headers = self.serializers(topic, value, key, headers)
            except LookupNeeded:
                value, key, headers = await self.serializers.wait_async(topic, value, key, headers)
        delivery = self.append(topic, value, key, partition, timestamp, headers)
        if delivery is None:
            delivery = await send_when_possible(self, self.append, topic, value, key, partition, timestamp, headers)
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        if self.accumulator.filled:
            self.accumulator.filled = False
            await self._yield_to_sender()
        return delivery

    async def _yield_to_sender(self) -> None:
        """Let the sender run when a batch is full: a loop of sends that never waits would keep it from running.

        Not for every small batch while requests are in flight: several go into one request.
        """
        assert self.sender is not None
        self.sender.wake()
        self._unsent_batches += 1
        if self._unsent_batches >= self._burst or not self.sender.in_flight:
            self._unsent_batches = 0
            await asyncio.sleep(0)

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordMetadata:
        """Send a record and wait until it is delivered."""
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
        """Append a record if that is possible without waiting; None otherwise."""
        # Called for every record: locals, exact type checks and no helper functions, for speed.
        try:
            topic_queues = self.known_topics.get(topic)
        except TypeError:  # not hashable, so no name: send_when_possible raises the error that says so
            return None
        if topic_queues is None or self.closed:
            return None
        if self.transactions is not None:
            self.transactions.require(TransactionStatus.IN_TRANSACTION)
        size = RECORD_OVERHEAD
        if value is not None:
            if type(value) is not bytes:
                value = as_bytes(value, "value")
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        pairs: Any = ()
        if headers:
            pairs, more = header_pairs(headers)
            size += more
        accumulator = self.accumulator
        if size > self._largest:
            self._too_large(size)
        # `size` is an upper bound; with nothing buffered any record is accepted, or it would wait for ever.
        if accumulator.used + size > accumulator.memory_bytes and accumulator.used:
            return None
        queues = topic_queues.queues
        if partition is None:
            index = self.partitioner(topic, key, len(queues))
            if index < 0:
                index = self.topics.sticky(topic_queues, size)
        elif type(partition) is int and 0 <= partition < len(queues):
            index = partition
        else:  # perhaps added just now: send_when_possible refreshes metadata, or raises
            return None
        if timestamp is None:
            now = time.time_ns() // 1_000_000
        elif type(timestamp) is int and 0 <= timestamp <= _LATEST_MS:
            now = timestamp
        else:
            now = as_timestamp(timestamp)
        queue = queues[index]
        batch = queue.open
        if batch is None or batch.size + size > accumulator.batch_size:
            batch = self._roll(queue)
        rows = batch.rows
        rows.append((now, key, value, pairs))
        batch.size += size
        accumulator.used += size
        return Delivery(batch, len(rows) - 1, now)

    def _too_large(self, size: int) -> None:
        name = "max.request.size" if size > self.request_size else "buffer.memory"
        raise RecordTooLargeError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes is larger than {name}={self.settings[name]}"
        )

    def _roll(self, queue: PartitionQueue) -> Batch:
        assert self._loop is not None
        batch = self.accumulator.roll(queue, self._loop.time())
        self.wake_at(batch.created + self.accumulator.linger_s)
        return batch

    async def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | Any,
        *,
        key: str | None = "key",
        value: str | None = "value",
        headers: str | None = "headers",
        timestamp: str | None = "timestamp",
        partition: int | str | None = None,
    ) -> list[Delivery]:
        """Send every row of a table; the arguments name the columns of key, value and so on.

        `value="json"` sends rows as JSON objects: all columns but headers, timestamp, partition and one named key.

        Takes a table, a batch, a DataFrame, or any object with Arrow's C interface. Only key, headers and timestamp may
        be absent, under these names; `partition` is a number for all rows or the name of a column. The whole table is
        validated before the first row is buffered; an error after that has the deliveries of the buffered batches as
        its `deliveries`. Returns a delivery per batch, that of its last record. The table's buffers are read when
        batches are sent: do not write into such a buffer before the deliveries are done.
        """
        from klamm.client.producer.tables import send_table  # noqa: PLC0415 - pyarrow is an extra

        return await send_table(
            self, topic, table, key=key, value=value, headers=headers, timestamp=timestamp, partition=partition
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send all records now and wait until every one is delivered or failed; failures are in the deliveries."""
        if self.sender is None:
            self.cluster  # noqa: B018 - raises when not started
        assert self.sender is not None
        with self.guard:
            waiting = list(self.accumulator.incomplete)
        if not waiting:
            return
        self.accumulator.flushing += 1
        self.sender.wake()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in waiting:
                    await batch.wait_done()
        except TimeoutError:
            raise KafkaTimeoutError(f"not all records were delivered within {timeout_s:g} s") from None
        finally:
            self.accumulator.flushing -= 1

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for its metadata."""
        await self.cluster.topic(topic, self.block_s)
        return sorted(self.cluster.table.topics[topic].partitions)

    # Transactions

    def _transactional(self) -> Session:
        if self.transactions is None:
            raise IllegalStateError("transactions need a transactional.id")
        self.cluster  # noqa: B018 - raises when not started
        assert self.session is not None
        return self.session

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """Initialize the transactional id: fence older producers with it, and end their open transaction."""
        await self._transactional().init(timeout_s)

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on become visible when it is committed."""
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction; `group` is `consumer.group_metadata()`."""
        await self._transactional().send_offsets(offsets, group)

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Deliver all records and commit; TransactionAbortableError when one failed: then abort."""
        await self._transactional().commit(timeout_s)

    async def prepare_transaction(self, timeout_s: float | None = None) -> PreparedTransaction:
        """Deliver all records and return a handle with which another process ends the transaction; then close.

        TransactionAbortableError when a record failed: then abort.
        """
        return await self._transactional().prepare_transaction(timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction; read_committed consumers never see its records."""
        await self._transactional().abort(timeout_s)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: committed at its end, aborted when it raises."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if self.session is not None and self.session.open:
                await self.abort_transaction()
            raise
        try:
            await self.commit_transaction()
        except TransactionAbortableError:
            await self.abort_transaction()
            raise
