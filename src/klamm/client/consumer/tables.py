"""Fetched batches to tables; those that must be unpacked in a thread, so that the loop goes on meanwhile.

What a poll takes from the fetch buffer is lent to the thread: no other poll gets records of these partitions meanwhile,
and their positions stay until the table is handed out. Whatever happens in between (a seek, a pause, a cancelled poll,
damaged bytes), batches are handed out once or go back. Only the decoding itself runs in the thread, over memory that
nothing writes to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from klamm.client.consumer.core.fetch_buffer import FetchBuffer, unreadable_batch
from klamm.client.consumer.core.subscription import Assigned
from klamm.client.core.buffer_pool import BufferPool
from klamm.model.errors import CorruptBatch, KlammError
from klamm.records.arrow import to_arrow_of
from klamm.records.batch import BatchView
from klamm.records.columnar import Room, decode_columns
from klamm.records.kernels.memory import blank

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_POLL_BYTES = 16 << 20
"""When a poll has so much, it leaves the rest to the next one."""
_SPARES_BYTES = 1 << 20
"""From so much on, memory is used again."""
_THREAD_BYTES = 1 << 14
"""From so much on, what is compressed is unpacked in a thread. Plain bytes are only copied, at gigabytes a second, and
what the loop received is copied fastest where the loop runs."""
_KEPT = 4
"""Buffers of tables remembered, to be used again when the tables are gone."""


class Take(NamedTuple):
    """Batches of one partition that a poll took from the shelf."""

    state: Assigned
    ticket: int
    batches: list[BatchView]

    @property
    def rows(self) -> int:
        """Records in them."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def valid(self) -> bool:
        """Whether the partition is still where it was."""
        return self.state.ticket == self.ticket

    def give_back(self, kept: int = 0) -> None:
        """Put all but the first few batches back."""
        rest = self.batches[kept:]
        del self.batches[kept:]
        self.state.batches.extendleft(reversed(rest))
        self.state.buffered += sum(take.size for take in rest)
        self.state.lent = bool(self.batches)

    def handed_out(self) -> None:
        """The position moves behind the batches."""
        state, last = self.state, self.batches[-1]
        state.lent = False
        state.position = last.next_offset if state.batches else max(state.fetch_offset, last.next_offset)
        state.position_epoch = last.leader_epoch


class Tables:
    """Takes what lies ready on a consumer's shelf, and makes tables of it."""

    def __init__(self, fetch_buffer: FetchBuffer) -> None:
        self._fetch_buffer = fetch_buffer
        self._buffer_pool = BufferPool(_KEPT)
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Let the thread go; what it is decoding is finished."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def take(self, max_records: int | None) -> list[Take] | None:
        """What lies ready, whole batches, partition after partition; None when there is nothing."""
        takes: list[Take] = []
        rows = size = 0
        for state in self._fetch_buffer.turns():
            state.undecode()
            if not takes and not state.batches:
                state.raise_error()
            begun = bool(state.batches) and state.batches[0].base_offset < (state.position or 0)
            if begun and takes:
                break  # only rows from its position on are wanted, so it is decoded alone
            batches: list[BatchView] = []
            while state.batches and size < _POLL_BYTES and (max_records is None or rows < max_records):
                batch = state.batches.popleft()
                state.buffered -= batch.size
                batches.append(batch)
                rows += batch.record_count
                size += batch.size
            if batches:
                state.lent = True
                takes.append(Take(state, state.ticket, batches))
            if begun or size >= _POLL_BYTES or (max_records is not None and rows >= max_records):
                break
        return takes or None

    async def table(self, takes: list[Take]) -> pa.RecordBatch | None:
        """One table of what was taken; None when no rows are left of it.

        Where something is wrong or too much, the first partition is tried, then its first batch alone; the rest goes
        back. A batch that cannot be read raises, for its partition only.
        """
        while takes:
            try:
                decoded = await self._decoded(takes)
            except (CorruptBatch, KlammError) as error:
                takes = _fewer(_still_wanted(takes), error)
                continue
            except BaseException:
                for take in takes:
                    if take.valid:
                        take.give_back()
                raise
            wanted = _still_wanted(takes)
            if len(wanted) == len(takes):
                for take in takes:
                    take.handed_out()
                    self._fetch_buffer.had_turn(take.state)
                self._fetch_buffer.fetched.records += decoded.num_rows
                return decoded if decoded.num_rows else None
            takes = wanted
        return None

    async def _decoded(self, takes: list[Take]) -> pa.RecordBatch:
        batches = [batch for take in takes for batch in take.batches]
        size = sum(batch.size for batch in batches)
        work = partial(_arrow, takes, takes[0].state.position, check_crcs=self._fetch_buffer.check_crcs)
        if size < _THREAD_BYTES or not any(batch.codec for batch in batches):
            return work(None) if size < _SPARES_BYTES else self._with_pooled_buffers(work)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "klamm-tables")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_pooled_buffers, work)

    def _with_pooled_buffers(self, work: Callable[[Room], pa.RecordBatch]) -> pa.RecordBatch:
        """Do it in memory of tables that are gone; in any thread."""
        used: list[bytearray] = []

        def room(size: int) -> bytearray:
            with self._lock:
                spare = self._buffer_pool.take(size)
            used.append(blank(size) if spare is None else spare)
            return used[-1]

        table = work(room)
        with self._lock:
            for buffer in used:
                self._buffer_pool.give(buffer)  # only now: before, nothing shows that they are in use
        return table


def _arrow(takes: list[Take], position: int | None, room: Room | None, *, check_crcs: bool) -> pa.RecordBatch:
    """The rows of all takes; of a single one, those from its position on."""
    columns = decode_columns((batch for take in takes for batch in take.batches), check_crc=check_crcs, room=room)
    places = [(take.state.where.topic, take.state.where.partition, take.rows) for take in takes]
    return to_arrow_of(columns, places, from_offset=position if len(takes) == 1 else None)


def _still_wanted(takes: list[Take]) -> list[Take]:
    """Without partitions that went elsewhere meanwhile, or were paused: what was taken of these goes back."""
    wanted: list[Take] = []
    for take in takes:
        if take.valid and take.state.paused:
            take.give_back()
        elif take.valid:
            wanted.append(take)
    return wanted


def _fewer(takes: list[Take], error: Exception) -> list[Take]:
    """What to try after an error: less of it; raises when it was a single batch."""
    if not takes:
        return takes
    for take in takes[1:]:
        take.give_back()
    first = takes[0]
    if len(takes) == 1 and len(first.batches) == 1:
        first.state.spoil(unreadable_batch(first.state, first.batches[0], error))
        first.state.raise_error()
    if len(takes) == 1:
        first.give_back(kept=1)
    return takes[:1]
