"""The sink's two-phase commit without Spark: a task prepares a transaction, the driver decides and commits.

A task writes its rows in a transaction and leaves it open. The driver records which transactions are the batch, and
only then commits them; a replay reads the record and completes it: docs/decisions/0009.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.errors import KafkaError
from klamm.client.producer import AsyncProducer, Delivery
from klamm.client.types import OffsetAndMetadata
from klamm.model.ids import TopicPartition
from klamm.pipeline.commits_topic import CommitsTopic
from klamm.pipeline.core.batch_ledger import SinkBatch
from klamm.pipeline.core.connector_options import WriteOptions
from klamm.pipeline.core.sink_commits import (
    CommitStep,
    SinkDecision,
    SinkError,
    SinkState,
    TaskTransaction,
    locate_task_offset,
    next_step,
    resume_batch,
)
from klamm.pipeline.query_checkpoint import QueryCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = logging.getLogger(__name__)
_DECISION_REQUEST_BYTES = 16 << 20
_RECHECK_MS = 60_000
"""Transactions of a batch that took longer are described before the decision: one of them may have timed out."""
_PENDING_MAX = 4096


class WriteId(NamedTuple):
    """Identifies one task attempt's part of a batch; `batch` is None for a write that is never replayed."""

    sink: str
    batch: int | None
    task: int = 0
    attempt: int = 0


def _settings(options: WriteOptions, **more: str) -> dict[str, str]:
    return {**options.client, "allow.auto.create.topics": "true", **{k.replace("_", "."): v for k, v in more.items()}}


class TaskWriter:
    """Writes one task attempt's part of a batch; bound to one event loop."""

    def __init__(self, options: WriteOptions, write_id: WriteId | None) -> None:
        self._options = options
        self._write_id = write_id
        self._producer: AsyncProducer | None = None
        self._deliveries: list[Delivery] = []
        self._rows = self._size = self._began_ms = 0

    async def begin(self) -> bool:
        """Open the transaction; return False when this part of the batch is committed already."""
        write_id, options = self._write_id, self._options
        if write_id is None:
            self._producer = AsyncProducer(_settings(options))
            await self._producer.start()
            return True
        if write_id.batch is not None and await self._commit_decided(write_id):
            return False
        # By task and attempt: a speculative attempt must not fence the one that Spark will accept.
        transactional_id = f"{write_id.sink}.{write_id.task}.{write_id.attempt}"
        producer = AsyncProducer(_settings(options, transactional_id=transactional_id))
        await producer.start()
        self._producer = producer
        await producer.init_transactions()
        producer.begin_transaction()
        return True

    async def _commit_decided(self, write_id: WriteId) -> bool:
        """Commit what an earlier attempt wrote, if the batch is decided; return whether this part is committed."""
        assert write_id.batch is not None
        async with CommitsTopic(write_id.sink, self._options.client, self._options.commits_topic) as commits:
            await commits.create_if_missing()
            state = await commits.read_state()
            step = next_step(state, write_id.batch)
            if step is not CommitStep.RESUME:
                return step is CommitStep.SKIP
            transaction = (await commits.read_decision(state)).find_transaction(write_id.task)
            return transaction is not None and await commits.commit_transaction(transaction, write_id.batch)

    async def send(self, topic: str, rows: pa.RecordBatch, partition: str | None) -> None:
        """Send rows of one topic; waits while the producer's buffers are full."""
        assert self._producer is not None
        if not self._rows:
            self._began_ms = time.time_ns() // 1_000_000
        # No timestamp: the producer stamps records when they are sent, as the Kafka connector does.
        deliveries = await self._producer.send_arrow(topic, rows, timestamp=None, partition=partition)
        self._rows += rows.num_rows
        self._size += _size(rows)
        # Without a transaction every delivery has to be checked: flush() does not raise.
        if self._write_id is None:
            self._deliveries.extend(deliveries)
            if len(self._deliveries) > _PENDING_MAX:
                self._deliveries = _raise_failed(self._deliveries)

    async def prepare(self) -> TaskTransaction | None:
        """Flush; return the prepared transaction, None when the task wrote nothing."""
        producer, write_id = self._producer, self._write_id
        assert producer is not None
        if write_id is None:
            await producer.flush()
            _raise_failed(self._deliveries)
        transaction = None
        if write_id is not None and self._rows:
            if write_id.batch is not None:
                group, partition = locate_task_offset(write_id.sink, write_id.task)
                entry = OffsetAndMetadata(write_id.batch, f"batch {write_id.batch}")
                task_partition = TopicPartition(self._options.commits_topic, partition)
                # Part of the transaction: afterwards the task offset shows whether the transaction was committed.
                await producer.send_offsets_to_transaction({task_partition: entry}, group)
            prepared = await producer.prepare_transaction()
            transaction = TaskTransaction(write_id.task, prepared, self._rows, self._size, self._began_ms)
        await producer.close()
        self._producer = None
        return transaction

    async def abort(self) -> None:
        """Abort the transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Closing with a transaction open aborts it; a broker that does not answer must not keep the task.
            await producer.close(1.0)


def _raise_failed(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return the deliveries that are not done; raise the error of one that failed."""
    pending = []
    for delivery in deliveries:
        error = delivery.exception()
        if error is not None:
            raise error
        if not delivery.done():
            pending.append(delivery)
    return pending


def _size(rows: Any) -> int:
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    return sum(
        pc.sum(pc.binary_length(rows.column(name))).as_py() or 0
        for name in ("key", "value")
        if name in rows.schema.names
    )


def _decision_producer(options: WriteOptions, write_id: WriteId) -> AsyncProducer:
    """Return the producer that writes decisions; a short timeout ends what a dead driver leaves open."""
    # A decision lists all tasks of a batch, so its record may exceed the default of max.request.size.
    short = {"transaction.timeout.ms": "60000", "max.request.size": str(_DECISION_REQUEST_BYTES)}
    return AsyncProducer({**_settings(options, transactional_id=write_id.sink), **short})


async def commit_batch(options: WriteOptions, write_id: WriteId, transactions: Sequence[TaskTransaction]) -> None:
    """Commit a batch. Idempotent: this driver or the next may call it again until it returns.

    LedgerError when the query's checkpoint is not the one that wrote what the sink has: nothing of the batch is
    committed then.
    """
    async with CommitsTopic(write_id.sink, options.client, options.commits_topic) as commits:
        if write_id.batch is None:
            await _commit_without_decision(commits, write_id, transactions)
            return
        await commits.create_if_missing()
        checkpoint = _visible_checkpoint(options, write_id.batch)
        state = _check_state(await commits.read_state(), write_id, checkpoint)
        if not transactions and next_step(state, write_id.batch) is not CommitStep.RESUME:
            await commits.abort_open()  # nothing was written, so no decision is needed
            return
        position = options.position
        if checkpoint is not None:
            planned = checkpoint.position(write_id.batch)
            position = "" if planned is None else planned.text
        async with _decision_producer(options, write_id) as writer:
            await writer.init_transactions()  # fences older drivers: from here on none of them can decide
            # Again: another driver may have committed meanwhile.
            state = _check_state(await commits.read_state(), write_id, checkpoint)
            decision = SinkDecision(write_id.sink, write_id.batch, tuple(transactions), position)
            await _commit_with_decision(commits, writer, state, decision)
        if checkpoint is not None:
            checkpoint.record_written(write_id.sink, write_id.batch)


def _visible_checkpoint(options: WriteOptions, batch: int) -> QueryCheckpoint | None:
    """Return the query's checkpoint, if this process reaches it."""
    checkpoint = QueryCheckpoint.at(options.checkpoint)
    # Spark has planned the batch. A folder without its plan is not the checkpoint: the path is on Hadoop's default file
    # system, or relative to another folder.
    return None if checkpoint is None or checkpoint.position(batch) is None else checkpoint


def _check_state(state: SinkState, write_id: WriteId, checkpoint: QueryCheckpoint | None) -> SinkState:
    """Return the sink's state; LedgerError when it does not belong to the checkpoint."""
    if checkpoint is None or write_id.batch is None:
        return state
    sink, written = checkpoint.read_written()
    if state.batch < 0 and sink == write_id.sink:
        # Brokers delete the offsets of a group that was quiet for offsets.retention.minutes: the checkpoint's own note
        # takes their place.
        state = SinkState(written.batch, done=True, digest=written.digest)
    checkpoint.check_batch(write_id.sink, SinkBatch(state.batch, state.digest), write_id.batch)
    return state


async def _commit_with_decision(
    commits: CommitsTopic, writer: AsyncProducer, state: SinkState, planned: SinkDecision
) -> None:
    batch, transactions = planned.batch, planned.transactions
    step = next_step(state, batch)
    if step is CommitStep.SKIP:
        await commits.abort_open()
        return
    if step is CommitStep.RESUME:
        # A driver died between its decision and the end of the batch. What it decided is committed as decided; only
        # transactions that the broker has aborted meanwhile are replaced by rewritten ones.
        decided = await commits.read_decision(state)
        _log.info("resuming decided batch sink=%s batch=%d tasks=%d", commits.sink, batch, len(decided.transactions))
        lost = await commits.commit_transactions(decided.transactions, batch)
        decision: SinkDecision | None
        decision, unused = resume_batch(decided, lost, transactions)
        await commits.abort_open(() if decision is None else decision.transactions)
        if unused:
            _log.info("aborting rewritten transactions sink=%s batch=%d count=%d", commits.sink, batch, len(unused))
    else:
        await commits.abort_open(transactions)
        decision = planned
        now_ms = time.time_ns() // 1_000_000
        if any(now_ms - transaction.began_ms > _RECHECK_MS for transaction in transactions):
            gone = await commits.find_closed(transactions)
            if gone:
                raise SinkError(
                    f"batch {batch} of {commits.sink} took too long: the transactions of tasks {gone[:5]} timed out; "
                    "raise kafka.transaction.timeout.ms (and the brokers' transaction.max.timeout.ms), or make batches "
                    "smaller with maxOffsetsPerTrigger"
                )
    if decision is not None:
        # The decision comes first, the commits second. In the other order a driver that dies between two commits would
        # leave half a batch, without a record of which half.
        state = await commits.write_decision(writer, decision)
        lost = await commits.commit_transactions(decision.transactions, batch)
        if lost:
            raise SinkError(
                f"batch {batch} of {commits.sink} is decided, but the transactions of tasks {lost[:5]} were aborted "
                "before they could be ended; replaying the batch completes it"
            )
    await commits.mark_done(writer, state)


async def complete_batch(options: WriteOptions, sink: str) -> None:
    """End the transactions of a sink's newest batch, if it is decided; SinkError when one of them is lost.

    Takes over the sink: a driver that still runs cannot decide any more.
    """
    write_id = WriteId(sink, None)
    async with (
        CommitsTopic(sink, options.client, options.commits_topic) as commits,
        _decision_producer(options, write_id) as writer,
    ):
        await commits.create_if_missing()
        await writer.init_transactions()
        state = await commits.read_state()
        if not state.done:
            decision = await commits.read_decision(state)
            lost = await commits.commit_transactions(decision.transactions, state.batch)
            if lost:
                raise SinkError(
                    f"batch {state.batch} of {sink} is half committed: the transactions of tasks {lost[:5]} were "
                    "aborted before they could be ended"
                )
            await commits.mark_done(writer, state)
        await commits.abort_open()


async def _commit_without_decision(
    commits: CommitsTopic, write_id: WriteId, transactions: Sequence[TaskTransaction]
) -> None:
    """Commit a job that is never replayed: its transactions are committed, those of failed attempts aborted."""
    await commits.abort_open(transactions)
    closed = await commits.find_closed(transactions)
    if closed:
        raise SinkError(f"nothing was written: the transactions of tasks {closed[:5]} of {write_id.sink} were aborted")
    for task in await commits.commit_transactions(transactions, 0):
        raise SinkError(f"{write_id.sink} is half committed: the transaction of task {task} was aborted meanwhile")


async def abort_batch(options: WriteOptions, write_id: WriteId) -> None:
    """Abort a batch. A decided batch stays decided: Spark also aborts after a commit that failed halfway."""
    try:
        async with CommitsTopic(write_id.sink, options.client, options.commits_topic) as commits:
            if write_id.batch is not None:
                await commits.create_if_missing()
                async with _decision_producer(options, write_id) as writer:
                    await writer.init_transactions()  # completes or aborts a decision in flight
                    if next_step(await commits.read_state(), write_id.batch) is CommitStep.RESUME:
                        return
            await commits.abort_open()
    except KafkaError as error:  # not raised: it would hide the failure that made Spark abort
        _log.warning("abort failed sink=%s: %s", write_id.sink, error)
