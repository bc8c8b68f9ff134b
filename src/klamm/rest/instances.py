"""Consumer instances of v2: a consumer in this process for a client that has only HTTP.

An instance is used by one request at a time, others wait. Nothing that is read is lost when the client disconnects
while a read waits for records: its positions go back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

from klamm.client.consumer import AsyncConsumer
from klamm.client.errors import KafkaError
from klamm.client.types import Record
from klamm.model.ids import TopicPartition
from klamm.rest.core.consumer_requests import InstanceRequest
from klamm.rest.core.instance_table import InstanceEntry, InstanceTable
from klamm.rest.core.refusals import illegal_state, instance_not_found
from klamm.telemetry import get_logger

_log = get_logger("rest")

_SWEEP_S: Final = 1.0
_CLOSE_S: Final = 10.0
_POLL_RECORDS_MAX: Final = 500
_FETCH_BYTES_MAX: Final = 4 << 20
"""What an instance may hold of records that no request has asked for yet."""


class ConsumerInstance:
    """A consumer and its settings; `lock` is held by the request that uses it."""

    def __init__(self, consumer: AsyncConsumer[Any, Any], request: InstanceRequest) -> None:
        self.consumer = consumer
        self.embedded = request.embedded
        self.request_timeout_ms = request.request_timeout_ms
        self.min_bytes = request.min_bytes
        self.lock = asyncio.Lock()
        self.closed = False

    async def read(self, timeout_s: float, max_bytes: int) -> list[Record[Any, Any]]:
        """Return records of at most `max_bytes`, or one; waits for the instance's minimum of bytes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        records: list[Record[Any, Any]] = []
        size = 0
        try:
            while True:
                left_s = max(deadline - loop.time(), 0.0)
                polled = await self.consumer.poll(left_s, _POLL_RECORDS_MAX)
                for index, record in enumerate(polled):
                    record_size = len(record.key or b"") + len(record.value or b"")
                    if records and size + record_size > max_bytes:
                        self.give_back(polled[index:])
                        return records
                    records.append(record)
                    size += record_size
                enough = size >= max_bytes or (records and 0 <= self.min_bytes <= size)
                if enough or loop.time() >= deadline:
                    return records
        except BaseException:
            # The client has gone, or a later poll failed: the next read returns these records.
            self.give_back(records)
            raise

    def give_back(self, records: Iterable[Record[Any, Any]]) -> None:
        """Set the positions to the first of these records of every partition."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.topic_partition, record.offset)
        for partition, offset in first.items():
            with contextlib.suppress(KafkaError):  # revoked meanwhile: another member reads it again
                self.consumer.seek(partition, offset)

    async def close(self) -> None:
        """Leave the group; errors are logged, as the instance is gone in any case."""
        self.closed = True
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.consumer.close()
        except (KafkaError, TimeoutError, OSError) as error:
            _log.warning("consumer instance closed with an error", error=str(error))

    def list_positioned(self) -> list[TopicPartition]:
        """Return the partitions that a commit of everything has an offset for."""
        assigned = self.consumer.subscription_state.assigned
        return [partition for partition, state in assigned.items() if state.position is not None]

    def require_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Refuse partitions that the instance does not have."""
        assigned = self.consumer.assignment()
        for partition in partitions:
            if partition not in assigned:
                raise illegal_state(f"No current assignment for partition {partition.topic}-{partition.partition}")


class ConsumerInstances:
    """All consumer instances; closes those that nothing has used for a while."""

    def __init__(self, *, instances_max: int, instance_timeout_ms: int) -> None:
        self._defaults: dict[str, Any] = {
            "fetch.max.bytes": _FETCH_BYTES_MAX,
            # The proxy ends idle instances itself; the group must not do it first.
            "max.poll.interval.ms": instance_timeout_ms + 60_000,
        }
        self.table: InstanceTable[ConsumerInstance] = InstanceTable(instances_max, instance_timeout_ms)
        self.expired = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to close idle instances."""
        self._sweeper = asyncio.create_task(self._sweep(), name="consumer instance expiry")

    async def stop(self) -> None:
        """Close all instances, so that their groups need not wait for session.timeout.ms."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        entries = self.table.remove_all()
        await asyncio.gather(*(entry.instance.close() for entry in entries), *self._closing, return_exceptions=True)

    async def create(
        self, group: str, owner: str, request: InstanceRequest, client: Mapping[str, Any]
    ) -> InstanceEntry[ConsumerInstance]:
        """Create an instance with the settings of its owner's clients; ConfigError for one that the client refuses."""
        name = request.name or f"rest-consumer-{uuid.uuid4()}"
        settings = {
            **self._defaults,
            **client,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": request.auto_offset_reset,
            "enable.auto.commit": request.auto_commit,
        }
        instance = ConsumerInstance(AsyncConsumer(settings), request)
        # Before it is started: two requests for one name must not both start a consumer.
        entry = self.table.add(group, name, owner, instance, _now_ms())
        self.table.begin_use(entry)
        try:
            await instance.consumer.start()
        except BaseException:
            self.table.remove(entry)
            raise
        finally:
            self.table.end_use(entry, _now_ms())
        if instance.closed:  # the proxy was stopped meanwhile
            await instance.close()
            raise instance_not_found()
        return entry

    @contextlib.asynccontextmanager
    async def use(self, group: str, name: str, owner: str) -> AsyncIterator[ConsumerInstance]:
        """Use an instance alone, and keep it from expiring meanwhile."""
        entry = self.table.find(group, name, owner)
        self.table.begin_use(entry)
        try:
            async with entry.instance.lock:
                if entry.instance.closed:
                    raise instance_not_found()
                yield entry.instance
        finally:
            self.table.end_use(entry, _now_ms())

    async def delete(self, group: str, name: str, owner: str) -> None:
        """Close an instance; it is not found any more from now on."""
        entry = self.table.find(group, name, owner)
        self.table.remove(entry)
        # Not after a read that waits: the client that deletes is the one that reads.
        await entry.instance.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.close_expired(_now_ms())

    def close_expired(self, now_ms: int) -> Sequence[InstanceEntry[ConsumerInstance]]:
        """Close instances that have expired, in tasks of their own."""
        expired = self.table.remove_expired(now_ms)
        for entry in expired:
            self.expired += 1
            _log.info("consumer instance expired", group=entry.group, instance=entry.name)
            task = asyncio.create_task(entry.instance.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return expired


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
