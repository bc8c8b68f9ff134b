"""The log of one partition: append at the end, read anywhere, forget from either side.

One thread owns a log. Appending has two steps so that all requests of one turn of the loop share one write: `stage`
checks a batch and gives it an offset, `commit` writes everything staged. Neither syncs; `flush` does, and may run in
another thread.
"""

import os
from collections.abc import Callable
from struct import Struct

from crc32c import crc32c

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError, StorageFailure
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.records.batch import CRC_START, HEADER, HEADER_SIZE, BatchView, iter_batches
from klamm.records.control import build_end_txn_marker, end_txn_marker
from klamm.storage.checkpoints import write_topic_id
from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.disk import Disk, FileSlice
from klamm.storage.epochs import LeaderEpochs
from klamm.storage.lookups import TimestampOffset, find_max_timestamp, find_timestamp
from klamm.storage.producers import MAX_SEQUENCE, Origin, ProducerStates, Undo
from klamm.storage.segment import Segment
from klamm.storage.segments import Segments
from klamm.storage.replay import rebuild_producers
from klamm.storage.snapshots import Snapshots
from klamm.storage.txn_index import AbortedTxn
from klamm.storage.validate import validate

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
INT32_MAX = 2**31 - 1

_unpack_header = HEADER.unpack_from
_pack_place = Struct(">qii").pack_into
"""Base offset, batch length (as it was), leader epoch: the fields before the checksum, in one write."""


class Log:
    """Segments, producer state and leader epochs of one partition. Opened by `recovery.open_log`.

    Plain attributes to read: `log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset <= next_offset`.
    `log_end_offset` follows the last written batch, `next_offset` also counts what is staged. `recovery_point` is the
    offset below which everything is known to be on the device.
    """

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
        self.on_roll: Callable[[Log, Segment], None] | None = None
        """Called with the segment just closed: the owner flushes it elsewhere."""
        self.failed = False
        self._staged: list[memoryview] = []
        self._pending: list[tuple[int, int, int]] = []
        """(last offset, size, max timestamp) of every staged batch, beside `_staged`."""
        self._pending_aborts: list[AbortedTxn] = []
        self._pending_epochs: list[tuple[int, int]] = []
        self._staged_bytes = 0
        self._staged_max_timestamp = -1
        self._undo: Undo = []
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
        # A plain log takes batches as they come: their headers say everything the rules ask.
        self._plain = (
            config.codec is None
            and not config.compacted
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
        size = len(batches)
        if size < HEADER_SIZE or not self._plain:
            return self._stage_any(batches, leader_epoch, now_ms, Origin.CLIENT)
        (
            base_offset,
            length,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            _,
            max_timestamp,
            producer_id,
            epoch,
            sequence,
            count,
        ) = _unpack_header(batches)
        if (
            magic != 2
            or length + 12 != size
            or size > self._max_message_bytes
            or not 0 <= attributes <= 4
            or last_delta + 1 != count
            or last_delta < 0
            or base_offset
            or max_timestamp > now_ms + self._after_max_ms
        ):
            return self._stage_any(batches, leader_epoch, now_ms, Origin.CLIENT)
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
                return self._stage_any(batches, leader_epoch, now_ms, Origin.CLIENT)
            if crc32c(batches[CRC_START:]) != crc:
                raise CorruptBatch(f"the batch for {self.name} does not match its checksum")
            remembered = entry.batches
            self._undo.append((entry, (remembered, sequence, entry.last_timestamp, epoch, entry.coordinator_epoch, -1)))
            entry.batches = (
                *remembered[-4:],
                (sequence, sequence + last_delta, offset, offset + last_delta, max_timestamp),
            )
            entry.next_sequence = sequence + count
            entry.last_timestamp = max_timestamp
        elif crc32c(batches[CRC_START:]) != crc:
            raise CorruptBatch(f"the batch for {self.name} does not match its checksum")
        if leader_epoch != self._latest_epoch:
            self._pending_epochs.append((leader_epoch, offset))
            self._latest_epoch = leader_epoch
        _pack_place(batches, 0, offset, length, leader_epoch)
        self.next_offset = offset + count
        self._staged.append(batches)
        self._pending.append((offset + last_delta, size, max_timestamp))
        self._staged_bytes += size
        if max_timestamp > self._staged_max_timestamp:
            self._staged_max_timestamp = max_timestamp
        self._now_ms = now_ms
        return offset

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
            raise self._abandon(str(error)) from error
        if written != total:
            raise self._abandon(f"only {written} of {total} bytes were taken")
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
            offset = self._stage_any(batches, leader_epoch, now_ms, origin)
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
        accepted = []
        expected = self.next_offset
        for batch in iter_batches(batches, allow_incomplete_tail=True):
            if batch.base_offset < expected:
                raise KlammError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"the batch at {batch.base_offset} does not continue {self.name}, whose next offset is {expected}",
                )
            batch.check_crc()
            accepted.append((batch, self._marker(batch)))
            expected = batch.next_offset
        for batch, marker in accepted:
            self._remember_producer(batch, marker, Origin.REPLICATION)
            self._queue(batch, batch.base_offset, batch.leader_epoch)

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
        offset = self._stage_any(memoryview(marker), leader_epoch, now_ms, Origin.COORDINATOR, transaction_version)
        self.commit()
        return offset

    def append_control(self, batch: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Stage and commit a control batch of our own; returns its offset."""
        return self.append_as_leader(batch, leader_epoch, now_ms, origin=Origin.COORDINATOR)

    def _stage_any(
        self, data: memoryview, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        """`stage` for everything that is not plain."""
        self._check_usable()
        batch = validate(data, self._config, now_ms, origin, self.name)
        if batch.size > self._segment_bytes:
            raise KlammError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch of {batch.size} bytes for {self.name} is larger than segment.bytes={self._segment_bytes}",
            )
        marker = self._marker(batch)
        if batch.producer_id >= 0 and origin is Origin.CLIENT:
            known = self.producers.find_duplicate(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence
            )
            if known is not None:
                return known.first_offset
        offset = self.next_offset
        batch.set_offset_and_epoch(offset, leader_epoch)
        try:
            self._remember_producer(batch, marker, origin, transaction_version)
        except KlammError:
            batch.set_offset_and_epoch(0, leader_epoch)
            raise
        self._now_ms = now_ms
        self._queue(batch, offset, leader_epoch)
        return offset

    @staticmethod
    def _marker(batch: BatchView) -> tuple[bool, int] | None:
        return end_txn_marker(batch) if batch.producer_id >= 0 else None

    def _remember_producer(
        self, batch: BatchView, marker: tuple[bool, int] | None, origin: Origin, transaction_version: int = 0
    ) -> None:
        if batch.producer_id < 0:
            return
        if marker is not None:
            aborted = self.producers.append_marker(
                batch.producer_id,
                batch.producer_epoch,
                marker[1],
                marker[0],
                batch.base_offset,
                batch.max_timestamp,
                origin,
                self._undo,
                transaction_version,
            )
            if aborted is not None:
                self._pending_aborts.append(aborted)
        elif not batch.is_control:
            self.producers.append_data(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
                batch.is_transactional,
                origin,
                self._undo,
            )

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
            failure = self._abandon(str(error))
            if self.log_end_offset != before:
                self._cut_back(before)
            raise failure from error
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
                raise StorageFailure(f"only {written} of {wanted} bytes were taken")
            position += written
        self._note_written(segment, pending)
        self.next_offset = self.log_end_offset = pending[-1][0] + 1
        for view in staged:
            batch = BatchView(view)
            self._remember_producer(batch, self._marker(batch), Origin.REPLICATION)
        self._undo.clear()
        for aborted in self._pending_aborts:
            segment.txn_index.append(aborted)
        self._pending_aborts = []

    def _abandon(self, why: str) -> StorageFailure:
        """Forget what is staged after a failed write; the error to raise."""
        segment = self._active
        self.producers.rollback(self._undo, self.log_end_offset)
        self.next_offset = self.log_end_offset
        self._pending_epochs, self._pending_aborts = [], []
        self._latest_epoch = self.leader_epochs.latest
        self._clear_staged()
        try:
            if segment.file is None:
                raise OSError("its segment was being closed")
            self._disk.ftruncate(segment.file.fd, segment.size)
        except OSError as error:
            self.fail()
            why += f"; and the file could not be cut back: {error}"
        return StorageFailure(f"cannot write to {self.name} at offset {self.log_end_offset}: {why}")

    def _cut_back(self, offset: int) -> None:
        """Undo the part of a group that was written before another part failed."""
        try:
            self.truncate_to(offset)
        except (OSError, KlammError):
            self.fail()

    def fail(self) -> None:
        """Take no more appends: what is on the disk and what is in memory may differ."""
        self.failed = True
        self._plain = False

    def _check_usable(self) -> None:
        if self.failed:
            raise StorageFailure(f"{self.name} takes no appends after a failed write")

    # --- segments ----------------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Close the active segment and begin the next at the end of the log. An empty one stays."""
        old = self._active
        if old.size == 0:
            return
        old.deactivate()
        self.snapshots.take(self.log_end_offset, self.producers.entries.values())
        self._active = self.segments.add(self.log_end_offset, self._config, now_ms)
        if self.on_roll is not None:
            self.on_roll(self, old)

    def note_first_timestamp(self) -> None:
        """Let a segment that was opened with content know when it is due to roll."""
        segment = self._active
        for _, data in segment.batches(0, min(segment.size, 1 << 26)):
            segment.note_first_timestamp(BatchView(data).max_timestamp, self._config, self._jitter_ms)
            break

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (default: the end of the log) to the device. May run in another thread."""
        end = self.log_end_offset if up_to is None else up_to
        if end <= self.recovery_point:
            return
        try:
            for segment in self.segments.from_offset(self.recovery_point):
                if segment.base_offset < end:
                    self._disk.fsync(segment.open_file().fd)
        except OSError as error:
            self.fail()
            raise StorageFailure(f"cannot sync {self.name}: {error}") from error
        self.recovery_point = max(self.recovery_point, end)

    def write_indexes(self) -> None:
        """Bring the active segment's index files up to date."""
        self._active.write_indexes()

    def close(self, clean: bool = True) -> None:
        """Let go of all files. `clean` first makes everything durable, so that opening needs no scan."""
        if clean and not self.failed:
            self.commit()
            self._active.time_index.maybe_append(*self._active.max_timestamp)  # type: ignore[union-attr]
            self._active.write_indexes()
            self._disk.ftruncate(self._active.file.fd, self._active.size)  # type: ignore[union-attr]
            self.flush()
            self.snapshots.take(self.log_end_offset, self.producers.entries.values(), sync=True)
        self.segments.forget_hints()
        for segment in self.segments:
            segment.forget_open()
        self._active.file = None

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self.segments.size_bytes

    def set_topic_id(self, topic_id: bytes) -> None:
        """Bind the folder to a topic id, once."""
        if self.topic_id == topic_id:
            return
        if self.topic_id != ZERO_UUID:
            raise KlammError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.name} belongs to another topic id")
        write_topic_id(self._disk, self.path, topic_id)
        self.topic_id = topic_id

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upper_offset: int, *, min_one: bool = True) -> FileSlice | None:
        """Where the bytes lie: whole batches, the first holds `offset`, none begins at or after `upper_offset`.

        One segment per call. `min_one` gives the first batch even if it is larger than `max_bytes`. None when there is
        nothing to read; OFFSET_OUT_OF_RANGE outside [log start, log end].
        """
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            raise KlammError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.name} is outside [{self.log_start_offset}, {end}]",
            )
        if offset >= upper_offset or offset == end:
            return None
        return self.segments.read(offset, max_bytes, upper_offset, end, min_one)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions a reader of [start, end) must know of."""
        return self.segments.aborted(start, end)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is at least `timestamp`."""
        return find_timestamp(self.segments, timestamp, self.log_start_offset)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log."""
        return find_max_timestamp(self.segments, self.log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest known epoch up to `epoch`; (-1, -1) when that cannot be said."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- offsets that move -------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed data stop here: no open transaction, no unreplicated marker lies below."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))

    def advance_high_watermark(self, offset: int) -> int:
        """Move the high watermark, never beyond the log end nor below its start; returns where it is now."""
        self.high_watermark = max(min(offset, self.log_end_offset), self.log_start_offset)
        if not self.producers.settled:
            self.producers.on_high_watermark(self.high_watermark)
        return self.high_watermark

    def delete_records(self, offset: int) -> int:
        """Move the log start forward to `offset` (-1: to the high watermark); returns where it is now."""
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise KlammError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self.name} up to {offset}: the high watermark is {self.high_watermark}",
            )
        self.advance_log_start(offset)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Move the log start forward; segments wholly below it go with the next retention pass."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset(offset)

    def remove_segments_below_start(self) -> int:
        """Delete closed segments that end at or below the log start; returns how many."""
        gone = [s for s in self.segments if s is not self._active and self._end_of(s) <= self.log_start_offset]
        self.segments.remove(gone)
        for segment in gone:
            self.snapshots.remove(segment.base_offset)
        return len(gone)

    def _end_of(self, segment: Segment) -> int:
        return self.segments.end_of(segment, self.log_end_offset)

    def truncate_to(self, offset: int) -> bool:
        """Cut everything from `offset` on (from its batch on, when it lies inside one). False: nothing to cut."""
        if offset >= self.log_end_offset:
            return False
        if offset <= self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            self.segments.remove([s for s in self.segments if s.base_offset >= offset])
            self._set_end(self._cut_segment(self.segments.active, offset))
        except OSError as error:
            self.fail()
            raise StorageFailure(f"cannot cut {self.name} to {offset}: {error}") from error
        return True

    def _cut_segment(self, segment: Segment, offset: int) -> int:
        """Cut the last segment and make it the active one; returns the new end of the log."""
        place = segment.find(offset)
        end = offset
        if segment.file is None:
            segment.activate(self._config, self._now_ms)
        assert segment.file is not None
        assert segment.index is not None
        assert segment.time_index is not None
        if place is not None:
            end = min(offset, place.base_offset)
            segment.size = place.position
            self._disk.ftruncate(segment.file.fd, place.position)
        segment.index.truncate_to(end)
        segment.time_index.truncate_to(end)
        segment.txn_index.truncate_to(end)
        segment.max_timestamp = segment.time_index.last()
        segment.bytes_since_index = 0
        segment.write_indexes()
        self._active = segment
        return end

    def _set_end(self, offset: int) -> None:
        self.segments.forget_hints()
        self.log_end_offset = self.next_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        self._latest_epoch = self.leader_epochs.latest
        self.snapshots.remove_outside(0, offset)
        rebuild_producers(self.producers, self.snapshots, self.segments, self.log_start_offset, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Throw everything away and begin anew at `offset`."""
        try:
            self.segments.remove(list(self.segments))
            self._active = self.segments.add(offset, self._config, self._now_ms)
        except OSError as error:
            self.fail()
            raise StorageFailure(f"cannot empty {self.name}: {error}") from error
        self.leader_epochs.clear()
        self.log_start_offset = self.high_watermark = self.recovery_point = offset
        for snapshot in self.snapshots.offsets():
            self.snapshots.remove(snapshot)
        self._set_end(offset)

    def moved(self, path: str) -> None:
        """The folder has a new name."""
        self.path = path
        self.segments.moved(path)
        self.snapshots.folder = path
        self.leader_epochs.moved(path)
