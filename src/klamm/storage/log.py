"""The log of one partition: append at the end, read anywhere, delete from either side."""

from bisect import bisect_right

from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.model.ids import ZERO_UUID
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.storage import truncation
from klamm.storage.checkpoints import write_topic_id
from klamm.storage.config import LogConfig
from klamm.storage.log_appender import LogAppender
from klamm.storage.log_flusher import LogFlusher
from klamm.storage.log_reader import LogReader
from klamm.storage.log_segment import LogSegment
from klamm.storage.log_state import LogListener, LogState, LogStatus
from klamm.storage.producer_state import Origin
from klamm.storage.retention_policy import SegmentFacts, segments_to_delete
from klamm.storage.segment_swap import SWAP_SUFFIX, rename_files
from klamm.storage.timestamp_lookup import TimestampOffset
from klamm.storage.txn_index import AbortedTxn


class Log:
    """One partition's log, made of a `LogState` and the parts that work on it. Opened by `log_recovery.open_log`.

    One thread owns a log. `LogState` documents the offsets; `next_offset` also counts what is staged. Nothing here
    syncs, except `flush` and a clean `close`.
    """

    def __init__(self, state: LogState, now_ms: int) -> None:
        self.state = state
        self.appender = appender = LogAppender(state, now_ms)
        self.reader = reader = LogReader(state)
        self.flusher = flusher = LogFlusher(state)
        self.name = state.name
        self.topic_partition = state.topic_partition
        self.topic, self.partition = state.topic_partition
        self.segments = state.segments
        self.producers = state.producers
        self.snapshots = state.snapshots
        self.leader_epochs = state.leader_epochs
        # Bound here rather than wrapped in methods: every request of a client goes through one of these.
        self.stage = appender.stage
        self.stage_plain = appender.stage_plain
        self.stage_validated = appender.stage_validated
        self.write_staged = appender.write_staged
        self.read = reader.read
        self.advance_high_watermark = state.advance_high_watermark
        self.advance_to_end = state.advance_to_end
        self.sync_job = flusher.sync_job

    # --- attributes of the state -------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The folder of the log."""
        return self.state.path

    @property
    def topic_id(self) -> bytes:
        """The topic id the folder is bound to, ZERO_UUID before it is."""
        return self.state.topic_id

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset after the last written batch."""
        return self.state.log_end_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last staged batch."""
        return self.appender.next_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which every replica in sync has the log."""
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data stop: no open transaction and no unreplicated marker is below."""
        return self.state.last_stable_offset

    @property
    def durable_offset(self) -> int:
        """How far the high watermark may go under flush.messages."""
        return self.state.durable_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on the device."""
        return self.state.recovery_point

    @property
    def cleaned_offset(self) -> int | None:
        """The offset up to which the log is compacted; None when unknown."""
        return self.state.cleaned_offset

    @property
    def truncations(self) -> int:
        """How often the end went back."""
        return self.state.truncations

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self.segments.size_bytes

    @property
    def failed(self) -> bool:
        """Whether the log takes no appends."""
        return self.state.failed

    @property
    def offline(self) -> bool:
        """Whether the log directory failed, so that reads are refused too."""
        return self.state.status is LogStatus.OFFLINE

    @property
    def retired(self) -> bool:
        """Whether the log was taken out of service."""
        return self.state.retired

    @property
    def listener(self) -> LogListener:
        """What the owner is called for; assign another to change it."""
        return self.state.listener

    @listener.setter
    def listener(self, listener: LogListener) -> None:
        self.state.listener = listener

    @property
    def config(self) -> LogConfig:
        """The topic's settings; assign a new one to change them."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.config = config
        self.appender.apply_config(config)

    @property
    def unchecked_codecs(self) -> frozenset[int]:
        """The codecs whose batches are appended without decompressing them (`klamm.checked.codecs`)."""
        return self.appender.unchecked_codecs

    def set_topic_id(self, topic_id: bytes) -> None:
        """Bind the folder to a topic id, once; INCONSISTENT_TOPIC_ID when it belongs to another."""
        if self.topic_id == topic_id:
            return
        if self.topic_id != ZERO_UUID:
            raise KlammError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.name} belongs to another topic id")
        self.overwrite_topic_id(topic_id)

    def overwrite_topic_id(self, topic_id: bytes) -> None:
        """Bind the folder to a topic id, also one that is bound to another."""
        write_topic_id(self.state.disk, self.path, topic_id)
        self.state.topic_id = topic_id

    # --- appending ---------------------------------------------------------------------------------------------------

    def stage_from(
        self, data: memoryview, leader_epoch: int, now_ms: int, origin: Origin, transaction_version: int = 0
    ) -> int:
        """`stage` for batches of any origin, with all checks."""
        return self.appender.stage_from(data, leader_epoch, now_ms, origin, transaction_version)

    def note_refused(self, data: memoryview, code: ErrorCode, now_ms: int) -> None:
        """Refuse the batches after a client's batch that was refused for a transient reason, until it is sent again."""
        self.appender.note_refused(data, code, now_ms)

    def append_as_leader(
        self, batches: memoryview, leader_epoch: int, now_ms: int, *, origin: Origin = Origin.CLIENT
    ) -> int:
        """Stage and write one batch; return the offset of its first record."""
        if origin is Origin.CLIENT:
            offset = self.stage(batches, leader_epoch, now_ms)
        else:
            offset = self.stage_from(batches, leader_epoch, now_ms, origin)
        self.write_staged()
        return offset

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches with the offsets and leader epochs they carry; they must continue the log.

        An empty log may begin inside of a batch, where DeleteRecords has put the leader's start: then that whole batch
        comes, and the log begins with it.
        """
        state = self.state
        start = state.log_start_offset
        if start == state.log_end_offset and len(batches) >= HEADER_SIZE and not self.segments.size_bytes:
            first = BatchView(batches)
            if first.base_offset < start <= first.last_offset:
                self.truncate_fully_and_start_at(first.base_offset)
        self.appender.stage_as_follower(batches)
        self.write_staged()
        # The records before `start` are in the file now, but stay deleted for readers.
        state.advance_log_start(min(start, state.log_end_offset))

    def roll(self, now_ms: int) -> None:
        """Close the active segment and begin the next at the end of the log. An empty one stays."""
        self.state.check_online()
        self.appender.roll(now_ms)

    # --- reading -----------------------------------------------------------------------------------------------------

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions whose records a read_committed reader of [start, end) must skip."""
        return self.reader.aborted_transactions(start, end)

    def offset_for_timestamp(self, timestamp: int, first_offset: int = 0) -> TimestampOffset | None:
        """Return the first record from `first_offset` on that is at least as late; may raise SearchElsewhere."""
        return self.reader.offset_for_timestamp(timestamp, first_offset)

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of the log; may raise SearchElsewhere."""
        return self.reader.offset_of_max_timestamp()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest known epoch up to `epoch`; (-1, -1) when none is known."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- durability --------------------------------------------------------------------------------------------------

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (default: the end of the log) to the device, and wait for it."""
        self.flusher.flush(up_to)

    def mark_durable(self, up_to: int, truncations: int | None = None) -> None:
        """Move the recovery point to `up_to` after a sync; `truncations` is the count from when the sync began."""
        self.state.mark_durable(up_to, truncations)

    def write_indexes(self) -> None:
        """Bring the active segment's index files up to date."""
        self.segments.active.write_indexes()

    def close(self, *, clean: bool = True) -> None:
        """Close all files. `clean` first makes everything durable, so that opening needs no scan."""
        if clean and not self.failed and self.prepare_clean_close():
            self.flusher.sync_all()
        self.close_files()

    def prepare_clean_close(self) -> bool:
        """Bring all files into the form a clean close leaves; return whether any of it is not durable yet."""
        self.write_staged()
        if self.flusher.is_unchanged:
            return False
        self.flusher.write_final_files()
        return True

    def close_files(self) -> None:
        """Close the files as they are."""
        self.segments.forget_hints()
        for segment in self.segments:
            segment.close_cached()
        self.segments.active.file = None

    def fail(self, failure: StorageFailure | None = None) -> None:
        """Take no more appends; the listener is called when there is a `failure`."""
        self.state.fail(failure)

    def take_offline(self, reason: str) -> None:
        """Refuse reads and appends with KAFKA_STORAGE_ERROR from now on: the log directory failed."""
        self.state.take_offline(reason)

    def retire(self) -> None:
        """Take the log out of service and close its files: failures of its files no longer matter."""
        self.state.retired = True
        self.close(clean=False)

    # --- deletion from the start -------------------------------------------------------------------------------------

    def delete_records(self, offset: int) -> int:
        """Move the log start forward to `offset` (-1: to the high watermark); return where it is now."""
        self.state.check_online()
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
        """Move the log start forward; the next retention pass removes segments that end below it."""
        self.state.advance_log_start(offset)

    def apply_retention(self, now_ms: int) -> list[str]:
        """Take the segments that retention deletes out of the log; return the renamed files, to be removed later.

        Only what is below the recovery point goes: what must outlive it, an empty segment that names the end offset
        for one, is on the device then. When the active segment is due, the log rolls and the rest is for a later call
        (see `count_deletable_segments`).
        """
        state = self.state
        if state.swapping is not None:
            # The cleaner has files of some segments under two names; it is done within a tick or two.
            return []
        count = self.count_deletable_segments(now_ms)
        if count == len(self.segments):
            self.roll(now_ms)
        # `bases` has the next segment's start as the bound: all of it must be below the recovery point.
        count = min(count, bisect_right(self.segments.bases, state.recovery_point) - 1)
        if count <= 0:
            return []
        renamed = []
        try:
            for segment in self.segments.drop_oldest(count):
                renamed += segment.mark_deleted()
                renamed += self.snapshots.mark_deleted(segment.base_offset)
        except OSError as error:
            raise state.fail_on(f"cannot rename files of {self.name}", error) from error
        state.advance_log_start(self.segments[0].base_offset)
        return renamed

    def count_deletable_segments(self, now_ms: int) -> int:
        """Return how many of the oldest segments retention deletes, durable or not."""
        return segments_to_delete(
            map(self._segment_facts, self.segments),
            self.config,
            size_bytes=self.segments.size_bytes,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            now_ms=now_ms,
        )

    def _segment_facts(self, segment: LogSegment) -> SegmentFacts:
        largest = segment.max_timestamp[0]
        return SegmentFacts(
            self.state.end_of(segment),
            segment.size,
            largest if largest >= 0 or segment.size == 0 else segment.modified_ms(),
            segment is self.segments.active,
        )

    def remove_segments_below_start(self) -> int:
        """Delete closed segments that end at or below the log start, at once; return how many."""
        active, start = self.segments.active, self.log_start_offset
        removed = [s for s in self.segments if s is not active and self.state.end_of(s) <= start]
        self.segments.remove(removed)
        for segment in removed:
            self.snapshots.remove(segment.base_offset)
        return len(removed)

    def replace_segments(self, replaced: list[LogSegment], size: int, max_timestamp: tuple[int, int]) -> list[str]:
        """Put a cleaned segment, whose files end with `.swap`, in the place of neighbours.

        Returns the renamed files of these, to be removed later.
        """
        state = self.state
        base = replaced[0].base_offset
        renamed: list[str] = []
        state.swapping = None
        try:
            for segment in replaced:
                renamed += segment.mark_deleted()
                if segment.base_offset != base:
                    renamed += self.snapshots.mark_deleted(segment.base_offset)
            rename_files(state.disk, self.path, base, SWAP_SUFFIX, "")
        except OSError as error:
            raise state.fail_on(f"cannot swap cleaned files of {self.name}", error) from error
        self.segments.replace(replaced, size, max_timestamp)
        return renamed

    # --- truncation of the end, moves --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, durable: bool = False) -> bool:
        """Cut everything from `offset` on (from its batch on, when it is inside one). False: nothing to cut.

        `durable` waits until a power loss cannot bring any of it back.
        """
        truncated = truncation.truncate_to(self.state, offset, self.appender.now_ms, durable=durable)
        if truncated:
            self.appender.reset_to_log_end()
        return truncated

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything and begin again at `offset`."""
        truncation.truncate_fully(self.state, offset, self.appender.now_ms)
        self.appender.reset_to_log_end()

    def take_over_from(self, other: "Log") -> None:
        """Continue for another log with the same end: with its producers, some older than the copy, and its offsets."""
        self.producers.adopt(other.producers)
        for epoch, start in other.leader_epochs.entries():
            begin = max(start, self.log_start_offset)
            if epoch > self.leader_epochs.latest and begin < self.log_end_offset:
                self.leader_epochs.assign(epoch, begin)
        self.appender.reset_to_log_end()
        self.advance_high_watermark(other.high_watermark)

    def relocate(self, path: str) -> None:
        """Use a folder that was renamed."""
        self.state.relocate(path)
