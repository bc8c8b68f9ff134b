"""Where sinks keep what they have decided: offsets of consumer groups, and decisions in a compacted topic.

All of it is vanilla Kafka: the group `<sink>` holds the state, `<sink>.<n>` the batch numbers that tasks commit inside
their own transactions, the commits topic the decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from klamm.client.admin import AsyncAdmin
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS
from klamm.client.consumer import AsyncConsumer
from klamm.client.consumer.offsets import GroupCoordinator, fetch_committed
from klamm.client.errors import KafkaError, ProducerFencedError, TopicAlreadyExistsError
from klamm.client.producer import AsyncProducer, end_prepared
from klamm.client.types import OffsetAndMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.sink_commits import SLOTS, SinkDecision, SinkError, SinkState, TaskTransaction, task_marker
from klamm.telemetry.log import get_logger

_log = get_logger("pipeline")
_PARALLEL = 32
_ENDED_OTHERWISE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)
_DECISION_BYTES = 16 << 20


class CommitLog:
    """The book of one sink; on the event loop it was entered on."""

    def __init__(self, sink: str, client: Mapping[str, str], topic: str) -> None:
        self.sink = sink
        self.topic = topic
        self._client = client
        self._home = TopicPartition(topic, zlib.crc32(sink.encode()) % SLOTS)
        self._admin = AsyncAdmin(_for(ADMIN_CONFIGS, client))

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()

    @property
    def _timeout_s(self) -> float:
        return self._admin.cluster.settings.seconds("default.api.timeout.ms")

    async def ensure(self) -> None:
        """Create the commits topic where there is none yet."""
        cluster = self._admin.cluster
        await cluster.refresh([self.topic])
        if cluster.table.partition_count(self.topic) >= SLOTS:
            return
        configs = {"cleanup.policy": "compact", "max.message.bytes": str(_DECISION_BYTES)}
        with contextlib.suppress(TopicAlreadyExistsError):
            await self._admin.create_topic(self.topic, SLOTS, configs=configs)
        count = await cluster.topic(self.topic, self._timeout_s)
        if count < SLOTS:
            raise SinkError(f"{self.topic} has {count} partitions; sinks need {SLOTS}: name another with commitsTopic")

    # What is known

    async def _committed(self, group: str, where: TopicPartition) -> OffsetAndMetadata | None:
        coordinator = GroupCoordinator(self._admin.cluster, group)
        found = await fetch_committed(coordinator, [where], self._timeout_s, stable=False)
        return found.get(where)

    async def state(self) -> SinkState:
        """The newest batch this sink has decided."""
        found = await self._committed(self.sink, self._home)
        return SinkState() if found is None else SinkState.parse(found.offset, found.metadata)

    async def decision(self, state: SinkState) -> SinkDecision:
        """The decision a state points to."""
        settings = _for(CONSUMER_CONFIGS, self._client)
        settings |= {"isolation.level": "read_uncommitted", "auto.offset.reset": "none"}
        async with asyncio.timeout(self._timeout_s), AsyncConsumer(settings) as consumer:
            consumer.assign([self._home])
            consumer.seek(self._home, state.place)
            while True:
                for record in await consumer.poll(1.0, 1):
                    found = SinkDecision.decode(record.value or b"")
                    if record.offset != state.place or (found.sink, found.batch) != (self.sink, state.batch):
                        raise SinkError(f"the decision of batch {state.batch} of {self.sink} is gone from {self._home}")
                    return found

    async def committed_batch(self, task: int) -> int:
        """The last batch a task's own transaction was committed for."""
        group, slot = task_marker(self.sink, task)
        found = await self._committed(group, TopicPartition(self.topic, slot))
        return -1 if found is None else found.offset

    # What is done

    async def finish(self, handle: TaskTransaction, batch: int) -> bool:
        """Commit a task's transaction; False when it was aborted before. Again and again gives the same answer."""
        try:
            await end_prepared(self._admin.cluster, handle.transaction, self._timeout_s, commit=True)
        except KafkaError as error:
            if not isinstance(error, ProducerFencedError) and error.code not in _ENDED_OTHERWISE:
                raise
            # The id has gone on since, so nothing of this transaction is open: what it committed itself tells.
            return await self.committed_batch(handle.task) >= batch
        return True

    async def commit_all(self, handles: Iterable[TaskTransaction], batch: int) -> list[int]:
        """Commit them all, at the same time; returns the tasks whose transaction is lost."""
        room = asyncio.Semaphore(_PARALLEL)

        async def one(handle: TaskTransaction) -> tuple[int, bool]:
            async with room:
                return handle.task, await self.finish(handle, batch)

        outcomes = await asyncio.gather(*(one(each) for each in handles))
        return [task for task, fine in outcomes if not fine]

    async def find_closed(self, handles: Iterable[TaskTransaction]) -> list[int]:
        """The tasks whose transaction is not open any more."""
        room = asyncio.Semaphore(_PARALLEL)

        async def one(handle: TaskTransaction) -> tuple[int, bool]:
            name = handle.transaction.transactional_id
            async with room:
                found = (await self._admin.describe_transactions([name]))[name]
            same = (found.producer_id, found.producer_epoch) == handle.transaction[1:3]
            return handle.task, same and found.state == "Ongoing"

        return [task for task, fine in await asyncio.gather(*(one(each) for each in handles)) if not fine]

    async def abort_open(self, keep: Iterable[TaskTransaction] = ()) -> None:
        """Abort whatever tasks of this sink have left open, except these: readers should not wait for zombies."""
        kept = {each.transaction.transactional_id for each in keep}
        try:
            open_now = await self._admin.list_transactions(states=["Ongoing"])
            mine = [
                each.transactional_id
                for each in open_now
                if each.transactional_id.startswith(f"{self.sink}.") and each.transactional_id not in kept
            ]
            if mine:
                _log.info("giving up transactions nobody will end", sink=self.sink, count=len(mine))
                await self._admin.fence_producers(mine)
        except KafkaError as error:  # they end by themselves after their timeout
            _log.warning("open transactions were not given up", sink=self.sink, reason=str(error))

    async def decide(self, writer: AsyncProducer, decision: SinkDecision) -> SinkState:
        """Write down that these transactions are the batch: the moment from which on it counts."""
        writer.begin_transaction()
        delivery = await writer.send(
            self.topic, decision.encode(), key=self.sink.encode(), partition=self._home.partition
        )
        state = SinkState(decision.batch, done=False, place=(await delivery).offset)
        await self._write(writer, state)
        return state

    async def close_batch(self, writer: AsyncProducer, state: SinkState) -> None:
        """Write down that every transaction of the batch has ended."""
        writer.begin_transaction()
        await self._write(writer, state._replace(done=True))

    async def _write(self, writer: AsyncProducer, state: SinkState) -> None:
        entry = OffsetAndMetadata(max(state.place, 0), state.text)
        await writer.send_offsets_to_transaction({self._home: entry}, self.sink)
        await writer.commit_transaction()


def _for(definition: Any, client: Mapping[str, str]) -> dict[str, Any]:
    """Those settings that another kind of client has too."""
    return {name: value for name, value in client.items() if name in definition}
