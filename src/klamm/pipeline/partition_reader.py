"""A range of a partition as Arrow batches: what a task does. No Python object is made per record.

The consumer is kept by its process, so that a task of the next micro-batch finds its connections open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client import loop_thread
from klamm.client.consumer import AsyncConsumer
from klamm.client.errors import KafkaTimeoutError, OffsetOutOfRangeError
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID, TopicPartition, uuid_to_str
from klamm.pipeline.core.offsets import Range
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_log = get_logger("pipeline")
_POLL_S = 0.2
_THROUGHPUT = {"max.partition.fetch.bytes": str(8 << 20), "receive.buffer.bytes": "-1", "fetch.max.wait.ms": "5"}
"""What is wanted is in the log, so there is little to wait for. What is asked for behind a range's end, while its rows
are decoded, keeps the next range waiting for as long."""


class DataLoss(KlammError):
    """Records that should have been read are not there any more."""

    def __init__(self, words: str) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{words}; with failOnDataLoss=false the query goes on without them"
        )


class _Kept:
    """The consumer of this process and the thread it lives on."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self.thread = loop_thread.acquire()
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


_kept: dict[tuple[int, str], _Kept] = {}


def _take(client: Mapping[str, str]) -> tuple[tuple[int, str], _Kept]:
    """A consumer nobody uses; it comes back with `_give`. A forked process begins with none."""
    key = (os.getpid(), json.dumps(dict(client), sort_keys=True))
    found = _kept.pop(key, None)
    return key, found or _Kept(client)


def _give(key: tuple[int, str], kept: _Kept) -> None:
    for other in list(_kept):
        if other != key:
            old = _kept.pop(other)
            if other[0] == key[0]:
                old.close()
    _kept[key] = kept


def read_range(
    wanted: Range, client: Mapping[str, str], *, headers: bool, fail_on_data_loss: bool, timeout_s: float = 120.0
) -> Iterator[pa.RecordBatch]:
    """The records of a range, as they are in the log: offsets may have gaps, and the range may be empty after all."""
    key, kept = _take(client)
    try:
        consumer, thread = kept.consumer, kept.thread
        where = TopicPartition(wanted.topic, wanted.partition)
        if not thread.run(_begin(consumer, wanted, fail_on_data_loss)):
            return
        waited_s = 0.0
        while True:
            try:
                batch, position = thread.run(_next(consumer, where))
            except OffsetOutOfRangeError as error:
                if fail_on_data_loss:
                    raise DataLoss(str(error)) from None
                if not thread.run(_skip(consumer, wanted)):
                    return
                continue
            if batch.num_rows:
                waited_s = 0.0
                batch = _cut(batch, wanted.end)
                if batch.num_rows:
                    yield batch if headers else batch.drop_columns(["headers"])
            else:
                waited_s += _POLL_S
            if position is not None and position >= wanted.end:
                return
            if waited_s > timeout_s:
                raise KafkaTimeoutError(f"nothing came of {where} at {position}, wanted up to {wanted.end}")
    except BaseException:
        kept.close()
        kept = None  # type: ignore[assignment]
        raise
    finally:
        if kept is not None:
            kept.thread.run(_rest(kept.consumer))
            _give(key, kept)


async def _begin(consumer: AsyncConsumer, wanted: Range, fail_on_data_loss: bool) -> bool:
    """Go to the start, unless the topic is another by now."""
    await consumer.cluster.refresh([wanted.topic])
    found = consumer.cluster.table.topic_id(wanted.topic)
    if wanted.topic_id and found != ZERO_UUID and uuid_to_str(found) != wanted.topic_id:
        words = f"topic {wanted.topic} was deleted and created anew while it was read"
        if fail_on_data_loss:
            raise DataLoss(words)
        _log.warning("records are lost", reason=words)
        return False
    where = TopicPartition(wanted.topic, wanted.partition)
    consumer.assign([where])
    consumer.seek(where, wanted.start)
    return True


async def _next(consumer: AsyncConsumer, where: TopicPartition) -> tuple[pa.RecordBatch, int | None]:
    batch = await consumer.poll_arrow(_POLL_S)
    return batch, consumer._subscription.state(where).position


async def _skip(consumer: AsyncConsumer, wanted: Range) -> bool:
    """The log begins after the range's start by now: go on with what is left of it."""
    where = TopicPartition(wanted.topic, wanted.partition)
    first = (await consumer.beginning_offsets([where]))[where]
    _log.warning("records are lost", partition=str(where), start=wanted.start, begins=first)
    if not wanted.start < first < wanted.end:
        return False
    consumer.seek(where, first)
    return True


async def _rest(consumer: AsyncConsumer) -> None:
    """Fetch nothing until the next range."""
    consumer.assign([])


def _cut(batch: pa.RecordBatch, end: int) -> Any:
    """The rows before `end`; offsets go up, so one look at the last tells whether there is anything to cut."""
    offsets = batch.column("offset")
    if offsets[batch.num_rows - 1].as_py() < end:
        return batch
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    return batch.slice(0, pc.sum(pc.less(offsets, pa.scalar(end, pa.int64()))).as_py() or 0)
