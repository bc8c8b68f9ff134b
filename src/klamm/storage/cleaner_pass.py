"""One pass of compaction over the files of a log, for a thread: map the newest offset of every key, copy what stays.

Nothing here touches the state of the log. Closed segments do not change, so they are read without a lock; the result is
in `.cleaned` files until `LogCleaner` swaps it in. Memory is bounded: a table for keys (24 bytes per key) and two
buffers. Chunks of plain batches go through the compiled kernels; compressed and transactional batches one by one.

The kernels keep their progress in an array of 64-bit words (`kernels.layout`), shared by all calls of a pass.
"""

import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from klamm.model.errors import CorruptBatch
from klamm.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchView,
    seal_batch,
)
from klamm.records.control import end_txn_marker
from klamm.records.kernels import compaction, layout
from klamm.storage.compaction_policy import CleanedTransactions, ClosedSegment, group_segments
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, write_all
from klamm.storage.log_segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LogSegment
from klamm.storage.offset_index import OffsetIndex
from klamm.storage.segment_swap import CLEANED_SUFFIX, remove_files
from klamm.storage.time_index import TimeIndex
from klamm.storage.txn_index import ENTRY as TXN_ENTRY
from klamm.storage.txn_index import AbortedTxn

SLOT_BYTES = 24
CHUNK_BYTES_MIN = 16 * 1024
_SIP_CONSTANTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


class CleanerStopped(Exception):
    """Raised to end a pass early: the log is being deleted or truncated, or the node stops."""


@dataclass(slots=True)
class CleanerJob:
    """The input of a pass, copied from the log when it begins."""

    name: str
    segments: list[LogSegment]
    """The closed segments below the end of the pass, beside `facts`."""
    facts: list[ClosedSegment]
    first_dirty_offset: int
    end_offset: int
    config: LogConfig
    aborted: list[AbortedTxn]
    producers: dict[int, tuple[int, int]]
    """Producer id -> (offset of its last record or -1, epoch): their last batches stay, for their sequences."""
    now_ms: int
    memory_bytes: int
    load_factor: float
    buffer_bytes: int
    bytes_per_second: float
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class CleanedGroup:
    """Synced files that replace a group of segments; their names end with `.cleaned`."""

    replaced: list[LogSegment]
    base_offset: int
    size: int
    max_timestamp: tuple[int, int]


@dataclass(slots=True)
class CleanerStats:
    """Counters of a pass."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The duration so far."""
        return max(time.monotonic() - self.started, 1e-9)


class CleanerPass:
    """A pass under way. Call `map_keys` first, then `rewrite` for every one of the `groups` in order."""

    def __init__(self, disk: Disk, job: CleanerJob) -> None:
        self._disk = disk
        self._job = job
        self.stats = CleanerStats()
        self._moved = 0
        self._position = 0
        """Where in its file the chunk begins that is being worked on."""
        self._w = bytearray(8 * layout.PASS_WORDS)
        self._words = memoryview(self._w).cast("q")
        # There are no more keys than offsets: a small pass needs no large table.
        slots_needed = int((job.end_offset - job.first_dirty_offset) / job.load_factor) + 2
        # At least two slots, so that the table is never full: an empty slot ends every probe.
        slots = max(min(slots_needed, job.memory_bytes // SLOT_BYTES), 2)
        self._table = bytearray(slots * SLOT_BYTES)
        self._limit = max(min(int(slots * job.load_factor), slots - 1), 1)
        self._seed = _new_seed()
        self.map_end = job.first_dirty_offset
        """The offset after the last one whose key is in the table: the log will be clean up to here."""
        self._transactions = CleanedTransactions(job.aborted)
        # A producer's last batch keeps at least its header, or its next sequence would be unknown after a restart. The
        # last batch of the pass does too: the segment must still end where the next one begins.
        self._kept_offsets = {last for last, _ in job.producers.values() if last >= 0} | {job.end_offset - 1}
        self._keep = struct.pack(f"={len(self._kept_offsets)}q", *sorted(self._kept_offsets))

    # --- the first pass ----------------------------------------------------------------------------------------------

    def map_keys(self) -> None:
        """Fill the table from the dirty part, as far as its keys fit."""
        first = self._job.first_dirty_offset
        # Of its own, because the second pass follows the same transactions from the start again.
        transactions = CleanedTransactions(self._job.aborted)
        words = self._words
        for segment, facts in zip(self._job.segments, self._job.facts, strict=True):
            end = facts.end_offset
            if end <= first:
                continue
            location = segment.find(first) if first > segment.base_offset else None
            start = location.position if location is not None else 0
            words[layout.NEXT_OFFSET] = self.map_end
            for chunk in self._chunks(segment, start):
                words[layout.INPUT_AT] = 0
                reason = compaction.map_keys(chunk, first, self._table, self._limit, self._seed, self._w)
                while reason == layout.SPECIAL:
                    reason = self._map_special(BatchView(chunk, words[layout.INPUT_AT]), transactions)
                    if reason == layout.END:
                        reason = compaction.map_keys(chunk, first, self._table, self._limit, self._seed, self._w)
                self.map_end = max(self.map_end, words[layout.NEXT_OFFSET])
                self.stats.keys = words[layout.SLOTS_USED]
                if reason == layout.FULL:
                    return
                if reason == layout.DAMAGED:
                    raise self._damage(segment)
            self.map_end = max(self.map_end, end)

    def _map_special(self, batch: BatchView, transactions: CleanedTransactions) -> int:
        """Note the keys of one batch that is not plain, and step over it."""
        has_live_keys = True
        if batch.is_control:
            _note_marker(batch, transactions)
            has_live_keys = False
        elif batch.is_transactional:
            # An aborted record must not displace an older value of its key: readers of committed data never see it.
            has_live_keys = not transactions.is_aborted(batch.producer_id, batch.last_offset)
        if has_live_keys:
            reason = compaction.map_section(
                batch.unpacked_records(),
                batch.record_count,
                batch.base_offset,
                self._job.first_dirty_offset,
                self._table,
                self._limit,
                self._seed,
                self._w,
            )
            if reason != layout.END:
                return reason
        self._words[layout.INPUT_AT] = batch.end
        self._words[layout.NEXT_OFFSET] = batch.next_offset
        return layout.END

    def groups(self) -> list[list[LogSegment]]:
        """Return which segments become one; `map_keys` has decided how far the pass goes."""
        segments = [s for s in self._job.segments if s.base_offset < self.map_end]
        groups = group_segments(self._job.facts[: len(segments)], self._job.config)
        return [[segments[i] for i in group] for group in groups]

    # --- the second pass ---------------------------------------------------------------------------------------------

    def rewrite(self, group: list[LogSegment]) -> CleanedGroup:
        """Write what stays of a group of segments into `.cleaned` files and make them durable."""
        folder, base = group[0].folder, group[0].base_offset
        try:
            return self._rewrite(group)
        except BaseException:
            remove_files(self._disk, folder, base, CLEANED_SUFFIX)
            raise

    def _rewrite(self, group: list[LogSegment]) -> CleanedGroup:
        first = group[0]
        words = self._words
        words[layout.RECORDS_KEPT] = words[layout.KEEP_NEXT] = words[layout.FILE_AT] = words[
            layout.BYTES_SINCE_ENTRY
        ] = words[layout.INDEX_ENTRIES] = 0
        words[layout.MAX_TIMESTAMP], words[layout.MAX_TIMESTAMP_OFFSET] = NO_TIMESTAMP, first.base_offset
        writer = _CleanedFiles(self._disk, first, self._job.config.index_interval_bytes, words)
        try:
            for segment in group:
                for chunk in self._chunks(segment, 0):
                    self._rewrite_chunk(segment, chunk, writer)
            # The transaction index of this group; later groups have their own.
            retained, self._transactions.retained = self._transactions.retained, []
            writer.finish(retained, group[-1])
        finally:
            writer.close()
        self.stats.bytes_written += writer.size
        return CleanedGroup(
            group, first.base_offset, writer.size, (words[layout.MAX_TIMESTAMP], words[layout.MAX_TIMESTAMP_OFFSET])
        )

    def _rewrite_chunk(self, segment: LogSegment, chunk: memoryview, writer: "_CleanedFiles") -> None:
        words = self._words
        interval = self._job.config.index_interval_bytes
        out = bytearray(len(chunk))
        marks = bytearray(32 * (len(chunk) // max(min(interval, 1 << 30), 61) + 2))
        words[layout.INPUT_AT] = 0
        before = words[layout.RECORDS_KEPT], words[layout.RECORDS_READ]
        while True:
            words[layout.OUTPUT_SIZE] = words[layout.INDEX_ENTRIES] = 0
            reason = compaction.filter_batches(
                chunk,
                out,
                self._table,
                self._seed,
                self.map_end,
                self._job.now_ms,
                self._keep,
                interval,
                marks,
                self._w,
            )
            writer.write(memoryview(out)[: words[layout.OUTPUT_SIZE]], marks)
            if reason != layout.SPECIAL:
                break
            self._rewrite_special(BatchView(chunk, words[layout.INPUT_AT]), writer)
        if reason == layout.DAMAGED:
            raise self._damage(segment)
        self.stats.records_kept += words[layout.RECORDS_KEPT] - before[0]
        self.stats.records_read += words[layout.RECORDS_READ] - before[1]

    def _rewrite_special(self, batch: BatchView, writer: "_CleanedFiles") -> None:
        """Filter one batch that is not plain, or needs a delete horizon, and step over it."""
        words = self._words
        words[layout.INPUT_AT] = batch.end
        words[layout.RECORDS_READ] += batch.record_count
        discard = idle = False
        horizon = batch.base_timestamp if batch.has_delete_horizon else None
        # The delete horizon (KIP-534) is in the base timestamp: from then on tombstones and markers may go.
        passed = horizon is not None and horizon <= self._job.now_ms
        if batch.is_control:
            idle = _note_marker(batch, self._transactions)
            discard = idle and passed
        elif batch.is_transactional:
            discard = self._transactions.is_aborted(batch.producer_id, batch.last_offset)
        section: bytes | bytearray | memoryview = b""
        kept = tombstones = largest = 0
        if not discard:
            section = batch.unpacked_records()
            kept, tombstones = batch.record_count, 0
            if not batch.is_control:
                section, kept, tombstones, largest = compaction.filter_section(
                    section,
                    batch.record_count,
                    batch.base_offset,
                    self._table,
                    self._seed,
                    self.map_end,
                    passed,
                    0,
                )
        words[layout.RECORDS_KEPT] += kept
        if kept == 0:
            # An empty batch is valid in Kafka's format: it keeps offsets and sequences and holds no records.
            if self._must_stay(batch):
                writer.put(batch, _build_empty_batch(batch))
            return
        # The first pass that meets a tombstone only starts its clock, so that slow consumers still see the deletion.
        due = (tombstones > 0 or idle) and horizon is None and batch.base_offset < self.map_end
        if kept == batch.record_count and not due:
            writer.put(batch, batch.raw)
        else:
            writer.put(batch, self._rebuild_batch(batch, section, kept, largest, due))

    def _rebuild_batch(
        self, batch: BatchView, section: bytes | bytearray | memoryview, kept: int, largest: int, due: bool
    ) -> bytearray:
        """Return the batch with only these records; `due` sets the time from which its tombstones or marker may go."""
        base_timestamp, attributes = batch.base_timestamp, batch.attributes & ~CODEC_MASK
        keeps_max_timestamp = batch.is_log_append_time or kept == batch.record_count
        max_timestamp = batch.max_timestamp if keeps_max_timestamp else base_timestamp + largest
        if due:
            base_timestamp = self._job.now_ms + self._job.config.delete_retention_ms
            attributes |= DELETE_HORIZON
            records = compaction.shift_timestamps(section, kept, batch.base_timestamp - base_timestamp, HEADER_SIZE)
        else:
            records = bytearray(HEADER_SIZE) + section
        return seal_batch(
            records,
            record_count=kept,
            last_offset_delta=batch.last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            attributes=attributes,
            base_offset=batch.base_offset,
            codec=batch.codec,
            level=self._job.config.level(batch.codec),
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            leader_epoch=batch.leader_epoch,
        )

    def _must_stay(self, batch: BatchView) -> bool:
        """Return whether an emptied batch keeps its header: a producer's last one, or the last of the pass."""
        last_offset, epoch = self._job.producers.get(batch.producer_id, (-1, -1))
        if batch.producer_id >= 0 and last_offset < 0 and batch.is_control and batch.producer_epoch == epoch:
            return True
        return batch.last_offset in self._kept_offsets

    # --- reading -----------------------------------------------------------------------------------------------------

    def _chunks(self, segment: LogSegment, position: int) -> Iterator[memoryview]:
        """Yield the bytes of a segment, a buffer at a time; the next begins where the kernels stopped (word 0)."""
        file = segment.open_file()
        buffer_bytes = max(self._job.buffer_bytes, CHUNK_BYTES_MIN)
        chunk_size = buffer_bytes
        while position < segment.size:
            if self._job.stop.is_set():
                raise CleanerStopped
            self._position = position
            chunk = file.pread(min(chunk_size, segment.size - position), position)
            yield memoryview(chunk)
            used = self._words[layout.INPUT_AT]
            chunk_size = buffer_bytes
            # Not one whole batch was in it: read again with the size that its header names.
            if used == 0:
                chunk_size = HEADER.unpack_from(chunk)[1] + LOG_OVERHEAD if len(chunk) >= HEADER_SIZE else 0
                if chunk_size <= len(chunk) or position + chunk_size > segment.size:
                    raise self._damage(segment)
            position += used
            self.stats.bytes_read += used
            self._throttle(used)

    def _damage(self, segment: LogSegment) -> CorruptBatch:
        return CorruptBatch(f"{segment.path(LOG_SUFFIX)} is damaged at {self._position + self._words[layout.INPUT_AT]}")

    def _throttle(self, count: int) -> None:
        """Keep to log.cleaner.io.max.bytes.per.second; what is read counts twice, because it is about to be written."""
        self._moved += 2 * count
        ahead = self._moved / self._job.bytes_per_second - self.stats.seconds
        if ahead > 0.001:
            self._job.stop.wait(min(ahead, 1.0))


class _CleanedFiles:
    """The `.cleaned` files of one group: batches are written as they come, indexes are in memory until the end."""

    def __init__(self, disk: Disk, segment: LogSegment, interval: int, words: memoryview) -> None:
        self._disk = disk
        self._segment = segment
        self._interval = interval
        self._words = words
        self.size = 0
        self._index = OffsetIndex(segment.base_offset, bytearray())
        self._times = TimeIndex(segment.base_offset, bytearray())
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = disk.open(segment.path(LOG_SUFFIX) + CLEANED_SUFFIX, flags, 0o644)

    def write(self, data: memoryview, marks: bytearray) -> None:
        """Append what a kernel put out, with the index entries it made."""
        if data:
            write_all(self._disk, self._fd, data, self.size)
            self.size += len(data)
        for last_offset, position, timestamp, at in struct.iter_unpack(
            "=4q", marks[: 32 * self._words[layout.INDEX_ENTRIES]]
        ):
            self._index.append(last_offset, position)
            self._times.maybe_append(timestamp, at)

    def put(self, batch: BatchView, data: memoryview | bytearray) -> None:
        """Append one batch; its offsets and largest timestamp are those of `batch` or of the new header."""
        words = self._words
        max_timestamp = BatchView(data).max_timestamp
        if max_timestamp > words[layout.MAX_TIMESTAMP]:
            words[layout.MAX_TIMESTAMP], words[layout.MAX_TIMESTAMP_OFFSET] = max_timestamp, batch.last_offset
        if words[layout.BYTES_SINCE_ENTRY] > self._interval:
            self._index.append(batch.last_offset, words[layout.FILE_AT])
            self._times.maybe_append(words[layout.MAX_TIMESTAMP], words[layout.MAX_TIMESTAMP_OFFSET])
            words[layout.BYTES_SINCE_ENTRY] = 0
        words[layout.BYTES_SINCE_ENTRY] += len(data)
        words[layout.FILE_AT] += len(data)
        write_all(self._disk, self._fd, data, self.size)
        self.size += len(data)

    def finish(self, aborted: list[AbortedTxn], last: LogSegment) -> None:
        """Write the indexes and make everything durable; the files are as old as the youngest they replace."""
        self._times.maybe_append(self._words[layout.MAX_TIMESTAMP], self._words[layout.MAX_TIMESTAMP_OFFSET])
        contents: list[tuple[str, bytes | bytearray]] = [
            (INDEX_SUFFIX, bytes(self._index.buffer)),
            (TIME_INDEX_SUFFIX, bytes(self._times.buffer)),
        ]
        if aborted:
            contents.append((TXN_INDEX_SUFFIX, b"".join(TXN_ENTRY.pack(0, *txn) for txn in aborted)))
        for suffix, content in contents:
            self._disk.write_file(self._segment.path(suffix) + CLEANED_SUFFIX, content, sync=True)
        # Retention falls back to the file's time when records carry no timestamps; rewriting must not make them young.
        modified = self._disk.fstat(last.open_file().fd).st_mtime_ns
        self._disk.fsync(self._fd)
        self._disk.utime(self._fd, ns=(modified, modified))

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._fd)


def _build_empty_batch(batch: BatchView) -> bytearray:
    """Return the header alone: offsets, producer, sequences and time stay."""
    return seal_batch(
        bytearray(HEADER_SIZE),
        record_count=0,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=batch.max_timestamp,
        attributes=batch.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_offset=batch.base_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        leader_epoch=batch.leader_epoch,
    )


def _note_marker(batch: BatchView, transactions: CleanedTransactions) -> bool:
    """Pass a control batch to `transactions`; return whether it may go. An emptied one may, other kinds never."""
    if batch.record_count == 0:
        return True
    marker = end_txn_marker(batch)
    if marker is None:
        return False
    return transactions.marker_is_idle(batch.producer_id, batch.last_offset, marker.committed)


def _new_seed() -> bytes:
    """SipHash's starting state under a new secret, as the kernels take it: clients cannot prepare keys that collide."""
    key = struct.unpack("=2Q", secrets.token_bytes(16))
    words = [constant ^ key[i % 2] for i, constant in enumerate(_SIP_CONSTANTS)]
    words[1] ^= 0xEE
    return struct.pack("=4Q", *words)
