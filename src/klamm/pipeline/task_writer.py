"""What a task writes and a driver commits, without Spark in it: rows in, a prepared transaction out, then the decision.

A task leaves its transaction open and returns a handle. The driver writes down which handles are the batch, and only
then ends them; a replay finds what was written down and completes it: docs/decisions/0009.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.errors import KafkaError
from klamm.client.producer import AsyncProducer, Delivery
from klamm.client.types import OffsetAndMetadata
from klamm.model.ids import TopicPartition
from klamm.pipeline.commit_log import CommitLog
from klamm.pipeline.core.connector_options import WriteOptions
from klamm.pipeline.core.sink_commits import (
    SinkDecision,
    SinkError,
    Step,
    TaskTransaction,
    next_step,
    resume_batch,
    task_marker,
)
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = get_logger("pipeline")
_DECISION_REQUEST_BYTES = 16 << 20
_LONG_MS = 60_000
"""A batch that took longer is looked at before it is decided: one of its transactions may have timed out."""
_UNCHECKED = 4096


class WriteId(NamedTuple):
    """Which write of which sink; `batch` is None for one that is never replayed."""

    sink: str
    batch: int | None
    task: int = 0
    attempt: int = 0


def _settings(options: WriteOptions, **more: str) -> dict[str, str]:
    return {**options.client, "allow.auto.create.topics": "true", **{k.replace("_", "."): v for k, v in more.items()}}


class TaskWriter:
    """One task's attempt at its part of a batch; on one event loop."""

    def __init__(self, options: WriteOptions, place: WriteId | None) -> None:
        self._options = options
        self._place = place
        self._producer: AsyncProducer | None = None
        self._deliveries: list[Delivery] = []
        self._rows = self._size = self._began_ms = 0

    async def begin(self) -> bool:
        """Open the transaction; False when the batch is committed already and the rows need only be passed over."""
        place, options = self._place, self._options
        if place is None:
            self._producer = AsyncProducer(_settings(options))
            await self._producer.start()
            return True
        if place.batch is not None and not await self._look(place):
            return False
        name = f"{place.sink}.{place.task}.{place.attempt}"
        producer = AsyncProducer(_settings(options, transactional_id=name))
        await producer.start()
        self._producer = producer
        await producer.init_transactions()
        producer.begin_transaction()
        return True

    async def _look(self, place: WriteId) -> bool:
        """Whether this part is still to be written. One that is decided and still open is ended, not written again."""
        assert place.batch is not None
        async with CommitLog(place.sink, self._options.client, self._options.commits_topic) as ledger:
            await ledger.ensure()
            state = await ledger.state()
            found = next_step(state, place.batch)
            if found is not Step.RESUME:
                return found is Step.BEGIN
            handle = (await ledger.decision(state)).of(place.task)
            return handle is None or not await ledger.finish(handle, place.batch)

    async def send(self, topic: str, rows: pa.RecordBatch, partition: str | None) -> None:
        """Hand over rows of one topic; waits while buffers are full."""
        assert self._producer is not None
        if not self._rows:
            self._began_ms = time.time_ns() // 1_000_000
        deliveries = await self._producer.send_arrow(topic, rows, timestamp=None, partition=partition)
        self._rows += rows.num_rows
        self._size += _size(rows)
        if self._place is None:
            self._deliveries.extend(deliveries)
            if len(self._deliveries) > _UNCHECKED:
                self._deliveries = _unfinished(self._deliveries)

    async def finish(self) -> TaskTransaction | None:
        """Deliver everything; returns the open transaction, None when there is none to end."""
        producer, place = self._producer, self._place
        assert producer is not None
        if place is None:
            await producer.flush()
            _unfinished(self._deliveries)
        handle = None
        if place is not None and self._rows:
            if place.batch is not None:
                group, slot = task_marker(place.sink, place.task)
                entry = OffsetAndMetadata(place.batch, f"batch {place.batch}")
                where = TopicPartition(self._options.commits_topic, slot)
                await producer.send_offsets_to_transaction({where: entry}, group)
            prepared = await producer.prepare_transaction()
            handle = TaskTransaction(place.task, prepared, self._rows, self._size, self._began_ms)
        await producer.close()
        self._producer = None
        return handle

    async def drop(self) -> None:
        """Give up: what was written is aborted."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(1.0)


def _unfinished(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Those not yet known; raises what made one fail."""
    left = []
    for delivery in deliveries:
        error = delivery.exception()
        if error is not None:
            raise error
        if not delivery.done():
            left.append(delivery)
    return left


def _size(rows: Any) -> int:
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    return sum(
        pc.sum(pc.binary_length(rows.column(name))).as_py() or 0
        for name in ("key", "value")
        if name in rows.schema.names
    )


def _decider(options: WriteOptions, place: WriteId) -> AsyncProducer:
    """The producer that writes decisions; its transactions are short, so what a dead driver leaves open ends soon."""
    short = {"transaction.timeout.ms": "60000", "max.request.size": str(_DECISION_REQUEST_BYTES)}
    return AsyncProducer({**_settings(options, transactional_id=place.sink), **short})


async def commit_batch(options: WriteOptions, place: WriteId, handles: Sequence[TaskTransaction]) -> None:
    """The driver's commit. May be called again for a batch, by this driver or the next, until it returns."""
    async with CommitLog(place.sink, options.client, options.commits_topic) as ledger:
        if place.batch is None:
            await _commit_once(ledger, place, handles)
            return
        await ledger.ensure()
        if not handles and next_step(await ledger.state(), place.batch) is not Step.RESUME:
            await ledger.abort_open()  # nothing was written, so there is nothing to decide
            return
        async with _decider(options, place) as writer:
            await writer.init_transactions()  # from here on no older driver can decide anything
            await _commit(ledger, writer, place.batch, handles)


async def _commit(ledger: CommitLog, writer: AsyncProducer, batch: int, handles: Sequence[TaskTransaction]) -> None:
    state = await ledger.state()
    found = next_step(state, batch)
    if found is Step.SKIP:
        await ledger.abort_open()
        return
    if found is Step.RESUME:
        decided = await ledger.decision(state)
        _log.info("completing a decided batch", sink=ledger.sink, batch=batch, tasks=len(decided.handles))
        lost = await ledger.commit_all(decided.handles, batch)
        decision, spare = resume_batch(decided, lost, handles)
        await ledger.abort_open(() if decision is None else decision.handles)
        if spare:
            _log.info("rewritten transactions were not needed", sink=ledger.sink, batch=batch, count=len(spare))
    else:
        await ledger.abort_open(handles)
        decision = SinkDecision(ledger.sink, batch, tuple(handles))
        now_ms = time.time_ns() // 1_000_000
        if any(now_ms - handle.began_ms > _LONG_MS for handle in handles):
            gone = await ledger.find_closed(handles)
            if gone:
                raise SinkError(
                    f"batch {batch} of {ledger.sink} took too long: the transactions of tasks {gone[:5]} were aborted; "
                    "raise kafka.transaction.timeout.ms (and the brokers' transaction.max.timeout.ms), or make batches "
                    "smaller with maxOffsetsPerTrigger"
                )
    if decision is not None:
        state = await ledger.decide(writer, decision)
        lost = await ledger.commit_all(decision.handles, batch)
        if lost:
            raise SinkError(
                f"batch {batch} of {ledger.sink} is decided, but the transactions of tasks {lost[:5]} were aborted "
                "before they could be ended; replaying the batch completes it"
            )
    await ledger.close_batch(writer, state)


async def _commit_once(ledger: CommitLog, place: WriteId, handles: Sequence[TaskTransaction]) -> None:
    """A job that nobody replays: its transactions are ended, and those of attempts that failed are given up."""
    await ledger.abort_open(handles)
    gone = await ledger.find_closed(handles)
    if gone:
        raise SinkError(f"nothing was written: the transactions of tasks {gone[:5]} of {place.sink} were aborted")
    for each in await ledger.commit_all(handles, 0):
        raise SinkError(f"{place.sink} is half committed: the transaction of task {each} was aborted meanwhile")


async def abort_batch(options: WriteOptions, place: WriteId) -> None:
    """The driver's abort. What is decided stays decided: Spark also aborts after a commit that failed halfway."""
    try:
        async with CommitLog(place.sink, options.client, options.commits_topic) as ledger:
            if place.batch is not None:
                await ledger.ensure()
                async with _decider(options, place) as writer:
                    await writer.init_transactions()  # a decision on its way is made or dropped by now
                    if next_step(await ledger.state(), place.batch) is Step.RESUME:
                        return
            await ledger.abort_open()
    except KafkaError as error:  # the failure that made Spark abort is the one to show
        _log.warning("abort did not reach the cluster", sink=place.sink, reason=str(error))
