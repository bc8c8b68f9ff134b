"""`Consumer`: the consumer for code without an event loop.

Fetching, heartbeats and commits go on in the client's thread while the caller works on records. Rebalance callbacks are
called in the caller's thread, inside `poll`, and may use the consumer. Use one consumer from one thread at a time.
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
from klamm.client.loop_thread import BlockingFace, LoopThread
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
Place = TopicPartition | tuple[str, int]
Callback = Callable[[list[TopicPartition]], Any]

_calls: ContextVar[queue.SimpleQueue[Any]] = ContextVar("_calls")
"""Where the thread that waits for a coroutine looks for callbacks to carry out."""


class Consumer(BlockingFace, Generic[K, V]):
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
        at_exit.remember_member(self, self._leave_group)

    def close(self) -> None:
        """Commit (with enable.auto.commit), leave the group and the cluster; callbacks are called once more."""
        try:
            super().close()
        finally:
            at_exit.forget_member(self)

    def _leave_group(self, timeout_s: float) -> None:
        """Leave the group and the cluster without a commit and without callbacks; TimeoutError after `timeout_s`."""
        self._leave(functools.partial(self._inner.leave_group, timeout_s))

    def _orphan(self) -> None:
        super()._orphan()
        at_exit.forget_member(self)

    def _wait(self, thread: LoopThread, work: Coroutine[Any, Any, R]) -> R:
        """Wait for a coroutine of the client's thread, carrying out the callbacks it asks for."""
        calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        before = _calls.set(calls)  # the coroutine's task takes it along
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
        """Call a function that does not wait, on the client's thread."""

        async def call() -> R:
            return function(*args, **keywords)

        return self._run(call())

    def _in_caller(self, callback: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """A callback to be called in the thread that waits in `poll`."""
        if callback is None:
            return None

        async def ask(argument: Any) -> None:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def finish(error: BaseException | None) -> None:
                if not done.done():
                    done.set_exception(error) if error is not None else done.set_result(None)

            def call() -> None:
                error: BaseException | None = None
                try:
                    callback(argument)
                except BaseException as raised:  # noqa: BLE001 - it is raised again where it belongs
                    error = raised
                loop.call_soon_threadsafe(finish, error)

            _calls.get().put(call)
            await done

        return ask

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

        The callbacks get a list of partitions and are called in `poll`: after partitions came, before they go, and when
        they are gone already (`on_revoke` unless `on_lost` is given).
        """
        self._now(
            self._inner.subscribe,
            topics,
            on_assign=self._in_caller(on_assign),
            on_revoke=self._in_caller(on_revoke),
            on_lost=self._in_caller(on_lost),
        )

    def assign(self, partitions: Iterable[Place]) -> None:
        """Read exactly these partitions, without a group's say."""
        self._now(self._inner.assign, partitions)

    def unsubscribe(self) -> None:
        """Read nothing any more; leaves the group."""
        self._run(self._inner.unsubscribe())

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
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

    def seek(self, partition: Place, offset: int, leader_epoch: int = -1) -> None:
        """Go on at an offset with the next poll."""
        self._now(self._inner.seek, partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: Place) -> None:
        """Go on at the first record, of all partitions without any."""
        self._now(self._inner.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: Place) -> None:
        """Go on behind the last record, of all partitions without any."""
        self._now(self._inner.seek_to_end, *partitions)

    def position(self, partition: Place, timeout_s: float | None = None) -> int:
        """The offset of the next record of a partition."""
        return self._run(self._inner.position(partition, timeout_s))

    def pause(self, *partitions: Place) -> None:
        """Hand out nothing of these partitions until they are resumed."""
        self._now(self._inner.pause, *partitions)

    def resume(self, *partitions: Place) -> None:
        """Hand out records of these partitions again."""
        self._now(self._inner.resume, *partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._now(self._inner.paused)

    def lag(self, partition: Place) -> int | None:
        """How far the position is behind the end as the last fetch saw it."""
        return self._now(self._inner.lag, partition)

    # Committing

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None = None) -> None:
        """Commit offsets, those of all that was handed out without any; a record, and all before it, by itself."""
        self._run(self._inner.commit(offsets))

    def committed(self, partitions: Iterable[Place]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for partitions; None where nothing is."""
        return self._run(self._inner.committed(partitions))

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for `send_offsets_to_transaction`."""
        return self._now(self._inner.group_metadata)

    # Looking around

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after times (ms since the epoch); None where there is none."""
        return self._run(self._inner.offsets_for_times(times))

    def beginning_offsets(self, partitions: Iterable[Place]) -> dict[TopicPartition, int]:
        """The first offset of partitions."""
        return self._run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Place]) -> dict[TopicPartition, int]:
        """The offset after the last record that can be read."""
        return self._run(self._inner.end_offsets(partitions))

    def metrics(self) -> Metrics:
        """What this consumer has done so far, by Kafka's names of metrics; times are milliseconds."""
        return self._now(self._inner.metrics)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        return self._run(self._inner.partitions_for(topic))
