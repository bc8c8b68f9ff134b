"""Checking one segment: every batch of the `.log` file, and every entry of its indexes.

Index entries are compared with the batches as these are read, so a segment of any size needs little memory.
"""

import os
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from klamm.model.errors import CorruptBatch
from klamm.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchView
from klamm.records.control import end_txn_marker
from klamm.storage import offset_index, time_index, txn_index
from klamm.storage.check_findings import Findings, Fix
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LogSegment
from klamm.storage.producer_state import Origin, ProducerStates

OnProgress = Callable[[int], None]
"""Called with the bytes that were read since the last call."""

_PROGRESS_BYTES = 1 << 20
UNCLEANED = ", and cleaner-offset-checkpoint does not show that compaction removed them"


class SegmentEnd(NamedTuple):
    """Where the valid batches of a segment end."""

    next_offset: int
    intact: bool


class SegmentCheck:
    """Checks one segment. `last`: the active one, which need not have complete indexes. `holes`: compaction may have
    removed offsets.
    """

    def __init__(
        self,
        folder: str,
        base_offset: int,
        end: int,
        findings: Findings,
        *,
        last: bool,
        closed: bool,
        holes: bool,
        disk: Disk,
    ) -> None:
        path = os.path.join(folder, f"{base_offset:020d}{LOG_SUFFIX}")
        self._segment = LogSegment(disk, OpenFiles(1), folder, base_offset, os.path.getsize(path))
        self._disk = disk
        self._end = end
        self._findings = findings
        self._closed = closed or not last
        self._offsets = self._read(INDEX_SUFFIX, offset_index.ENTRY)
        self._times = self._read(TIME_INDEX_SUFFIX, time_index.ENTRY)
        self._aborts = self._read(TXN_INDEX_SUFFIX, txn_index.ENTRY, needed=False)
        self._holes = holes
        self._epoch_reported = False

    def run(
        self, producers: ProducerStates, epochs: LeaderEpochs, on_progress: OnProgress, *, producers_complete: bool
    ) -> SegmentEnd:
        """Check everything; `producers` follows the batches. `producers_complete`: it has all open transactions."""
        self._producers_complete = producers_complete
        segment, findings = self._segment, self._findings
        path = segment.path(LOG_SUFFIX)
        position, next_offset, why = 0, segment.base_offset, ""
        largest, reported = -1, 0
        for at, data in segment.batches():
            try:
                batch = BatchView(data)
                self._check_batch(batch, next_offset)
                aborted = producers.append(batch, Origin.REPLICATION)
            except CorruptBatch as error:
                why = str(error)
                break
            # Not cut: the records behind a hole are intact, and a repair would lose them.
            if batch.base_offset > next_offset > segment.base_offset and not self._holes:
                what = f"offsets {next_offset} to {batch.base_offset - 1} are missing before this batch{UNCLEANED}"
                findings.add(path, what, Fix.NOTHING, at)
            self._check_offset_entries(batch, at)
            self._check_time_entries(batch)
            self._check_abort(batch, aborted)
            self._check_epoch(batch, epochs, at)
            largest = max(largest, batch.max_timestamp)
            findings.batches += 1
            position, next_offset = at + batch.size, batch.next_offset
            if position - reported >= _PROGRESS_BYTES:
                on_progress(position - reported)
                reported = position
        intact = position == segment.size
        if not intact:
            left = segment.size - position
            reason = why or _describe_damage(segment, position)
            what = f"{left} bytes from offset {next_offset} on are no batches: {reason}"
            findings.add(path, what, Fix.CUT, position, next_offset)
        self._check_rest(largest, intact=intact)
        on_progress(segment.size - reported)
        findings.segments += 1
        findings.size_bytes += segment.size
        return SegmentEnd(next_offset, intact)

    def _check_batch(self, batch: BatchView, next_offset: int) -> None:
        batch.check_crc()
        if batch.base_offset < next_offset or batch.last_offset < batch.base_offset:
            raise CorruptBatch(f"offset {batch.base_offset} does not follow {next_offset - 1}")
        if batch.last_offset >= self._end:
            raise CorruptBatch(f"offset {batch.last_offset} belongs to the segment that begins with {self._end}")

    def _check_offset_entries(self, batch: BatchView, at: int) -> None:
        entries = self._offsets
        while entries and entries[-1][1] <= at:
            relative, position = entries.pop()
            offset = self._segment.base_offset + relative
            if position != at:
                self._wrong(INDEX_SUFFIX, f"the entry of offset {offset} leads to {position}, where no batch begins")
            elif offset != batch.last_offset:
                self._wrong(
                    INDEX_SUFFIX, f"the entry of offset {offset} leads to the batch that ends with {batch.last_offset}"
                )

    def _check_time_entries(self, batch: BatchView) -> None:
        entries = self._times
        while entries and self._segment.base_offset + entries[-1][1] <= batch.last_offset:
            timestamp, relative = entries.pop()
            offset = self._segment.base_offset + relative
            if offset < batch.base_offset or timestamp != batch.max_timestamp:
                self._wrong(TIME_INDEX_SUFFIX, f"time {timestamp} is not the time of offset {offset}")

    def _check_abort(self, batch: BatchView, aborted: txn_index.AbortedTxn | None) -> None:
        marker = end_txn_marker(batch)
        has_entry = bool(self._aborts) and self._aborts[-1][3] <= batch.last_offset
        if has_entry:
            _, producer_id, first, last, stable = self._aborts.pop()
            if marker is None or marker.committed or producer_id != batch.producer_id or last != batch.base_offset:
                self._wrong(TXN_INDEX_SUFFIX, f"no transaction of producer {producer_id} was aborted at {last}")
            elif aborted is not None and self._producers_complete and (first, stable) != (aborted[1], aborted[3]):
                self._wrong(TXN_INDEX_SUFFIX, f"the transaction aborted at {last} is not the one it names")
        elif aborted is not None:
            self._wrong(TXN_INDEX_SUFFIX, f"the transaction aborted at {aborted.last_offset} is not in it")

    def _check_epoch(self, batch: BatchView, epochs: LeaderEpochs, at: int) -> None:
        # Once per segment: one wrong line of the checkpoint concerns all batches behind it.
        known = epochs.epoch_for_offset(batch.base_offset)
        if 0 <= known != batch.leader_epoch != -1 and not self._epoch_reported and not epochs.damaged:
            self._epoch_reported = True
            what = (
                f"epoch {known} wrote offset {batch.base_offset}, the batch at {at} of "
                f"{os.path.basename(self._segment.path(LOG_SUFFIX))} has epoch {batch.leader_epoch}"
            )
            self._findings.add(epochs.path, what, Fix.EPOCHS)

    def _check_rest(self, largest: int, *, intact: bool) -> None:
        """Check the index entries that are left after the last batch."""
        if not intact:
            return  # the rest is cut, and the indexes are rebuilt
        for entries, suffix in (
            (self._offsets, INDEX_SUFFIX),
            (self._times, TIME_INDEX_SUFFIX),
            (self._aborts, TXN_INDEX_SUFFIX),
        ):
            if entries:
                self._wrong(suffix, f"{len(entries)} entries are beyond the end of the log")
        # A closed segment's last entry is written with the roll, so that retention need not read the log.
        if self._closed and largest >= 0 and self._last_time not in (None, largest):
            self._wrong(TIME_INDEX_SUFFIX, f"it ends with time {self._last_time}, the log with {largest}")

    def _read(self, suffix: str, entry: struct.Struct, *, needed: bool = True) -> list[tuple[int, ...]]:
        """Return the entries of an index file, last first; report problems of its form."""
        path = self._segment.path(suffix)
        if suffix == TIME_INDEX_SUFFIX:
            self._last_time: int | None = None
        try:
            data = self._disk.read_file(path)
        except FileNotFoundError:
            if needed and self._closed:
                self._findings.add(path, "it is missing", Fix.REBUILD)
            return []
        if len(data) % entry.size:
            self._wrong(
                suffix, f"its size {len(data)} is no multiple of {entry.size}", len(data) - len(data) % entry.size
            )
        entries: list[tuple[int, ...]] = list(entry.iter_unpack(data[: len(data) - len(data) % entry.size]))
        while len(entries) > 1 and not any(entries[-1]):
            entries.pop()  # preallocated by Kafka
        if entries and not any(entries[-1]) and suffix == INDEX_SUFFIX:
            entries.pop()
        for i, (entry_before, entry_after) in enumerate(pairwise(entries)):
            if not _is_ascending(suffix, entry_before, entry_after):
                self._wrong(suffix, f"entry {i + 1} does not follow entry {i}", (i + 1) * entry.size)
                return []
        if suffix == TXN_INDEX_SUFFIX and (odd := next((e for e in entries if e[0] != 0 or e[2] > e[3]), None)):
            self._wrong(suffix, f"entry {entries.index(odd)} is none", entries.index(odd) * entry.size)
            return []
        if suffix == TIME_INDEX_SUFFIX:
            self._last_time = entries[-1][0] if entries else -1
        return entries[::-1]

    def _wrong(self, suffix: str, what: str, position: int | None = None) -> None:
        path = self._segment.path(suffix)
        # The first problem of a file is enough: rebuilding fixes all of them.
        if not any(problem.path == path for problem in self._findings.problems):
            self._findings.add(path, what, Fix.REBUILD, position)


def _is_ascending(suffix: str, entry_before: tuple[int, ...], entry_after: tuple[int, ...]) -> bool:
    if suffix == TXN_INDEX_SUFFIX:
        return entry_before[3] < entry_after[3]
    return entry_before[0] < entry_after[0] and entry_before[1] < entry_after[1]


def _describe_damage(segment: LogSegment, position: int) -> str:
    """Describe why no batch can be read at a position."""
    left = segment.size - position
    head = segment.open_file().pread(min(left, HEADER_SIZE), position)
    if not any(head):
        return "they are zeros"
    if left < HEADER_SIZE:
        return "the file ends inside a batch's header"
    size = HEADER.unpack_from(head)[1] + LOG_OVERHEAD
    if size < HEADER_SIZE:
        return f"a batch cannot have {size} bytes"
    return f"the file ends inside a batch of {size} bytes"
