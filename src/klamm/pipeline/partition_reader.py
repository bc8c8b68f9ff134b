"""Reads a range of offsets of a partition as Arrow batches, without a Python object per record.

The consumer is pooled by its process: a task of the next micro-batch reuses its connections.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client import loop_thread
from klamm.client.consumer import AsyncConsumer
from klamm.client.errors import KafkaTimeoutError, OffsetOutOfRangeError
from klamm.model.ids import ZERO_UUID, TopicPartition, uuid_to_str
from klamm.pipeline.core.data_loss import DataLoss
from klamm.pipeline.core.offsets import Range

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = logging.getLogger(__name__)
_POLL_S = 0.2
_THROUGHPUT = {"max.partition.fetch.bytes": str(8 << 20), "receive.buffer.bytes": "-1", "fetch.max.wait.ms": "5"}
"""A range's records are in the log, so fetches need not wait. A fetch behind the range's end, sent while its rows
are decoded, delays the next range by fetch.max.wait.ms."""


class _PooledConsumer:
    """A consumer and the thread of its event loop."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self.thread = loop_thread.acquire()
        # A reset would silently skip or repeat records: data loss has to be reported instead.
        fixed = {"auto.offset.reset": "none", "allow.auto.create.topics": "false"}
        self.consumer = AsyncConsumer({**_THROUGHPUT, **client, **fixed})
        try:
            self.thread.run(self.consumer.start())
        except BaseException:
            loop_thread.release(self.thread)
            raise

    def close(self) -> None:
        try:
            self.thread.run(self.consumer.close())
        finally:
            loop_thread.release(self.thread)


_pool: dict[tuple[int, str], _PooledConsumer] = {}


def _acquire(client: Mapping[str, str]) -> tuple[tuple[int, str], _PooledConsumer]:
    """Return an idle consumer of these settings; `_release` returns it to the pool.

    The key has the process id: Spark forks its Python workers, and a connection must not be shared across a fork.
    """
    # Settings are part of the key: a query with other settings needs another connection.
    key = (os.getpid(), json.dumps(dict(client), sort_keys=True))
    pooled = _pool.pop(key, None)
    return key, pooled or _PooledConsumer(client)


def _release(key: tuple[int, str], pooled: _PooledConsumer) -> None:
    for other_key in list(_pool):
        if other_key != key:
            # One consumer is kept per process: a Python worker of Spark runs one task at a time.
            idle = _pool.pop(other_key)
            # An entry that was inherited by a fork is only dropped: its thread does not run here, and closing it would
            # use the parent's sockets.
            if other_key[0] == key[0]:
                idle.close()
    _pool[key] = pooled


def read_range(
    wanted: Range, client: Mapping[str, str], *, headers: bool, fail_on_data_loss: bool, timeout_s: float = 120.0
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range; offsets may have gaps, and compaction may have left none."""
    key, pooled = _acquire(client)
    try:
        consumer, thread = pooled.consumer, pooled.thread
        partition = TopicPartition(wanted.topic, wanted.partition)
        if not thread.run(_seek_start(consumer, wanted, fail_on_data_loss)):
            return
        waited_s = 0.0
        while True:
            try:
                batch, position = thread.run(_poll(consumer, partition))
            except OffsetOutOfRangeError as error:
                if fail_on_data_loss:
                    raise DataLoss(str(error)) from None
                if not thread.run(_skip_lost(consumer, wanted)):
                    return
                continue
            if batch.num_rows:
                waited_s = 0.0
                batch = _slice_before(batch, wanted.end)
                if batch.num_rows:
                    yield batch if headers else batch.drop_columns(["headers"])
            else:
                # Only time without rows counts: a range may take longer than the timeout as a whole.
                waited_s += _POLL_S
            # The position decides, not the last row: the range may end with a transaction marker or compacted offsets.
            if position is not None and position >= wanted.end:
                return
            if waited_s > timeout_s:
                raise KafkaTimeoutError(
                    f"no records of {partition} for {timeout_s:.0f} s at offset {position}, end {wanted.end}"
                )
    except BaseException:
        # Also when Spark closes the generator early: the consumer may be in the middle of a fetch.
        pooled.close()
        pooled = None  # type: ignore[assignment]
        raise
    finally:
        if pooled is not None:
            pooled.thread.run(_unassign(pooled.consumer))
            _release(key, pooled)


async def _seek_start(consumer: AsyncConsumer, wanted: Range, fail_on_data_loss: bool) -> bool:
    """Seek to the start; return False when the topic was deleted and created again."""
    # A pooled consumer may have old metadata: leaders move between batches.
    await consumer.cluster.refresh([wanted.topic])
    topic_id = consumer.cluster.table.topic_id(wanted.topic)
    if wanted.topic_id and topic_id != ZERO_UUID and uuid_to_str(topic_id) != wanted.topic_id:
        reason = f"topic {wanted.topic} was deleted and recreated while it was read"
        if fail_on_data_loss:
            raise DataLoss(reason)
        _log.warning("data loss: %s", reason)
        return False
    partition = TopicPartition(wanted.topic, wanted.partition)
    consumer.assign([partition])
    # A fetch behind the range would be answered after fetch.max.wait.ms, and the next range's would wait for it.
    consumer.subscription_state.state(partition).end_offset = wanted.end
    consumer.seek(partition, wanted.start)
    return True


async def _poll(consumer: AsyncConsumer, partition: TopicPartition) -> tuple[pa.RecordBatch, int | None]:
    batch = await consumer.poll_arrow(_POLL_S)
    # The position passes transaction markers and compacted offsets, which no row of the batch shows.
    return batch, await consumer.position(partition)


async def _skip_lost(consumer: AsyncConsumer, wanted: Range) -> bool:
    """Seek to the log start offset when it lies inside of the range; return False when the whole range is gone."""
    partition = TopicPartition(wanted.topic, wanted.partition)
    first = (await consumer.beginning_offsets([partition]))[partition]
    _log.warning("data loss: %s starts at offset %d, wanted from %d", partition, first, wanted.start)
    if not wanted.start < first < wanted.end:
        return False
    consumer.seek(partition, first)
    return True


async def _unassign(consumer: AsyncConsumer) -> None:
    """Stop fetching until the next range."""
    consumer.assign([])


def _slice_before(batch: pa.RecordBatch, end: int) -> Any:
    """Return the rows before `end`. Offsets ascend, so the last row decides whether rows have to be cut."""
    offsets = batch.column("offset")
    if offsets[batch.num_rows - 1].as_py() < end:
        return batch
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    return batch.slice(0, pc.sum(pc.less(offsets, pa.scalar(end, pa.int64()))).as_py() or 0)
