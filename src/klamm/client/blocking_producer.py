"""`Producer`: the producer for code without an event loop.

Records are appended to the accumulator on the caller's thread, under a lock; the loop's thread is woken only when a
batch is full or begins. Several threads may share one producer. A program that ends without closing it delivers its
records at exit (`at_exit`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from klamm.client import at_exit
from klamm.client.core.arguments import function, seconds
from klamm.client.errors import IllegalStateError
from klamm.client.loop_thread import BlockingClient
from klamm.client.metrics import Metrics
from klamm.client.producer import AsyncProducer, Delivery, GroupMetadata
from klamm.client.producer.waiting_send import send_when_possible
from klamm.client.types import Headers, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.settings import ProducerSettings


class Producer(BlockingClient):
    """Sends records; from any thread.

    with Producer(bootstrap_servers="localhost:9092") as producer:
        delivery = producer.send("orders", b"value", key=b"key")
        print(delivery.result().offset)
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ProducerSettings]) -> None:
        inner = AsyncProducer(config, **settings)
        self._lock = threading.RLock()  # a delivery callback may send
        inner.guard = self._lock
        self._inner = inner
        self._append: Callable[..., Delivery | None] = inner.append
        self._accumulator = inner.accumulator
        self._woken = False
        super().__init__(inner, "producer")
        assert inner.sender is not None
        self._sender = inner.sender
        inner.wake_at = self._wake_at
        # `at_exit` delivers the records instead of reporting them as lost.
        inner.unclosed.detach()
        at_exit.register_producer(self, inner)

    def _wake_at(self, when: float) -> None:
        """Wake the sender when a new batch has lingered. Called under the lock."""
        self._call_soon(self._sender.wake_at, when)

    def _wake(self) -> None:
        # Set before the call: a wake-up writes to the loop's pipe, and one is enough for any number of full batches.
        self._woken = True
        self._call_soon(self._awake)

    def _call_soon(self, function: Callable[..., object], *args: object) -> None:
        thread = self._thread
        if thread is not None:  # another thread may have closed the producer
            with suppress(RuntimeError):  # the loop is closed
                thread.loop.call_soon_threadsafe(function, *args)

    def _awake(self) -> None:
        # Reset before the sender looks: a batch that fills up now wakes it again.
        self._woken = False
        self._sender.wake()

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver all records, for at most `timeout_s`, and disconnect; an open transaction is aborted."""
        if timeout_s is not None:
            seconds(timeout_s, "timeout_s of close")
        try:
            self._leave(functools.partial(self._inner.close, timeout_s))
        finally:
            at_exit.unregister_producer(self)

    def _disown(self) -> None:
        super()._disown()
        at_exit.unregister_producer(self)
        self._lock, self._append = threading.RLock(), self._refuse  # another thread may have held the lock

    def _refuse(self, *_: object) -> None:
        raise IllegalStateError(self._gone)

    def send(
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

        BufferFullError or KafkaTimeoutError after max.block.ms, RecordTooLargeError at once. `on_delivery` is called on
        the client's thread, so it must return quickly and must not use the client itself.
        """
        if on_delivery is not None:
            function(on_delivery, "on_delivery of send")
        inner = self._inner
        # Outside of the lock: a serializer may be slow, or call a schema registry.
        if inner.serializers is not None:
            value, key, headers = inner.serializers.wait(topic, value, key, headers)
        with self._lock:
            delivery = self._append(topic, value, key, partition, timestamp, headers)
        if delivery is None:
            delivery = self._send_slowly(topic, value, key, partition, timestamp, headers)
        if self._accumulator.filled and not self._woken:
            self._wake()
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    def _send_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers | None,
    ) -> Delivery:
        """Wait on the event loop for memory or metadata; append under the lock."""

        def append(*args: Any) -> Delivery | None:
            with self._lock:
                return self._append(*args)

        return self._run(send_when_possible(self._inner, append, topic, value, key, partition, timestamp, headers))

    def send_arrow(
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
        """Send every row of a table; the names say which columns are key, value and so on (see `AsyncProducer`)."""
        return self._run(
            self._inner.send_arrow(
                topic, table, key=key, value=value, headers=headers, timestamp=timestamp, partition=partition
            )
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all records now and wait until every one is delivered or failed."""
        self._run(self._inner.flush(timeout_s))

    def metrics(self) -> Metrics:
        """Totals and rates of this producer, by Kafka's metric names; times are milliseconds."""
        return self._inner.metrics()

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return self._run(self._inner.partitions_for(topic))

    def init_transactions(self, timeout_s: float | None = None) -> None:
        """Initialize the transactional id: fence older producers with it, and end their open transaction."""
        self._run(self._inner.init_transactions(timeout_s))

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on become visible when it is committed."""
        self._inner.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction; `group` is `consumer.group_metadata()`."""
        self._run(self._inner.send_offsets_to_transaction(offsets, group))

    def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Deliver all records and commit; TransactionAbortableError when one failed: then abort."""
        self._run(self._inner.commit_transaction(timeout_s))

    def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction."""
        self._run(self._inner.abort_transaction(timeout_s))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction around a block: committed at its end, aborted when it raises."""
        context = self._inner.transaction()
        self._run(context.__aenter__())
        try:
            yield self
        except BaseException as error:
            swallowed = self._run(_leave(context, error))
            if not swallowed:
                raise
        else:
            self._run(_leave(context, None))


async def _leave(context: Any, error: BaseException | None) -> bool:
    try:
        return bool(
            await context.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        )
    except BaseException as raised:
        if raised is error:
            return False
        raise
