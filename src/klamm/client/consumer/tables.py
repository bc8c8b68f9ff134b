"""Fetched batches to Arrow tables; compressed ones are decoded in a thread, so that the event loop is not blocked.

Batches that a poll takes from the fetch buffer are lent to the thread: no other poll gets records of these partitions
meanwhile, and their positions stay until the table is returned. Whatever happens in between (a seek, a pause, a
cancelled poll, damaged bytes), batches are returned once or go back. Only the decoding itself runs in the thread, over
memory that nothing writes to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.consumer.core.fetch_buffer import FetchBuffer, unreadable_batch
from klamm.client.consumer.core.subscription import AssignedPartition
from klamm.client.consumer.typed_columns import TypedColumns, handle_row_error, without_rows
from klamm.client.core.buffer_pool import BufferPool
from klamm.client.errors import SerializationError
from klamm.model.errors import CorruptBatch, KlammError
from klamm.records.arrow import to_arrow_of
from klamm.records.batch import BatchView
from klamm.records.columnar import Allocate, decode_columns
from klamm.records.kernels.memory import blank

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_POLL_BYTES = 16 << 20
"""A poll takes no further batch once it has so much; the rest is for the next one."""
_POOLED_BYTES = 1 << 20
"""From so much on, buffers of freed tables are used again: fresh pages cost more than the copy into them."""
_THREAD_BYTES = 1 << 14
"""From so much on, compressed batches are decoded in a thread. Uncompressed bytes are only copied, at gigabytes a
second, and are still in the cache of the core that the loop received them on."""
_POOLED_BUFFERS = 4
"""Buffers of tables that the pool keeps, to be used again when the tables are freed."""


class BorrowedBatches(NamedTuple):
    """Batches of one partition that a poll took from the fetch buffer."""

    state: AssignedPartition
    ticket: int
    batches: list[BatchView]

    @property
    def rows(self) -> int:
        """Records in them."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def valid(self) -> bool:
        """Whether the partition was neither sought nor revoked since."""
        return self.state.ticket == self.ticket

    def give_back(self, kept: int = 0) -> None:
        """Put all but the first `kept` batches back into the fetch buffer."""
        rest = self.batches[kept:]
        del self.batches[kept:]
        # In front of what was fetched meanwhile; extendleft reverses.
        self.state.batches.extendleft(reversed(rest))
        self.state.buffered += sum(take.size for take in rest)
        self.state.lent = bool(self.batches)

    def advance_position(self) -> None:
        """Move the position behind the batches."""
        state, last = self.state, self.batches[-1]
        state.lent = False
        # With nothing left, up to fetch_offset: control batches and aborted records after the last batch are skipped.
        state.position = last.next_offset if state.batches else max(state.fetch_offset, last.next_offset)
        state.position_epoch = last.leader_epoch


class Tables:
    """Takes batches from a consumer's fetch buffer and decodes them into tables."""

    def __init__(self, fetch_buffer: FetchBuffer, typed: TypedColumns | None = None, on_error: Any = "raise") -> None:
        self._fetch_buffer = fetch_buffer
        self._typed = typed
        self._on_error = on_error
        self._buffer_pool = BufferPool(_POOLED_BUFFERS)
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Stop the thread once it has decoded its table."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def take(self, max_records: int | None) -> list[BorrowedBatches] | None:
        """Buffered batches, whole, partition after partition; None when there are none. Typed ones are of one topic."""
        takes: list[BorrowedBatches] = []
        rows = size = 0
        for state in self._fetch_buffer.readable_partitions():
            # An earlier `poll` may have decoded part of a batch into records.
            state.restore_batch()
            # An error is raised alone, never after records that were already taken.
            if not takes and not state.batches:
                state.raise_error()
            # Topics have types of their own, which do not fit into one column.
            if self._typed is not None and takes and takes[0].state.where.topic != state.where.topic:
                continue
            begun = bool(state.batches) and state.batches[0].base_offset < (state.position or 0)
            if begun and takes:
                break  # rows before the position are cut off, which works for a table of one partition only
            batches: list[BatchView] = []
            while state.batches and size < _POLL_BYTES and (max_records is None or rows < max_records):
                batch = state.batches.popleft()
                state.buffered -= batch.size
                batches.append(batch)
                rows += batch.record_count
                size += batch.size
            if batches:
                state.lent = True
                takes.append(BorrowedBatches(state, state.ticket, batches))
            if begun or size >= _POLL_BYTES or (max_records is not None and rows >= max_records):
                break
        return takes or None

    async def table(self, takes: list[BorrowedBatches]) -> pa.RecordBatch | None:
        """One table of the batches; None when it has no rows.

        After an error the first partition is tried alone, then its first batch; the rest goes back. A batch that
        cannot be read raises, for its partition only.
        """
        while takes:
            errors: list[SerializationError] = []
            try:
                decoded = await self._decode(takes)
            except (CorruptBatch, KlammError) as error:
                takes = _retry_smaller(_drop_moved(takes), error)
                continue
            except BaseException:  # a cancelled poll as well: its batches would be lost
                _give_back(takes)
                raise
            if self._typed is not None:
                try:
                    decoded, errors = await self._typed.convert(decoded)
                except BaseException:  # a registry that does not answer, say: the next poll tries again
                    _give_back(takes)
                    raise
            wanted = _drop_moved(takes)
            # A partition was sought, revoked or paused during the decoding: decode the others again without it.
            if len(wanted) == len(takes):
                if errors and self._on_error == "raise":
                    return self._rows_before(takes, decoded, errors[0])
                for take in takes:
                    take.advance_position()
                    self._fetch_buffer.move_last(take.state)
                for row_error in errors:
                    await handle_row_error(row_error, self._on_error)
                decoded = without_rows(decoded, errors)
                self._fetch_buffer.fetched.records += decoded.num_rows
                return decoded if decoded.num_rows else None
            takes = wanted
        return None

    def _rows_before(
        self, takes: list[BorrowedBatches], decoded: pa.RecordBatch, error: SerializationError
    ) -> pa.RecordBatch:
        """The rows before one that cannot be read; raises if it is the first. The next poll begins with that row."""
        place = next(index for index, take in enumerate(takes) if take.state.where == error.topic_partition)
        for take in takes[:place]:
            take.advance_position()
            self._fetch_buffer.move_last(take.state)
        _give_back(takes[place + 1 :])
        state = takes[place].state
        rows = list(zip(decoded.column("partition").to_pylist(), decoded.column("offset").to_pylist(), strict=True))
        assert error.offset is not None
        count = rows.index((state.where.partition, error.offset))
        state.seek(error.offset)
        if not count:
            raise error
        self._fetch_buffer.fetched.records += count
        return decoded.slice(0, count)

    async def _decode(self, takes: list[BorrowedBatches]) -> pa.RecordBatch:
        batches = [batch for take in takes for batch in take.batches]
        size = sum(batch.size for batch in batches)
        work = partial(_arrow, takes, takes[0].state.position, check_crcs=self._fetch_buffer.check_crcs)
        if size < _THREAD_BYTES or not any(batch.codec for batch in batches):
            return work(None) if size < _POOLED_BYTES else self._with_pooled_buffers(work)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "klamm-tables")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_pooled_buffers, work)

    def _with_pooled_buffers(self, work: Callable[[Allocate], pa.RecordBatch]) -> pa.RecordBatch:
        """Decode into buffers of freed tables; in any thread."""
        used: list[bytearray] = []

        def allocate(size: int) -> bytearray:
            with self._lock:
                spare = self._buffer_pool.take(size)
            used.append(blank(size) if spare is None else spare)
            return used[-1]

        table = work(allocate)
        with self._lock:
            for buffer in used:
                # Only now: the pool tells by the buffer's exports, that is the table, whether it is in use.
                self._buffer_pool.give(buffer)
        return table


def _arrow(
    takes: list[BorrowedBatches], position: int | None, allocate: Allocate | None, *, check_crcs: bool
) -> pa.RecordBatch:
    """The rows of all partitions; of a single one, those from its position on."""
    columns = decode_columns(
        (batch for take in takes for batch in take.batches), check_crc=check_crcs, allocate=allocate
    )
    places = [(take.state.where.topic, take.state.where.partition, take.rows) for take in takes]
    return to_arrow_of(columns, places, from_offset=position if len(takes) == 1 else None)


def _give_back(takes: list[BorrowedBatches]) -> None:
    for take in takes:
        if take.valid:
            take.give_back()


def _drop_moved(takes: list[BorrowedBatches]) -> list[BorrowedBatches]:
    """Without partitions that were sought, revoked or paused meanwhile; batches of paused ones go back."""
    wanted: list[BorrowedBatches] = []
    for take in takes:
        if take.valid and take.state.paused:
            take.give_back()
        elif take.valid:
            wanted.append(take)
    return wanted


def _retry_smaller(takes: list[BorrowedBatches], error: Exception) -> list[BorrowedBatches]:
    """What to decode after an error: the first partition, then its first batch; raises if that was it."""
    if not takes:
        return takes
    for take in takes[1:]:
        take.give_back()
    first = takes[0]
    if len(takes) == 1 and len(first.batches) == 1:
        first.state.fail(unreadable_batch(first.state, first.batches[0], error))
        first.state.raise_error()
    if len(takes) == 1:
        first.give_back(kept=1)
    return takes[:1]
