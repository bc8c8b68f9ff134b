"""Appending to a log: stage batches, write them with one call, roll segments.

Appending has two steps so that all requests of one turn of the loop share one write: `stage` checks a batch and gives
it an offset, `write_staged` writes everything staged. A write that fails leaves no trace: offsets, producers, leader
epochs and the file are as before the first `stage`.
"""

import errno
import os
from struct import Struct
from typing import TYPE_CHECKING

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError, StorageFailure
from klamm.records.batch import CRC_START, BatchView, iter_batches
from klamm.records.crc import crc32c
from klamm.records.kernels.produce import plain_header
from klamm.storage import truncation
from klamm.storage.batch_validation import NeedsFullValidation, has_sound_records, validate
from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.log_segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LogSegment
from klamm.storage.log_state import LogState, LogStatus
from klamm.storage.producer_state import MAX_SEQUENCE, Origin, Undo
from klamm.storage.refused_batches import RefusedBatches
from klamm.storage.txn_index import AbortedTxn

if TYPE_CHECKING:
    from klamm.records.kernels.produce import PlainHeader

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
INT32_MAX = 2**31 - 1
_ONLINE = LogStatus.ONLINE

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_pack_offset_and_epoch = Struct(">qii").pack_into
"""Base offset, batch length (unchanged), leader epoch: the fields a broker assigns, in one call. All three come before
the bytes that the CRC covers, so the producer's checksum still holds."""


class LogAppender:
    """The writing side of a log: everything between a batch that arrives and its bytes in the active segment.

    One thread owns it. Between calls, `next_offset` is `log_end_offset` plus what is staged.
    """

    def __init__(self, state: LogState, now_ms: int) -> None:
        self._state = state
        self._segments = state.segments
        self._producers = state.producers
        self._leader_epochs = state.leader_epochs
        self._name = state.name
        self.next_offset = state.log_end_offset
        """The offset the next staged batch gets."""
        self.now_ms = now_ms
        """The clock as of the last batch staged."""
        self._staged: list[memoryview] = []
        self._staged_meta: list[tuple[int, int, int]] = []
        """(last offset, size, max timestamp) of every staged batch, beside `_staged`."""
        self._staged_bytes = 0
        self._staged_max_timestamp = -1
        self._staged_aborts: list[AbortedTxn] = []
        self._staged_epochs: list[tuple[int, int]] = []
        """(leader epoch, first offset) of every leader epoch that begins with a staged batch."""
        self._undo: Undo = []
        self._refused: RefusedBatches | None = None
        self._latest_epoch = state.leader_epochs.latest
        # These two are looked up for every batch; their identity never changes.
        self._entries = state.producers.entries
        self.pwritev = state.disk.pwritev
        self.apply_config(state.config)

    def apply_config(self, config: LogConfig) -> None:
        """Derive from a topic's settings what the append path compares with."""
        self._config = config
        # Positions in the offset index are 32 bits wide.
        self._segment_bytes = min(config.segment_bytes, INT32_MAX)
        self._max_message_bytes = min(config.max_message_bytes, self._segment_bytes)
        self._index_interval = config.index_interval_bytes
        # segment.index.bytes bounds either index; the time index has the larger entries (12 bytes to 8).
        self._index_max = config.segment_index_bytes // 12 * 8
        self._after_max_ms = config.message_timestamp_after_max_ms
        # From the name, not from chance: the same partition rolls at the same time after every restart.
        self._jitter_ms = crc32c(self._name.encode()) % config.segment_jitter_ms if config.segment_jitter_ms else 0
        self._requires_keys = config.compacted
        self.unchecked_codecs = config.unchecked_codecs
        # Such a topic stores batches as they come: the kernel's look at the header covers every rule that applies.
        self._accepts_plain = (
            config.codec is None and not config.log_append_time and config.message_timestamp_before_max_ms == MAX_LONG
        )

    def reset_to_log_end(self) -> None:
        """Continue at `log_end_offset`, after a truncation or after the leader epochs changed."""
        self.next_offset = self._state.log_end_offset
        self._latest_epoch = self._leader_epochs.latest

    def schedule_roll(self) -> None:
        """Set when the active segment of a log that was opened with content is due to roll."""
        active = self._segments.active
        first = next(active.headers(0), None)
        if first is not None:
            active.note_first_timestamp(first.max_timestamp, self._config, self._jitter_ms)

    # --- appending ---------------------------------------------------------------------------------------------------

    def stage(self, batches: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Check a producer's batch, give it the next offset in place, and queue it for `write_staged`.

        Returns the offset of its first record; a duplicate of a known batch queues nothing and returns the original's.
        RecordRefused, CorruptBatch and KlammError change nothing. The view must be writable and stay valid until
        `write_staged`.
        """
        header = plain_header(batches) if self._accepts_plain else None
        # header[6] is the codec: compressed records are checked by the slow path here, `stage_plain` is for callers
        # that have decided that decompressing on the loop is cheap enough.
        if header is None or header[6]:
            return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
        return self.stage_plain(batches, leader_epoch, now_ms, header)

    def stage_plain(self, batches: memoryview, leader_epoch: int, now_ms: int, header: "PlainHeader") -> int:
        """`stage` for a batch without anything special, whose header was read already: most of them.

        Compressed batches are checked here too: NeedsFullValidation leaves one to `validate`, DecompressInThread to a
        thread.
        """
        size = len(batches)
        crc, last_delta, max_timestamp, producer_id, epoch, sequence, codec, keyless = header
        # Also raised where records are not looked at: `validate` explains a checksum that does not match.
        if codec and (not self._accepts_plain or not self._has_sound_records(batches, crc, codec)):
            raise NeedsFullValidation
        if (
            not self._accepts_plain
            or size > self._max_message_bytes
            or max_timestamp > now_ms + self._after_max_ms
            or (keyless and self._requires_keys)
            or self._state.status is not _ONLINE
        ):
            return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
        count = last_delta + 1
        offset = self.next_offset
        if producer_id >= 0:
            entry = self._entries.get(producer_id)
            # Only the next batch of a known producer outside of a transaction is decided here. Duplicates, gaps, new
            # epochs and sequences that wrap around are rare and take the slow path.
            if (
                entry is None
                or entry.epoch != epoch
                or entry.next_sequence != sequence
                or entry.txn_first_offset >= 0
                or sequence > MAX_SEQUENCE - count
            ):
                return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
            # A negative crc means that the kernel has compared it already. The comparison comes before the first
            # change of state: after it nothing below can fail.
            if crc >= 0 and crc32c(batches[CRC_START:]) != crc:
                raise CorruptBatch(f"the batch for {self._name} does not match its checksum")
            remembered = entry.batches
            # What `ProducerEntry.state()` returns, written out to save the call.
            self._undo.append((entry, (remembered, sequence, entry.last_timestamp, epoch, entry.coordinator_epoch, -1)))
            entry.batches = (
                *remembered[-4:],
                (sequence, sequence + last_delta, offset, offset + last_delta, max_timestamp),
            )
            entry.next_sequence = sequence + count
            entry.last_timestamp = max_timestamp
        elif crc >= 0 and crc32c(batches[CRC_START:]) != crc:
            raise CorruptBatch(f"the batch for {self._name} does not match its checksum")
        if leader_epoch != self._latest_epoch:
            self._staged_epochs.append((leader_epoch, offset))
            self._latest_epoch = leader_epoch
        # In place, in the buffer the request arrived in: the same bytes go to the file without a copy.
        _pack_offset_and_epoch(batches, 0, offset, size - 12, leader_epoch)
        self.next_offset = offset + count
        self._staged.append(batches)
        self._staged_meta.append((offset + last_delta, size, max_timestamp))
        self._staged_bytes += size
        if max_timestamp > self._staged_max_timestamp:  # noqa: PLR1730 - a call to max costs more than the append
            self._staged_max_timestamp = max_timestamp
        self.now_ms = now_ms
        return offset

    def _has_sound_records(self, batches: memoryview, crc: int, codec: int) -> bool:
        """Return whether a small compressed batch is what its header and checksum say."""
        if crc >= 0 and crc32c(batches[CRC_START:]) != crc:
            return False
        return codec in self.unchecked_codecs or has_sound_records(batches, codec, self._config, self._name)

    def stage_validated(self, batch: BatchView, leader_epoch: int, now_ms: int) -> int:
        """`stage` for a client's batch that `validate` has accepted already, maybe in a thread."""
        self._state.check_appendable()
        return self._stage_batch(batch, leader_epoch, now_ms, Origin.CLIENT)

    def write_staged(self) -> None:
        """Write everything staged; after it, `log_end_offset` includes it.

        When the disk refuses, nothing staged is kept, offsets and producer state are as before `stage`, and
        StorageFailure is raised.
        """
        staged = self._staged
        if not staged:
            return
        total = self._staged_bytes
        segment = self._segments.active
        position = segment.size
        index = segment.index
        # Whatever may need a roll, or more than one write, goes the slow way. `8 * len(staged)` is an upper bound for
        # the index entries; an empty segment still has to learn when it is due to roll.
        if (
            position + total > self._segment_bytes
            or self._staged_max_timestamp > segment.roll_at_timestamp
            or self.now_ms > segment.roll_at_clock_ms
            or self.next_offset - segment.base_offset > INT32_MAX
            or index.size + 8 * len(staged) > self._index_max  # type: ignore[union-attr]
            or len(staged) > IOV_MAX
            or not position
            or self._staged_epochs
            or self._staged_aborts
        ):
            self._write_in_runs()
            return
        # At an explicit position, not in append mode: what an earlier failed write left behind is overwritten.
        try:
            written = self.pwritev(segment.file.fd, staged, position)  # type: ignore[union-attr]
        except OSError as error:
            raise self._fail_write(error) from error
        if written != total:
            raise self._fail_write(_short_write(written, total))
        # The index follows the bytes, never the other way round: an entry must not lead to a batch that is not there.
        self._index_written(segment, self._staged_meta)
        self._state.log_end_offset = self.next_offset
        self._clear_staged()

    def stage_as_follower(self, batches: memoryview) -> None:
        """Check that batches continue the log and queue them for `write_staged`.

        A fetch response may end inside a batch; that batch is left out.
        """
        self._state.check_appendable()
        assert not self._staged, "a follower's log has nothing else staged"
        try:
            for batch in iter_batches(batches, allow_incomplete_tail=True):
                self._check_follows_log(batch)
                self._update_producer(batch, Origin.REPLICATION)
                self._enqueue(batch, batch.base_offset, batch.leader_epoch)
        except KlammError:
            self._discard_staged()
            raise

    def _check_follows_log(self, batch: BatchView) -> None:
        if batch.base_offset < self.next_offset:
            raise KlammError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the batch at {batch.base_offset} does not continue {self._name}, whose next offset is "
                f"{self.next_offset}",
            )
        batch.check_crc()

    def stage_from(
        self, data: memoryview, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        """`stage` for batches of any origin, with all checks."""
        self._state.check_appendable()
        batch = validate(data, self._config, now_ms, origin, self._name)
        return self._stage_batch(batch, leader_epoch, now_ms, origin, transaction_version)

    def _stage_batch(
        self, batch: BatchView, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        if batch.size > self._segment_bytes:
            raise KlammError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch of {batch.size} bytes for {self._name} is larger than segment.bytes={self._segment_bytes}",
            )
        if batch.producer_id >= 0 and origin is Origin.CLIENT:
            duplicate = self._producers.find_duplicate(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
            )
            # Before the checks that refuse gaps: a retry of a batch that was stored must succeed whatever came between.
            if duplicate is not None:
                return duplicate.first_offset
            if self._refused:
                self._refused.check(batch, self._entries, now_ms)
            if now_ms < self._producers.gaps_refused_until_ms:
                self._producers.check_no_gap(batch)
        offset = self.next_offset
        # The producer's state remembers offsets, so the batch gets its own before it is checked against that state.
        batch.set_offset_and_epoch(offset, leader_epoch)
        try:
            self._update_producer(batch, origin, transaction_version)
        except KlammError:
            # A retry must arrive as it was sent: `validate` refuses a base offset other than 0.
            batch.set_offset_and_epoch(0, leader_epoch)
            raise
        self.now_ms = now_ms
        self._enqueue(batch, offset, leader_epoch)
        return offset

    def note_refused(self, data: memoryview, code: ErrorCode, now_ms: int) -> None:
        """Refuse the batches after a client's batch that was refused for a transient reason, until it is sent again."""
        if self._refused is None:
            self._refused = RefusedBatches()
        self._refused.note(data, self._entries, code, now_ms)

    def _update_producer(self, batch: BatchView, origin: Origin, transaction_version: int = 0) -> None:
        aborted = self._producers.append(batch, origin, self._undo, transaction_version=transaction_version)
        if aborted is not None:
            self._staged_aborts.append(aborted)

    def _enqueue(self, batch: BatchView, offset: int, leader_epoch: int) -> None:
        if leader_epoch != self._latest_epoch:
            self._staged_epochs.append((leader_epoch, offset))
            self._latest_epoch = leader_epoch
        self.next_offset = batch.next_offset
        self._staged.append(batch.raw)
        self._staged_meta.append((batch.last_offset, batch.size, batch.max_timestamp))
        self._staged_bytes += batch.size
        self._staged_max_timestamp = max(self._staged_max_timestamp, batch.max_timestamp)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _index_written(self, segment: LogSegment, written: list[tuple[int, int, int]]) -> None:
        """Bring size, indexes and largest timestamp up to date with batches just written at the segment's end."""
        position = segment.size
        unindexed = segment.bytes_since_index
        interval = self._index_interval
        largest, largest_at = segment.max_timestamp
        for last_offset, size, timestamp in written:
            if timestamp > largest:
                largest, largest_at = timestamp, last_offset
                segment.max_timestamp = (timestamp, last_offset)
            # As in Kafka, the batch that begins after the interval gets the entry, not the one that completes it.
            if unindexed > interval:
                segment.index.append(last_offset, position)  # type: ignore[union-attr]
                segment.time_index.maybe_append(largest, largest_at)  # type: ignore[union-attr]
                unindexed = 0
            unindexed += size
            position += size
        segment.size = position
        segment.bytes_since_index = unindexed

    def _clear_staged(self) -> None:
        # New lists: the old ones may still be held by a write that failed.
        self._staged = []
        self._staged_meta = []
        self._staged_bytes = 0
        self._staged_max_timestamp = -1
        if self._undo:
            self._undo.clear()

    def _write_in_runs(self) -> None:
        """`write_staged` for what happens rarely: rolls, a new leader epoch, aborted transactions, very many batches.

        Batches are written in runs, one for each segment they go to. A roll writes a snapshot of the producers, which
        must not know of batches in later segments. So producer state is rolled back to the log end first, and follows
        run by run.
        """
        state = self._state
        end_before = state.log_end_offset
        staged, staged_meta, end = self._staged, self._staged_meta, self.next_offset
        epochs = self._staged_epochs
        self._staged_epochs, self._staged_aborts = [], []
        self._producers.rollback(self._undo, end_before)
        self.next_offset = end_before
        start = 0
        try:
            # Epochs before bytes: a crash in between leaves an epoch that starts at the log end, which recovery drops.
            # The other way round it would leave batches whose leader epoch the checkpoint does not know.
            for epoch, offset in epochs:
                self._leader_epochs.assign(epoch, offset)
            size = self._segments.active.size
            for i, (last_offset, batch_size, timestamp) in enumerate(staged_meta):
                if self._must_roll(size, batch_size, last_offset, timestamp, i - start):
                    self._write_run(staged[start:i], staged_meta[start:i])
                    self.roll(self.now_ms)
                    start, size = i, 0
                size += batch_size
            self._write_run(staged[start:], staged_meta[start:])
        except (OSError, StorageFailure) as error:
            # Also when only a later run failed: a turn's write is acknowledged as a whole or not at all.
            raise self._fail_write(error, end_before) from error
        assert state.log_end_offset == end
        self._clear_staged()

    def _must_roll(self, size: int, batch_size: int, last_offset: int, timestamp: int, unwritten: int) -> bool:
        """Return whether a batch must begin a new segment, when `unwritten` batches before it are not indexed yet."""
        segment = self._segments.active
        # An empty segment never rolls: the next one would get the same name.
        return size > 0 and (
            size + batch_size > self._segment_bytes
            or timestamp > segment.roll_at_timestamp
            or self.now_ms > segment.roll_at_clock_ms
            or segment.index.size + 8 * unwritten + 8 > self._index_max  # type: ignore[union-attr]
            or last_offset - segment.base_offset > INT32_MAX
        )

    def _write_run(self, staged: list[memoryview], staged_meta: list[tuple[int, int, int]]) -> None:
        """Write batches to the active segment, then update indexes, offsets, producers and the transaction index."""
        if not staged:
            return
        segment = self._segments.active
        if segment.size == 0:
            segment.note_first_timestamp(staged_meta[0][2], self._config, self._jitter_ms)
        position = segment.size
        assert segment.file is not None
        for i in range(0, len(staged), IOV_MAX):
            expected = sum(size for _, size, _ in staged_meta[i : i + IOV_MAX])
            written = self.pwritev(segment.file.fd, staged[i : i + IOV_MAX], position)
            if written != expected:
                raise _short_write(written, expected)
            position += written
        # Nothing below this line until all bytes of the run are in the file.
        self._index_written(segment, staged_meta)
        self.next_offset = self._state.log_end_offset = staged_meta[-1][0] + 1
        # Checked when they were staged, so they are not checked again: REPLICATION accepts everything.
        for view in staged:
            self._update_producer(BatchView(view), Origin.REPLICATION)
        self._undo.clear()
        for aborted in self._staged_aborts:
            segment.txn_index.append(aborted)
        self._staged_aborts = []

    def _fail_write(self, error: OSError | StorageFailure, end_before: int | None = None) -> StorageFailure:
        """Discard what is staged after a failed write, and what was written beyond `end_before`; return the error.

        A full disk is not a failed disk: the log stays as it was and takes appends again once there is space.
        """
        state = self._state
        segment = self._segments.active
        staged = self._staged
        self._discard_staged()
        failure = StorageFailure(f"cannot write to {self._name} at offset {state.log_end_offset}: {error}")
        try:
            # Part of the write may be in the file. `size` does not count it, but a crash would find it there.
            if segment.file is not None:
                state.disk.ftruncate(segment.file.fd, segment.size)
        except OSError as truncate_error:
            failure = StorageFailure(f"{failure.message}; and the file could not be truncated: {truncate_error}")
            state.fail(failure)
        else:
            if segment.file is None or not _is_disk_full(error):
                state.fail(failure)
        if end_before is not None and state.log_end_offset != end_before:
            self._undo_partial_write(end_before)
        # An idempotent producer has more batches on their way: they must not be taken before these are sent again.
        for view in staged:
            self.note_refused(view, ErrorCode.KAFKA_STORAGE_ERROR, self.now_ms)
        return failure

    def _discard_staged(self) -> None:
        """Reset offsets, producers and epochs to what the log holds."""
        self._producers.rollback(self._undo, self._state.log_end_offset)
        self._staged_epochs, self._staged_aborts = [], []
        self._clear_staged()
        self.reset_to_log_end()

    def _undo_partial_write(self, offset: int) -> None:
        """Truncate the runs of a turn that were written before another run failed."""
        try:
            truncation.truncate_to(self._state, offset, self.now_ms)
        except (OSError, KlammError) as error:
            self._state.fail(StorageFailure(f"cannot truncate {self._name} to {offset}: {error}"))
        self.reset_to_log_end()

    def roll(self, now_ms: int) -> None:
        """Close the active segment and begin the next at the end of the log. An empty one stays."""
        state = self._state
        disk, end = state.disk, state.log_end_offset
        closed = self._segments.active
        if closed.size == 0:
            return
        # Up to `segments.add`, an error of the disk leaves the old segment the active one.
        closed.finish()
        state.snapshots.take(end, self._producers.entries.values())
        if state.recovery_point >= end:
            # All records are durable already, so no restart would check this segment again: its indexes must be too.
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                disk.sync_file(closed.path(suffix))
            disk.sync_file(state.snapshots.path(end))
        self._segments.add(end, self._config, now_ms)
        closed.release()
        state.listener.on_roll(state, closed)


def _short_write(written: int, expected: int) -> StorageFailure:
    return StorageFailure(f"only {written} of {expected} bytes were written: no space left on the disk")


def is_disk_full(failure: StorageFailure) -> bool:
    """Return whether an operation failed only for lack of space, so that the same may succeed later."""
    return isinstance(failure.__cause__, OSError) and failure.__cause__.errno in _DISK_FULL


def _is_disk_full(error: OSError | StorageFailure) -> bool:
    """Return whether a write failed for lack of space; a short write, which has no cause, is its first sign."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return cause is None or (isinstance(cause, OSError) and cause.errno in _DISK_FULL)
