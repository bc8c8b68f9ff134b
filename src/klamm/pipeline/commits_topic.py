"""The commits topic of a sink: which transactions are a batch, and which batch is the newest.

All of it is plain Kafka: the group `<sink>` holds the state, the groups `<sink>.<n>` hold the task offsets (the batch
numbers that tasks commit inside their own transactions), and the compacted commits topic holds the decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS
from klamm.client.consumer import AsyncConsumer
from klamm.client.consumer.offsets import GroupCoordinator, fetch_committed
from klamm.client.errors import KafkaError, ProducerFencedError, TopicAlreadyExistsError
from klamm.client.producer import AsyncProducer, end_prepared
from klamm.client.types import OffsetAndMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.batch_ledger import BatchPosition, SinkBatch
from klamm.pipeline.core.sink_commits import (
    COMMITS_PARTITIONS,
    SinkDecision,
    SinkError,
    SinkState,
    TaskTransaction,
    locate_task_offset,
)

_log = logging.getLogger(__name__)
_REQUESTS_IN_FLIGHT_MAX = 32
# Errors of EndTxn for a transaction that is not open any more: a newer producer has the transactional id, or the
# transaction timed out.
_TRANSACTION_GONE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
)
_DECISION_BYTES = 16 << 20


class CommitsTopic:
    """A sink's decisions, state and task offsets; bound to the event loop on which it was entered."""

    def __init__(self, sink: str, client: Mapping[str, str], topic: str) -> None:
        self.sink = sink
        self.topic = topic
        self._client = client
        # A sink's decisions are in one partition, so that a decision's offset alone identifies it.
        self._decision_partition = TopicPartition(topic, zlib.crc32(sink.encode()) % COMMITS_PARTITIONS)
        self._admin = AsyncAdmin(_settings_for(ADMIN_CONFIGS, client))

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()

    @property
    def _timeout_s(self) -> float:
        return self._admin.cluster.settings.seconds("default.api.timeout.ms")

    async def create_if_missing(self) -> None:
        """Create the commits topic if it does not exist."""
        cluster = self._admin.cluster
        await cluster.refresh([self.topic])
        if cluster.table.partition_count(self.topic) >= COMMITS_PARTITIONS:
            return
        configs = {"cleanup.policy": "compact", "max.message.bytes": str(_DECISION_BYTES)}
        with contextlib.suppress(TopicAlreadyExistsError):
            await self._admin.create_topic(self.topic, COMMITS_PARTITIONS, configs=configs)
        count = await cluster.topic(self.topic, self._timeout_s)
        # Adding partitions would not help: partitions of decisions and of task offsets depend on the count.
        if count < COMMITS_PARTITIONS:
            raise SinkError(
                f"{self.topic} has {count} partitions; sinks need {COMMITS_PARTITIONS}: name another with commitsTopic"
            )

    async def _fetch_offset(self, group: str, partition: TopicPartition) -> OffsetAndMetadata | None:
        coordinator = GroupCoordinator(self._admin.cluster, group)
        offsets = await fetch_committed(coordinator, [partition], self._timeout_s, stable=False)
        return offsets.get(partition)

    async def read_state(self) -> SinkState:
        """Return the newest batch that this sink has decided."""
        committed = await self._fetch_offset(self.sink, self._decision_partition)
        return SinkState() if committed is None else SinkState.parse(committed.offset, committed.metadata)

    async def read_decision(self, state: SinkState) -> SinkDecision:
        """Return the decision a state points to; SinkError when it is gone from the commits topic."""
        settings = _settings_for(CONSUMER_CONFIGS, self._client)
        # The state was committed in the decision's own transaction, so the record is committed; reading uncommitted
        # avoids waiting for other sinks' open transactions in the same partition.
        settings |= {"isolation.level": "read_uncommitted", "auto.offset.reset": "none"}
        async with asyncio.timeout(self._timeout_s), AsyncConsumer(settings) as consumer:
            # No group: the offset is known, and joining one would cost a rebalance.
            consumer.assign([self._decision_partition])
            consumer.seek(self._decision_partition, state.decision_offset)
            while True:
                for record in await consumer.poll(1.0, 1):
                    decision = SinkDecision.decode(record.value or b"")
                    # After compaction the offset may be gone, and the fetch returns the next record instead.
                    if record.offset != state.decision_offset or (decision.sink, decision.batch) != (
                        self.sink,
                        state.batch,
                    ):
                        raise SinkError(
                            f"the decision of batch {state.batch} of {self.sink} is not in {self._decision_partition}"
                        )
                    return decision

    async def fetch_task_offset(self, task: int) -> int:
        """Return a task's offset: the last batch of which the task's transaction was committed; -1 for none."""
        group, partition = locate_task_offset(self.sink, task)
        committed = await self._fetch_offset(group, TopicPartition(self.topic, partition))
        return -1 if committed is None else committed.offset

    async def commit_transaction(self, transaction: TaskTransaction, batch: int) -> bool:
        """Commit a task's transaction; return False when the broker had aborted it. Idempotent."""
        try:
            await end_prepared(self._admin.cluster, transaction.prepared, self._timeout_s, commit=True)
        except KafkaError as error:
            if not isinstance(error, ProducerFencedError) and error.code not in _TRANSACTION_GONE:
                raise
            # The transaction is not open any more. The task offset was part of it, so the offset shows whether it was
            # committed or aborted.
            return await self.fetch_task_offset(transaction.task) >= batch
        return True

    async def commit_transactions(self, transactions: Iterable[TaskTransaction], batch: int) -> list[int]:
        """Commit these transactions concurrently; return the tasks whose transaction is lost."""
        in_flight = asyncio.Semaphore(_REQUESTS_IN_FLIGHT_MAX)

        async def commit(transaction: TaskTransaction) -> tuple[int, bool]:
            async with in_flight:
                return transaction.task, await self.commit_transaction(transaction, batch)

        results = await asyncio.gather(*(commit(transaction) for transaction in transactions))
        return [task for task, committed in results if not committed]

    async def find_closed(self, transactions: Iterable[TaskTransaction]) -> list[int]:
        """Return the tasks whose transaction is not open any more."""
        in_flight = asyncio.Semaphore(_REQUESTS_IN_FLIGHT_MAX)

        async def describe(transaction: TaskTransaction) -> tuple[int, bool]:
            name = transaction.prepared.transactional_id
            async with in_flight:
                description = (await self._admin.describe_transactions([name]))[name]
            # A newer attempt of the same task reuses the transactional id with a higher epoch.
            same = (description.producer_id, description.producer_epoch) == transaction.prepared[1:3]
            return transaction.task, same and description.state == "Ongoing"

        results = await asyncio.gather(*(describe(transaction) for transaction in transactions))
        return [task for task, is_open in results if not is_open]

    async def abort_open(self, keep: Iterable[TaskTransaction] = ()) -> None:
        """Abort transactions that tasks of this sink have left open, except `keep`.

        A read_committed reader stops at the first open transaction, so one of a dead task would block it until it times
        out.
        """
        kept = {transaction.prepared.transactional_id for transaction in keep}
        try:
            listings = await self._admin.list_transactions(states=["Ongoing"])
            orphans = [
                listing.transactional_id
                for listing in listings
                if listing.transactional_id.startswith(f"{self.sink}.") and listing.transactional_id not in kept
            ]
            if orphans:
                _log.info("aborting orphaned transactions sink=%s count=%d", self.sink, len(orphans))
                await self._admin.fence_producers(orphans)
        except KafkaError as error:  # transaction.timeout.ms ends them as well
            _log.warning("orphaned transactions were not aborted sink=%s: %s", self.sink, error)

    async def write_decision(self, writer: AsyncProducer, decision: SinkDecision) -> SinkState:
        """Record that these transactions are the batch: from here on the batch is committed."""
        writer.begin_transaction()
        delivery = await writer.send(
            self.topic, decision.encode(), key=self.sink.encode(), partition=self._decision_partition.partition
        )
        digest = BatchPosition(decision.position).digest if decision.position else ""
        state = SinkState(decision.batch, done=False, decision_offset=(await delivery).offset, digest=digest)
        await self._commit_state(writer, state)
        return state

    async def mark_done(self, writer: AsyncProducer, state: SinkState) -> None:
        """Record that every transaction of the batch has ended."""
        writer.begin_transaction()
        await self._commit_state(writer, state._replace(done=True))

    async def _commit_state(self, writer: AsyncProducer, state: SinkState) -> None:
        # Decision record and group offset are in one transaction: a state never points to a decision that is not there.
        entry = OffsetAndMetadata(max(state.decision_offset, 0), state.text)
        await writer.send_offsets_to_transaction({self._decision_partition: entry}, self.sink)
        await writer.commit_transaction()


async def read_newest(sink: str, client: Mapping[str, str], topic: str, *, with_position: bool) -> SinkBatch:
    """Return the newest batch of a sink; its position, if that is still in the commits topic, is read on request."""
    async with CommitsTopic(sink, client, topic) as commits:
        await commits.create_if_missing()
        state = await commits.read_state()
        position = None
        if with_position and state.digest:
            # Without it the digest is enough to compare; only a repair needs the position itself.
            with contextlib.suppress(SinkError, KafkaError, TimeoutError):
                text = (await commits.read_decision(state)).position
                position = BatchPosition(text) if text else None
    return SinkBatch(state.batch, state.digest, position)


def _settings_for(definition: Any, client: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that another kind of client accepts."""
    return {name: value for name, value in client.items() if name in definition}
