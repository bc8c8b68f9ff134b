"""A batch, and the deliveries of its records.

A `Delivery` is the batch and the index of the record: no future is created per record unless it is awaited. Batches are
changed on the loop that sends them; only `Delivery` may be used from other threads.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol

from klamm.client.errors import KafkaError, KafkaTimeoutError
from klamm.client.types import RecordMetadata
from klamm.model.ids import TopicPartition
from klamm.records.batch import CRC_START, HEADER_SIZE, TRANSACTIONAL, BatchView, RecordTuple, seal_batch
from klamm.records.crc import crc32c
from klamm.records.kernels.encode import encode_records

_log = logging.getLogger(__name__)

# Positions in the header of a record batch (magic 2).
_CRC = slice(17, 21)
_ATTRIBUTES = slice(21, 23)
_PRODUCER = slice(43, 57)
_PRODUCER_FIELDS = struct.Struct(">qhi")
"""Producer id, epoch and base sequence, which are adjacent in the header."""


class EncodablePart(Protocol):
    """Rows of a table that form a batch; they are encoded when the batch is sent, not before."""

    @property
    def count(self) -> int:
        """The number of rows."""

    @property
    def size(self) -> int:
        """An upper bound of their encoded size."""

    def encode(self, **header: Any) -> bytearray:
        """The whole batch; `header` is as for `seal_batch`."""

    def release(self, data: bytearray) -> None:
        """Take back the buffer that `encode` returned."""


class Batch:
    """Records for one partition: open while `rows` grows, sealed once `data` is encoded, done once delivered or failed.

    A batch of a table has a `part` instead of rows.
    """

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "callbacks",
        "children",
        "count",
        "created",
        "data",
        "done",
        "due",
        "error",
        "log_append_time",
        "part",
        "producer_epoch",
        "producer_id",
        "refusal",
        "rows",
        "sent",
        "sent_sequence",
        "size",
        "where",
    )

    def __init__(self, where: TopicPartition, created: float) -> None:
        self.where = where
        self.created = created
        self.rows: list[RecordTuple] = []
        self.part: EncodablePart | None = None
        self.size = HEADER_SIZE
        self.count = 0
        self.data: bytearray | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.sent_sequence = -1
        """The sequence it was last sent with; `ProducerIdentity.close_gap` may have moved `base_sequence` since."""
        self.attempts = 0
        self.due = False
        """Whether it has lingered for linger.ms and may be sent although it is not full."""
        self.sent = False
        """Whether a broker may have it."""
        self.done = False
        self.base_offset = -1
        self.log_append_time = -1
        self.error: KafkaError | None = None
        self.refusal: KafkaError | None = None
        """The error of the last attempt."""
        self.children: list[tuple[int, Batch]] | None = None
        self.callbacks: list[Callable[[], None]] = []

    @classmethod
    def of_part(cls, where: TopicPartition, created: float, part: EncodablePart) -> Batch:
        """A batch of rows of a table; no record can be added to it."""
        batch = cls(where, created)
        batch.part, batch.count = part, part.count
        batch.size += part.size
        return batch

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record."""
        return (self.base_sequence + self.count - 1) & 0x7FFFFFFF

    def seal(self, codec: int, level: int | None, *, transactional: bool) -> None:
        """Encode the batch with the current producer id, epoch and sequence."""
        if self.data is not None:
            self.restamp(transactional=transactional)
            return
        header: dict[str, Any] = {
            "attributes": TRANSACTIONAL if transactional else 0,
            "codec": codec,
            "level": level,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "base_sequence": self.base_sequence,
        }
        if self.part is not None:
            self.data = self.part.encode(**header)
            return
        base_timestamp = self.rows[0][0]
        encoded, max_timestamp = encode_records(self.rows, base_timestamp, HEADER_SIZE)
        self.count = len(self.rows)
        self.data = seal_batch(
            encoded,
            record_count=self.count,
            last_offset_delta=self.count - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            **header,
        )
        self.rows = []  # their bytes are in `data` now: a batch in flight must not take its memory twice

    def restamp(self, *, transactional: bool) -> None:
        """Write producer id, epoch and sequence into an encoded batch."""
        data = self.data
        assert data is not None
        flags = int.from_bytes(data[_ATTRIBUTES], "big") & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
        attributes = flags.to_bytes(2, "big")
        fields = _PRODUCER_FIELDS.pack(self.producer_id, self.producer_epoch, self.base_sequence)
        # A retry usually changes nothing; the checksum over the whole batch is the expensive part.
        if data[_PRODUCER] == fields and data[_ATTRIBUTES] == attributes:
            return
        data[_ATTRIBUTES] = attributes
        data[_PRODUCER] = fields
        data[_CRC] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")

    def release_buffer(self) -> None:
        """Return the buffer of a table's rows after they were sent; a retry encodes them again.

        So a few megabytes of memory are written again and again, and stay in the processor's cache.
        """
        if self.part is not None and self.data is not None:
            self.part.release(self.data)
            self.data = None

    def split(self) -> list[Batch]:
        """Two batches of half the records each, after MESSAGE_TOO_LARGE."""
        data = self.part.encode() if self.data is None and self.part is not None else self.data
        assert data is not None
        rows: list[RecordTuple] = [(row[1], row[2], row[3], row[4]) for row in BatchView(data).decode_rows()]
        middle = len(rows) // 2
        halves = []
        for part in (rows[:middle], rows[middle:]):
            child = Batch(self.where, self.created)  # delivery.timeout.ms counts from the first send
            child.rows, child.count = part, len(part)
            child.size = len(data) // 2
            child.producer_id, child.producer_epoch = self.producer_id, self.producer_epoch
            halves.append(child)
        # Together they take the sequences of the batch, so that those behind it keep theirs.
        if self.base_sequence >= 0:
            halves[0].base_sequence = self.base_sequence
            halves[1].base_sequence = (self.base_sequence + middle) & 0x7FFFFFFF
        self.children = [(0, halves[0]), (middle, halves[1])]
        for child in halves:
            child.callbacks.append(self._child_done)
        self._drop_records()
        return halves

    def _child_done(self) -> None:
        if self.children is not None and all(child.done for _, child in self.children):
            self._finish()

    def succeed(self, base_offset: int, log_append_time: int) -> None:
        """Complete every record: the broker acknowledged the batch."""
        if not self.done:
            self.base_offset, self.log_append_time = base_offset, log_append_time
            self._finish()

    def fail(self, error: KafkaError) -> None:
        """Fail every record: it was not stored, or that is unknown."""
        if not self.done:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        # Set before the callbacks are taken: `when_done` appends first and reads `done` afterwards, so that a callback
        # from another thread is called by one of the two, whichever comes last.
        self.done = True
        self._drop_records()
        while self.callbacks:
            try:
                callback = self.callbacks.pop()
            except IndexError:  # another thread removed the last one in `when_done`
                break
            callback()

    def _drop_records(self) -> None:
        """Free the records and the buffer."""
        part, data = self.part, self.data
        self.rows, self.part, self.data = [], None, None
        if part is not None and data is not None:
            part.release(data)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once, on the thread that finishes the batch, or at once when it is done."""
        self.callbacks.append(callback)
        if self.done:
            try:
                self.callbacks.remove(callback)
            except ValueError:  # `_finish` has called it
                return
            callback()

    async def wait_done(self) -> None:
        """Wait until it is done, on the producer's loop."""
        if not self.done:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.when_done(functools.partial(_wake, loop, waiter))
            await waiter

    def outcome(self, index: int) -> tuple[int, int, KafkaError | None]:
        """Offset, log append time (-1: the record's own timestamp holds) and error of one record."""
        if self.children is not None:
            start, child = next(child for child in reversed(self.children) if child[0] <= index)
            return child.outcome(index - start)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return offset, self.log_append_time, self.error


class Delivery:
    """The delivery of a record: await it on the producer's loop, or call `result` on any other thread."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the record was delivered or failed."""
        return self._batch.done

    def exception(self) -> KafkaError | None:
        """The error; None when it did not fail, or is not done."""
        return self._batch.outcome(self._index)[2] if self._batch.done else None

    @property
    def metadata(self) -> RecordMetadata:
        """Partition and offset; raises the error of the delivery, and RuntimeError before it is done."""
        batch = self._batch
        if not batch.done:
            raise RuntimeError("the record is not delivered yet")
        offset, log_append_time, error = batch.outcome(self._index)
        if error is not None:
            raise error
        stamp = self._timestamp if log_append_time < 0 else log_append_time
        return RecordMetadata(batch.where.topic, batch.where.partition, offset, stamp)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call back with this delivery when it is done; on the producer's thread, so it must return quickly."""
        self._batch.when_done(functools.partial(_call_safely, callback, self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._batch.wait_done().__await__()
        return self.metadata

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait on a thread that runs no event loop."""
        if not self._batch.done:
            finished = threading.Event()
            self._batch.when_done(finished.set)
            if not finished.wait(timeout_s):
                raise KafkaTimeoutError(f"the record was not delivered within {timeout_s:g} s")
        return self.metadata


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not waiter.done():
            waiter.set_result(None)

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        resolve()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(resolve)


def _call_safely(callback: Callable[[Delivery], object], delivery: Delivery) -> None:
    """Call a user's callback; an exception is logged, so that it does not stop the sender."""
    try:
        callback(delivery)
    except Exception as error:  # noqa: BLE001
        _log.warning("delivery callback failed: %r", error)
