"""`Consumer`: the consumer for code without an event loop.

Fetches, heartbeats and commits run on the client's thread while the caller processes records. Rebalance callbacks run
on the caller's thread, inside `poll`, and may use the consumer. Use one consumer from one thread at a time.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from klamm.client import at_exit
from klamm.client.consumer import AsyncConsumer
from klamm.client.consumer.cursor import PartitionLike
from klamm.client.loop_thread import BlockingClient, LoopThread
from klamm.client.metrics import Metrics
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.types import K, OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition, V

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Unpack

    from klamm.client.serde import Deserializer
    from klamm.client.settings import ConsumerSettings

P = ParamSpec("P")
R = TypeVar("R")
K1 = TypeVar("K1")
V1 = TypeVar("V1")
BlockingRebalanceCallback = Callable[[list[TopicPartition]], Any]

_calls: ContextVar[queue.SimpleQueue[Any]] = ContextVar("_calls")
"""The queue of callbacks for the thread that waits for a coroutine."""


class Consumer(BlockingClient, Generic[K, V]):
    """Reads records.

    with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)
    """

    @overload
    def __init__(
        self: Consumer[bytes | None, bytes | None], config: None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes | None, V1 | None],
        config: None = None,
        /,
        *,
        value_deserializer: Deserializer[V1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K1 | None, bytes | None],
        config: None = None,
        /,
        *,
        key_deserializer: Deserializer[K1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K1 | None, V1 | None],
        config: None = None,
        /,
        *,
        key_deserializer: Deserializer[K1],
        value_deserializer: Deserializer[V1],
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[Any, Any],
        config: Mapping[str, Any] | None = None,
        /,
        *,
        key_deserializer: Any = None,
        value_deserializer: Any = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None: ...

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self._inner: AsyncConsumer[K, V] = AsyncConsumer(config, **keywords)
        if callable(self._inner.on_error):
            self._inner.on_error = self._in_caller(self._inner.on_error)
        super().__init__(self._inner, "consumer")
        at_exit.register_member(self, self._leave_group)

    def close(self) -> None:
        """Commit (with enable.auto.commit), leave the group and disconnect; calls on_revoke for what is assigned."""
        try:
            super().close()
        finally:
            at_exit.unregister_member(self)

    def _leave_group(self, timeout_s: float) -> None:
        """Leave the group and disconnect without a commit or callbacks; TimeoutError after `timeout_s`."""
        self._leave(functools.partial(self._inner.leave_group, timeout_s))

    def _disown(self) -> None:
        super()._disown()
        at_exit.unregister_member(self)

    def _wait(self, thread: LoopThread, work: Coroutine[Any, Any, R]) -> R:
        """Wait for a coroutine on the client's thread, and run the callbacks that it queues."""
        calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The coroutine's task copies the context: a callback that polls again has a queue of its own.
        before = _calls.set(calls)
        try:
            future = thread.submit(work)
        finally:
            _calls.reset(before)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _now(self, function: Callable[P, R], *args: P.args, **keywords: P.kwargs) -> R:
        """Call a function that does not wait, on the client's thread: its state is not safe across threads."""

        async def call() -> R:
            return function(*args, **keywords)

        return self._run(call())

    def _in_caller(self, callback: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """A coroutine function that runs `callback` on the thread that waits in `poll`."""
        if callback is None:
            return None

        async def call_in_caller(argument: Any) -> None:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def finish(error: BaseException | None) -> None:
                if not done.done():  # cancelled, when the caller was interrupted
                    done.set_exception(error) if error is not None else done.set_result(None)

            def call() -> None:
                error: BaseException | None = None
                try:
                    callback(argument)
                except BaseException as raised:  # noqa: BLE001 - raised again inside the poll
                    error = raised
                loop.call_soon_threadsafe(finish, error)

            _calls.get().put(call)
            await done

        return call_in_caller

    # What to read

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        *,
        on_assign: BlockingRebalanceCallback | None = None,
        on_revoke: BlockingRebalanceCallback | None = None,
        on_lost: BlockingRebalanceCallback | None = None,
    ) -> None:
        """Read topics, or all whose whole name a compiled pattern matches, shared with the group.

        The callbacks get a list of partitions and run in `poll`: after partitions were assigned, before they are
        revoked, and when they were lost (`on_revoke` unless `on_lost` is given).
        """
        self._now(
            self._inner.subscribe,
            topics,
            on_assign=self._in_caller(on_assign),
            on_revoke=self._in_caller(on_revoke),
            on_lost=self._in_caller(on_lost),
        )

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read exactly these partitions, without group membership."""
        self._now(self._inner.assign, partitions)

    def unsubscribe(self) -> None:
        """Read nothing any more; leaves the group."""
        self._run(self._inner.unsubscribe())

    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._inner.subscription()

    def assignment(self) -> set[TopicPartition]:
        """The partitions this consumer reads now."""
        return self._now(self._inner.assignment)

    # Reading

    def poll(self, timeout_s: float = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, at least one unless `timeout_s` passes; at most max.poll.records."""
        return self._run(self._inner.poll(timeout_s, max_records))

    def poll_arrow(self, timeout_s: float = 1.0, max_records: int | None = None) -> pa.RecordBatch:
        """As `poll`, in columns: a pyarrow.RecordBatch; empty after `timeout_s`."""
        return self._run(self._inner.poll_arrow(timeout_s, max_records))

    def __iter__(self) -> Iterator[Record[K, V]]:
        while self._thread is not None:
            yield from self._run(self._inner.chunk())

    def seek(self, partition: PartitionLike, offset: int, leader_epoch: int = -1) -> None:
        """Continue at an offset with the next poll."""
        self._now(self._inner.seek, partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: PartitionLike) -> None:
        """Continue at the first record, of all partitions if none is named."""
        self._now(self._inner.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: PartitionLike) -> None:
        """Continue behind the last record, of all partitions if none is named."""
        self._now(self._inner.seek_to_end, *partitions)

    def position(self, partition: PartitionLike, timeout_s: float | None = None) -> int:
        """The offset of the next record of a partition."""
        return self._run(self._inner.position(partition, timeout_s))

    def pause(self, *partitions: PartitionLike) -> None:
        """Return no records of these partitions until they are resumed."""
        self._now(self._inner.pause, *partitions)

    def resume(self, *partitions: PartitionLike) -> None:
        """Return records of these partitions again."""
        self._now(self._inner.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._now(self._inner.paused)

    def lag(self, partition: PartitionLike) -> int | None:
        """Offsets between the position and the end that the last fetch returned; None before the first."""
        return self._now(self._inner.lag, partition)

    # Committing

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets, or all positions without; `commit(record)` commits the offset behind the record."""
        self._run(self._inner.commit(offsets))

    def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of the group for partitions; None for a partition without."""
        return self._run(self._inner.committed(partitions))

    def group_metadata(self) -> GroupMetadata:
        """Generation and member id in the group, for `send_offsets_to_transaction`."""
        return self._now(self._inner.group_metadata)

    # Offsets of the log

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after times (ms since the epoch); None where there is none."""
        return self._run(self._inner.offsets_for_times(times))

    def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset of partitions."""
        return self._run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read."""
        return self._run(self._inner.end_offsets(partitions))

    def metrics(self) -> Metrics:
        """Totals and rates of this consumer, by Kafka's metric names; times are milliseconds."""
        return self._now(self._inner.metrics)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return self._run(self._inner.partitions_for(topic))
