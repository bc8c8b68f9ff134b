"""The writing half of a log: stage batches, commit them with one write, roll segments.

Appending has two steps so that all requests of one turn of the loop share one write: `stage` checks a batch and gives
it an offset, `commit` writes everything staged.
"""

import errno
import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError, StorageFailure
from klamm.model.ids import TopicPartition
from klamm.records.batch import CRC_START, BatchView, iter_batches
from klamm.records.control import build_end_txn_marker
from klamm.records.crc import crc32c
from klamm.records.kernels.produce import plain_header
from klamm.storage import truncation
from klamm.storage.batch_validation import NotPlain, is_sound_inside, validate
from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.disk import Disk
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, Segment
from klamm.storage.producer_snapshots import Snapshots
from klamm.storage.producer_state import MAX_SEQUENCE, Origin, ProducerStates, Undo
from klamm.storage.refused_batches import Refusals
from klamm.storage.segment_list import Segments
from klamm.storage.txn_index import AbortedTxn

if TYPE_CHECKING:
    from klamm.records.kernels.produce import PlainHeader

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
INT32_MAX = 2**31 - 1

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_pack_place = Struct(">qii").pack_into
"""Base offset, batch length (as it was), leader epoch: the fields before the checksum, in one write."""


class LogWriter:
    """The state of a log and everything that appends to it. `Log` adds the rest."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: bytes,
        segments: Segments,
        producers: ProducerStates,
        snapshots: Snapshots,
        leader_epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self.path = path
        self.topic, self.partition = self.topic_partition = partition
        self.name = str(partition)
        self.topic_id = topic_id
        self.segments = segments
        self.producers = producers
        self.snapshots = snapshots
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = self.next_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.sealed: tuple[int, int, int] | None = None
        """Where a log that was closed cleanly stood when it was opened; None for any other."""
        self.truncations = 0
        """How often the end went back: whoever is syncing meanwhile has synced something else."""
        self.on_roll: Callable[[LogWriter, Segment], None] | None = None
        """Called with the segment just closed: the owner flushes it elsewhere."""
        self.before_truncate: Callable[[LogWriter], None] | None = None
        """Called before anything is cut, so that nothing else is at work on the segments."""
        self.on_truncate: Callable[[LogWriter], None] | None = None
        """Called when the recovery point went back: what is on disk of it promises too much."""
        self.on_failure: Callable[[LogWriter, StorageFailure], None] | None = None
        """Told once, when the disk has failed this log for good."""
        self.failed = False
        self.offline = False
        """Whether the log dir under the log has failed."""
        self.cleaned_offset: int | None = None
        """Below it compaction has been; None when it has not, or nobody knows."""
        self.swapping: int | None = None
        """Base offset of the cleaned segment that is about to take its place, its files ending with `.swap`."""
        self.retired = False
        """Whether the log was taken out of service: what fails in its files no longer matters."""
        self._staged: list[memoryview] = []
        self._pending: list[tuple[int, int, int]] = []
        """(last offset, size, max timestamp) of every staged batch, beside `_staged`."""
        self._pending_aborts: list[AbortedTxn] = []
        self._pending_epochs: list[tuple[int, int]] = []
        self._staged_bytes = 0
        self._staged_max_timestamp = -1
        self._undo: Undo = []
        self._refusals: Refusals | None = None
        self._latest_epoch = leader_epochs.latest
        self._now_ms = now_ms
        self._active = segments.active
        self._entries = producers.entries
        self._pwritev = disk.pwritev
        self.config = config

    @property
    def config(self) -> LogConfig:
        """The topic's settings; assign a new one to change them."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._segment_bytes = min(config.segment_bytes, INT32_MAX)
        self._max_message_bytes = min(config.max_message_bytes, self._segment_bytes)
        self._index_interval = config.index_interval_bytes
        self._index_max = config.segment_index_bytes // 12 * 8
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._jitter_ms = crc32c(self.name.encode()) % config.segment_jitter_ms if config.segment_jitter_ms else 0
        # A plain log takes batches as they come: what the kernel tells of them is everything the rules ask.
        self._keyed = config.compacted
        self.unchecked_codecs = config.unchecked_codecs
        self._plain = (
            not self.failed
            and config.codec is None
            and not config.log_append_time
            and config.message_timestamp_before_max_ms == MAX_LONG
        )

    # --- appending ---------------------------------------------------------------------------------------------------

    def stage(self, batches: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Check a producer's batch, give it the next offset in place, and queue it for `commit`.

        Returns the offset of its first record; a duplicate of a known batch queues nothing and returns the original's.
        RecordRefused, CorruptBatch and KlammError change nothing. The view must be writable and stay valid until
        `commit`.
        """
        header = plain_header(batches) if self._plain else None
        if header is None or header[6]:
            return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
        return self.stage_plain(batches, leader_epoch, now_ms, header)

    def stage_plain(self, batches: memoryview, leader_epoch: int, now_ms: int, header: "PlainHeader") -> int:
        """`stage` for a batch without anything special, whose header was read already: most of them.

        Packed batches are looked at here too: NotPlain leaves one to `validate`, UnpackElsewhere to a thread.
        """
        size = len(batches)
        crc, last_delta, max_timestamp, producer_id, epoch, sequence, codec, keyless = header
        if codec and (not self._plain or not self._is_sound_inside(batches, crc, codec)):
            raise NotPlain  # also where nothing inside is looked at: what the checksum refuses, `validate` explains
        if (
            not self._plain
            or size > self._max_message_bytes
            or max_timestamp > now_ms + self._after_max_ms
            or (keyless and self._keyed)
        ):
            return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
        count = last_delta + 1
        offset = self.next_offset
        if producer_id >= 0:
            entry = self._entries.get(producer_id)
            if (
                entry is None
                or entry.epoch != epoch
                or entry.next_sequence != sequence
                or entry.txn_first_offset >= 0
                or sequence > MAX_SEQUENCE - count
            ):
                return self.stage_from(batches, leader_epoch, now_ms, Origin.CLIENT)
            if crc >= 0 and crc32c(batches[CRC_START:]) != crc:
                raise CorruptBatch(f"the batch for {self.name} does not match its checksum")
            remembered = entry.batches
            self._undo.append((entry, (remembered, sequence, entry.last_timestamp, epoch, entry.coordinator_epoch, -1)))
            entry.batches = (
                *remembered[-4:],
                (sequence, sequence + last_delta, offset, offset + last_delta, max_timestamp),
            )
            entry.next_sequence = sequence + count
            entry.last_timestamp = max_timestamp
        elif crc >= 0 and crc32c(batches[CRC_START:]) != crc:
            raise CorruptBatch(f"the batch for {self.name} does not match its checksum")
        if leader_epoch != self._latest_epoch:
            self._pending_epochs.append((leader_epoch, offset))
            self._latest_epoch = leader_epoch
        _pack_place(batches, 0, offset, size - 12, leader_epoch)
        self.next_offset = offset + count
        self._staged.append(batches)
        self._pending.append((offset + last_delta, size, max_timestamp))
        self._staged_bytes += size
        if max_timestamp > self._staged_max_timestamp:  # noqa: PLR1730 - a call to max costs more than the append
            self._staged_max_timestamp = max_timestamp
        self._now_ms = now_ms
        return offset

    def _is_sound_inside(self, batches: memoryview, crc: int, codec: int) -> bool:
        """Whether a small packed batch is what its header and checksum say."""
        if crc >= 0 and crc32c(batches[CRC_START:]) != crc:
            return False
        return codec in self.unchecked_codecs or is_sound_inside(batches, codec, self._config, self.name)

    def stage_validated(self, batch: BatchView, leader_epoch: int, now_ms: int) -> int:
        """`stage` for a client's batch that `validate` has let through already, maybe in a thread."""
        self._check_usable()
        return self._stage_batch(batch, leader_epoch, now_ms, Origin.CLIENT)

    def commit(self) -> None:
        """Write everything staged; after it, `log_end_offset` includes it.

        When the disk refuses, nothing staged is kept, offsets and producer state are as before `stage`, and
        StorageFailure is raised.
        """
        staged = self._staged
        if not staged:
            return
        total = self._staged_bytes
        segment = self._active
        position = segment.size
        index = segment.index
        if (
            position + total > self._segment_bytes
            or self._staged_max_timestamp > segment.roll_at_timestamp
            or self._now_ms > segment.roll_at_clock_ms
            or self.next_offset - segment.base_offset > INT32_MAX
            or index.size + 8 * len(staged) > self._index_max  # type: ignore[union-attr]
            or len(staged) > IOV_MAX
            or not position
            or self._pending_epochs
            or self._pending_aborts
        ):
            self._commit_carefully()
            return
        try:
            written = self._pwritev(segment.file.fd, staged, position)  # type: ignore[union-attr]
        except OSError as error:
            raise self._abandon(error) from error
        if written != total:
            raise self._abandon(_short(written, total))
        self._note_written(segment, self._pending)
        self.log_end_offset = self.next_offset
        self._clear_staged()

    def append_as_leader(
        self, batches: memoryview, leader_epoch: int, now_ms: int, *, origin: Origin = Origin.CLIENT
    ) -> int:
        """Stage and commit one batch; returns the offset of its first record."""
        if origin is Origin.CLIENT:
            offset = self.stage(batches, leader_epoch, now_ms)
        else:
            offset = self.stage_from(batches, leader_epoch, now_ms, origin)
        self.commit()
        return offset

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches with the offsets and leader epochs they carry; they must continue the log."""
        self.stage_as_follower(batches)
        self.commit()

    def stage_as_follower(self, batches: memoryview) -> None:
        """Check that batches continue the log and queue them. A cut last batch is left out, as a fetch may cut it."""
        self._check_usable()
        assert not self._staged, "a follower's log has nothing else staged"
        try:
            for batch in iter_batches(batches, allow_incomplete_tail=True):
                self._check_continues(batch)
                self._remember_producer(batch, Origin.REPLICATION)
                self._queue(batch, batch.base_offset, batch.leader_epoch)
        except KlammError:
            self._unstage()
            raise

    def _check_continues(self, batch: BatchView) -> None:
        if batch.base_offset < self.next_offset:
            raise KlammError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the batch at {batch.base_offset} does not continue {self.name}, whose next offset is "
                f"{self.next_offset}",
            )
        batch.check_crc()

    def append_end_txn_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> int:
        """Stage and commit the marker that ends a producer's transaction here; returns its offset."""
        marker = build_end_txn_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
        )
        offset = self.stage_from(memoryview(marker), leader_epoch, now_ms, Origin.COORDINATOR, transaction_version)
        self.commit()
        return offset

    def append_control(self, batch: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Stage and commit a control batch of our own; returns its offset."""
        return self.append_as_leader(batch, leader_epoch, now_ms, origin=Origin.COORDINATOR)

    def stage_from(
        self, data: memoryview, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        """`stage` for everything that is not plain."""
        self._check_usable()
        batch = validate(data, self._config, now_ms, origin, self.name)
        return self._stage_batch(batch, leader_epoch, now_ms, origin, transaction_version)

    def _stage_batch(
        self, batch: BatchView, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        if batch.size > self._segment_bytes:
            raise KlammError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch of {batch.size} bytes for {self.name} is larger than segment.bytes={self._segment_bytes}",
            )
        if batch.producer_id >= 0 and origin is Origin.CLIENT:
            known = self.producers.find_duplicate(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
            )
            if known is not None:
                return known.first_offset
            if self._refusals:
                self._refusals.check(batch, self._entries, now_ms)
            if now_ms < self.producers.settled_at_ms:
                self.producers.check_nothing_missing(batch)
        offset = self.next_offset
        batch.set_offset_and_epoch(offset, leader_epoch)
        try:
            self._remember_producer(batch, origin, transaction_version)
        except KlammError:
            batch.set_offset_and_epoch(0, leader_epoch)
            raise
        self._now_ms = now_ms
        self._queue(batch, offset, leader_epoch)
        return offset

    def note_refused(self, data: memoryview, code: ErrorCode, now_ms: int) -> None:
        """A client's batch was refused for a reason that passes: nothing behind it is taken before it comes again."""
        if self._refusals is None:
            self._refusals = Refusals()
        self._refusals.note(data, self._entries, code, now_ms)

    def _remember_producer(self, batch: BatchView, origin: Origin, transaction_version: int = 0) -> None:
        aborted = self.producers.append(batch, origin, self._undo, transaction_version=transaction_version)
        if aborted is not None:
            self._pending_aborts.append(aborted)

    def _queue(self, batch: BatchView, offset: int, leader_epoch: int) -> None:
        if leader_epoch != self._latest_epoch:
            self._pending_epochs.append((leader_epoch, offset))
            self._latest_epoch = leader_epoch
        self.next_offset = batch.next_offset
        self._staged.append(batch.raw)
        self._pending.append((batch.last_offset, batch.size, batch.max_timestamp))
        self._staged_bytes += batch.size
        self._staged_max_timestamp = max(self._staged_max_timestamp, batch.max_timestamp)

    def _note_written(self, segment: Segment, written: list[tuple[int, int, int]]) -> None:
        """Bring size, indexes and largest timestamp up to date with batches just written at the segment's end."""
        position = segment.size
        unindexed = segment.bytes_since_index
        interval = self._index_interval
        largest, largest_at = segment.max_timestamp
        for last_offset, size, timestamp in written:
            if timestamp > largest:
                largest, largest_at = timestamp, last_offset
                segment.max_timestamp = (timestamp, last_offset)
            if unindexed > interval:
                segment.index.append(last_offset, position)  # type: ignore[union-attr]
                segment.time_index.maybe_append(largest, largest_at)  # type: ignore[union-attr]
                unindexed = 0
            unindexed += size
            position += size
        segment.size = position
        segment.bytes_since_index = unindexed

    def _clear_staged(self) -> None:
        self._staged = []
        self._pending = []
        self._staged_bytes = 0
        self._staged_max_timestamp = -1
        if self._undo:
            self._undo.clear()

    def _commit_carefully(self) -> None:
        """`commit` for what happens rarely: rolls, a new leader epoch, aborted transactions, very many batches.

        A roll writes a snapshot of the producers, which must not know batches that lie behind it. So their state goes
        back to where the log is, and follows batch by batch.
        """
        before = self.log_end_offset
        staged, pending, end = self._staged, self._pending, self.next_offset
        epochs = self._pending_epochs
        self._pending_epochs, self._pending_aborts = [], []
        self.producers.rollback(self._undo, before)
        self.next_offset = before
        start = 0
        try:
            for epoch, offset in epochs:
                self.leader_epochs.assign(epoch, offset)
            size = self._active.size
            for i, (last_offset, batch_size, timestamp) in enumerate(pending):
                if self._must_roll(size, batch_size, last_offset, timestamp, i - start):
                    self._write_run(staged[start:i], pending[start:i])
                    self.roll(self._now_ms)
                    start, size = i, 0
                size += batch_size
            self._write_run(staged[start:], pending[start:])
        except (OSError, StorageFailure) as error:
            self.next_offset = self.log_end_offset
            raise self._abandon(error, before) from error
        assert self.log_end_offset == end
        self._clear_staged()

    def _must_roll(self, size: int, batch_size: int, last_offset: int, timestamp: int, unwritten: int) -> bool:
        segment = self._active
        return (
            size + batch_size > self._segment_bytes
            or (size > 0 and (timestamp > segment.roll_at_timestamp or self._now_ms > segment.roll_at_clock_ms))
            or segment.index.size + 8 * unwritten + 8 > self._index_max  # type: ignore[union-attr]
            or last_offset - segment.base_offset > INT32_MAX
        ) and size > 0

    def _write_run(self, staged: list[memoryview], pending: list[tuple[int, int, int]]) -> None:
        """Write batches that go into the active segment, then let everything know of them."""
        if not staged:
            return
        segment = self._active
        if segment.size == 0:
            segment.note_first_timestamp(pending[0][2], self._config, self._jitter_ms)
        position = segment.size
        assert segment.file is not None
        for i in range(0, len(staged), IOV_MAX):
            wanted = sum(size for _, size, _ in pending[i : i + IOV_MAX])
            written = self._pwritev(segment.file.fd, staged[i : i + IOV_MAX], position)
            if written != wanted:
                raise _short(written, wanted)
            position += written
        self._note_written(segment, pending)
        self.next_offset = self.log_end_offset = pending[-1][0] + 1
        for view in staged:
            self._remember_producer(BatchView(view), Origin.REPLICATION)
        self._undo.clear()
        for aborted in self._pending_aborts:
            segment.txn_index.append(aborted)
        self._pending_aborts = []

    def _abandon(self, error: OSError | StorageFailure, before: int | None = None) -> StorageFailure:
        """Forget what is staged after a failed write, with what of it lies behind `before`; the error to raise.

        A full disk is no failed disk: the log goes on as it was and takes appends again once there is room.
        """
        segment = self._active
        staged = self._staged
        self._unstage()
        failure = StorageFailure(f"cannot write to {self.name} at offset {self.log_end_offset}: {error}")
        try:
            if segment.file is not None:
                self._disk.ftruncate(segment.file.fd, segment.size)
        except OSError as other:
            failure = StorageFailure(f"{failure.message}; and the file could not be cut back: {other}")
            self.fail(failure)
        else:
            if segment.file is None or not _is_full(error):
                self.fail(failure)
        if before is not None and self.log_end_offset != before:
            self._cut_back(before)
        for view in staged:
            self.note_refused(view, ErrorCode.KAFKA_STORAGE_ERROR, self._now_ms)
        return failure

    def _unstage(self) -> None:
        """Forget everything staged: offsets, producers and epochs are as the log is."""
        self.producers.rollback(self._undo, self.log_end_offset)
        self.next_offset = self.log_end_offset
        self._pending_epochs, self._pending_aborts = [], []
        self._latest_epoch = self.leader_epochs.latest
        self._clear_staged()

    def _cut_back(self, offset: int) -> None:
        """Undo the part of a group that was written before another part failed."""
        try:
            truncation.truncate_to(self, offset)
        except (OSError, KlammError) as error:
            self.fail(StorageFailure(f"cannot cut {self.name} back to {offset}: {error}"))

    def fail(self, failure: StorageFailure | None = None) -> None:
        """Take no more appends: what is on the disk and what is in memory may differ."""
        told = self.failed
        self.failed = True
        self._plain = False
        if failure is not None and not told and self.on_failure is not None:
            self.on_failure(self, failure)

    def _failure(self, what: str, error: BaseException) -> StorageFailure:
        """Fail for good; the error to raise."""
        failure = StorageFailure(f"{what}: {error}")
        self.fail(failure)
        return failure

    def _check_usable(self) -> None:
        if self.failed:
            raise StorageFailure(f"{self.name} takes no appends after a failed write")

    # --- segments ----------------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Close the active segment and begin the next at the end of the log. An empty one stays."""
        old = self._active
        if old.size == 0:
            return
        # Whatever the disk refuses here leaves the old segment the active one.
        old.finish()
        self.snapshots.take(self.log_end_offset, self.producers.entries.values())
        if self.recovery_point >= self.log_end_offset:
            # All records are durable already, so no restart would look at this segment again: its indexes must be too.
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                self._disk.sync_file(old.path(suffix))
            self._disk.sync_file(self.snapshots.path(self.log_end_offset))
        self._active = self.segments.add(self.log_end_offset, self._config, now_ms)
        old.release()
        if self.on_roll is not None:
            self.on_roll(self, old)


def _short(written: int, wanted: int) -> StorageFailure:
    return StorageFailure(f"only {written} of {wanted} bytes were taken: there is no more room on the disk")


def found_no_room(failure: StorageFailure) -> bool:
    """Whether nothing but room was missing, so that the same may succeed later."""
    return isinstance(failure.__cause__, OSError) and failure.__cause__.errno in _FULL


def _is_full(error: OSError | StorageFailure) -> bool:
    """Whether a write failed for want of room alone; a short write is how a file system says it first."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return cause is None or (isinstance(cause, OSError) and cause.errno in _FULL)
