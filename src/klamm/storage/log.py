"""The log of one partition: append at the end, read anywhere, forget from either side."""

import os
from bisect import bisect_right
from collections.abc import Callable

from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.model.ids import ZERO_UUID
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.storage import truncation
from klamm.storage.checkpoints import write_topic_id
from klamm.storage.disk import FileSlice
from klamm.storage.log_appender import LogWriter
from klamm.storage.log_segment import LOG_SUFFIX, SUFFIXES, Segment
from klamm.storage.retention_policy import SegmentFacts, segments_to_delete
from klamm.storage.segment_swap import SWAP_SUFFIX, rename_files
from klamm.storage.timestamp_lookup import TimestampOffset, find_max_timestamp, find_timestamp
from klamm.storage.txn_index import AbortedTxn


class Log(LogWriter):
    """Segments, producer state and leader epochs of one partition. Opened by `recovery.open_log`.

    One thread owns a log. Plain attributes to read, each at most the next:
    `log_start_offset`, `last_stable_offset`, `high_watermark`, `log_end_offset` (after the last written batch),
    `next_offset` (also counts what is staged). `recovery_point` is the offset below which everything is known to be on
    the device. Nothing here syncs, except `flush` and a clean `close`.
    """

    def note_first_timestamp(self) -> None:
        """Let a segment that was opened with content know when it is due to roll."""
        first = next(self._active.headers(0), None)
        if first is not None:
            self._active.note_first_timestamp(first.max_timestamp, self._config, self._jitter_ms)

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (default: the end of the log) to the device, and wait for it."""
        end = self.log_end_offset if up_to is None else up_to
        if end <= self.recovery_point:
            return
        try:
            self.sync_job(end)()
        except OSError as error:
            raise self._failure(f"cannot sync {self.name}", error) from error
        self.recovery_point = max(self.recovery_point, end)

    def sync_job(self, up_to: int) -> Callable[[], None]:
        """What makes everything below `up_to` durable. It may run in a thread: it looks at nothing that changes.

        Files, and whatever a restart needs to find and trust them: their names, indexes, producer snapshots, epochs.
        When it returns, the caller moves `recovery_point` to `up_to`.
        """
        disk, folder, epochs = self._disk, self.path, self.leader_epochs
        point, written = self.recovery_point, epochs.written
        segments = [s for s in self.segments.from_offset(point) if s.base_offset < up_to]
        files = [segment.open_file() for segment in segments]
        closed = [s for s in segments if s is not self._active]
        paths = [segment.path(suffix) for segment in closed for suffix in SUFFIXES if suffix != LOG_SUFFIX]
        paths += [
            self.snapshots.path(s.base_offset)
            for s in self.segments.from_offset(point)
            if point < s.base_offset <= up_to
        ]
        if epochs.unsynced:
            paths.append(epochs.path)
        # Names change when a segment begins, so before the first sync in one, the folder is synced too.
        folders = [folder] if closed or paths or point <= self._active.base_offset else []
        if point <= self.segments[0].base_offset:
            folders.append(os.path.dirname(folder))

        def sync() -> None:
            for file in files:
                disk.fdatasync(file.fd)
            for path in paths:
                disk.sync_file(path)
            for name in folders:
                disk.sync_dir(name)
            epochs.synced = max(epochs.synced, written)

        return sync

    def write_indexes(self) -> None:
        """Bring the active segment's index files up to date."""
        self._active.write_indexes()

    def close(self, clean: bool = True) -> None:
        """Let go of all files. `clean` first makes everything durable, so that opening needs no scan."""
        if clean and not self.failed and self.finish():
            self.sync_for_good()
        self.let_go()

    def finish(self) -> bool:
        """Bring all files into the form a clean stop leaves; whether any of it is not durable yet."""
        self.commit()
        if self.seal() == self.sealed and not self.leader_epochs.unsynced:
            return False
        self._active.time_index.maybe_append(*self._active.max_timestamp)  # type: ignore[union-attr]
        self._active.write_indexes()
        self._disk.ftruncate(self._active.file.fd, self._active.size)  # type: ignore[union-attr]
        if self.producers.entries or self.snapshots.offsets():
            self.snapshots.take(self.log_end_offset, self.producers.entries.values())
        return True

    def let_go(self) -> None:
        """Close the files, as they are."""
        self.segments.forget_hints()
        for segment in self.segments:
            segment.forget_open()
        self._active.file = None

    def seal(self) -> tuple[int, int, int]:
        """What tells whether anything was written since."""
        return self.log_end_offset, self._active.base_offset, self._active.size

    def sync_for_good(self) -> None:
        """Make everything durable that opening trusts after a clean stop."""
        self.flush()
        paths = [self._active.path(suffix) for suffix in SUFFIXES]
        for path in (*paths, self.snapshots.path(self.log_end_offset), self.leader_epochs.path):
            self._disk.sync_file(path)
        self._disk.sync_dir(self.path)
        self.leader_epochs.synced = self.leader_epochs.written

    def became_durable(self) -> None:
        """Somebody has synced every file there is."""
        self.recovery_point = self.log_end_offset
        self.leader_epochs.synced = self.leader_epochs.written

    @property
    def durable_offset(self) -> int:
        """How far the high watermark may go: with flush.messages, no further than what is on the device.

        Fewer than flush.messages unsynced records hold nothing back, as in Kafka.
        """
        end = self.log_end_offset
        return end if end - self.recovery_point < self._config.flush_messages else self.recovery_point

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

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches with the offsets and leader epochs they carry; they must continue the log.

        An empty log may begin inside of a batch, where DeleteRecords has put the leader's start: then that whole batch
        comes, and the log begins with it.
        """
        start = self.log_start_offset
        if start == self.log_end_offset and len(batches) >= HEADER_SIZE and not self.segments.size_bytes:
            first = BatchView(batches)
            if first.base_offset < start <= first.last_offset:
                self.truncate_fully_and_start_at(first.base_offset)
        super().append_as_follower(batches)
        self.advance_log_start(min(start, self.log_end_offset))

    # --- reading -----------------------------------------------------------------------------------------------------

    def take_offline(self, why: str) -> None:
        """The disk under the log has failed: whoever wants anything of it gets KAFKA_STORAGE_ERROR from now on."""
        self.fail()
        self.offline = True

        def refuse(*_: object, **__: object) -> None:
            raise StorageFailure(f"{self.name} lies in a log dir that has failed: {why}")

        # Shadowing the methods costs the usual case nothing.
        for name in ("read", "offset_for_timestamp", "offset_of_max_timestamp", "delete_records", "roll"):
            setattr(self, name, refuse)

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

    def offset_for_timestamp(self, timestamp: int, first_offset: int = 0) -> TimestampOffset | None:
        """The first record, from an offset on, whose timestamp is at least `timestamp`; may be SearchElsewhere."""
        return find_timestamp(self.segments, timestamp, max(first_offset, self.log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log; may be SearchElsewhere."""
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

    def advance_to_end(self) -> int:
        """Everything written is committed; returns the high watermark, which never goes back."""
        end = self.log_end_offset
        self.high_watermark = end
        if not self.producers.settled:
            self.producers.on_high_watermark(end)
        return end

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

    def retain(self, now_ms: int) -> list[str]:
        """Let go of the segments that retention condemns; returns the renamed files, to be removed later.

        Only what lies below the recovery point goes: whatever must outlive it, an empty segment that remembers the end
        offset for one, is on the device then. When the active segment is due, the log rolls and the rest is for a later
        call (see `due_for_deletion`).
        """
        if self.swapping is not None:
            return []
        count = self.due_for_deletion(now_ms)
        if count == len(self.segments):
            self.roll(now_ms)
        count = min(count, bisect_right(self.segments.bases, self.recovery_point) - 1)
        if count <= 0:
            return []
        condemned = []
        try:
            for segment in self.segments.drop_oldest(count):
                condemned += segment.condemn()
                condemned += self.snapshots.condemn(segment.base_offset)
        except OSError as error:
            raise self._failure(f"cannot rename files of {self.name}", error) from error
        self.advance_log_start(self.segments[0].base_offset)
        return condemned

    def swap_in(self, replaced: list[Segment], size: int, max_timestamp: tuple[int, int]) -> list[str]:
        """Put a cleaned segment, whose files end with `.swap`, in the place of neighbours; returns what is to be
        removed later.
        """
        base = replaced[0].base_offset
        condemned: list[str] = []
        self.swapping = None
        try:
            for segment in replaced:
                condemned += segment.condemn()
                if segment.base_offset != base:
                    condemned += self.snapshots.condemn(segment.base_offset)
            rename_files(self._disk, self.path, base, SWAP_SUFFIX, "")
        except OSError as error:
            raise self._failure(f"cannot swap cleaned files of {self.name}", error) from error
        self.segments.replace(replaced, size, max_timestamp)
        return condemned

    def due_for_deletion(self, now_ms: int) -> int:
        """How many of the oldest segments retention condemns, durable or not."""
        return segments_to_delete(
            map(self._facts, self.segments),
            self._config,
            size_bytes=self.segments.size_bytes,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )

    def _facts(self, segment: Segment) -> SegmentFacts:
        largest = segment.max_timestamp[0]
        return SegmentFacts(
            self._end_of(segment),
            segment.size,
            largest if largest >= 0 or segment.size == 0 else segment.modified_ms(),
            segment is self._active,
        )

    def remove_segments_below_start(self) -> int:
        """Delete closed segments that end at or below the log start, at once; returns how many."""
        gone = [s for s in self.segments if s is not self._active and self._end_of(s) <= self.log_start_offset]
        self.segments.remove(gone)
        for segment in gone:
            self.snapshots.remove(segment.base_offset)
        return len(gone)

    def _end_of(self, segment: Segment) -> int:
        return self.segments.end_of(segment, self.log_end_offset)

    def truncate_to(self, offset: int, *, for_good: bool = False) -> bool:
        """Cut everything from `offset` on (from its batch on, when it lies inside one). False: nothing to cut.

        `for_good` waits until no loss of power brings any of it back.
        """
        return truncation.truncate_to(self, offset, for_good=for_good)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Throw everything away and begin anew at `offset`."""
        truncation.truncate_fully(self, offset)

    def take_state_of(self, other: "Log") -> None:
        """Go on for another log with the same end: with its producers, some older than the copy, and its marks."""
        self.producers = other.producers
        self._entries = other.producers.entries
        for epoch, start in other.leader_epochs.entries():
            begin = max(start, self.log_start_offset)
            if epoch > self.leader_epochs.latest and begin < self.log_end_offset:
                self.leader_epochs.assign(epoch, begin)
        self._latest_epoch = self.leader_epochs.latest
        self.advance_high_watermark(other.high_watermark)

    def moved(self, path: str) -> None:
        """The folder has a new name."""
        self.path = path
        self.segments.moved(path)
        self.snapshots.folder = path
        self.leader_epochs.moved(path)
