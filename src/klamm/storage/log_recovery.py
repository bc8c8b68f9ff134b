"""Opening a log, with recovery unless it was closed cleanly.

After a clean stop the last batch is located through the index and nothing is scanned. Otherwise every segment that may
hold unsynced bytes (from the recovery point on) is read batch by batch: lengths and checksums must hold, indexes are
rebuilt, leader epochs and producers follow. The first invalid batch ends the log: its bytes and everything after it are
truncated, as in Kafka, and a log line says how much and where.

That is right for bytes that a crash may tear. Damage below the recovery point is different: those bytes were on the
device, so the device has lost them, and what follows may be the only copy of acknowledged records. Then nothing is
truncated: the log is read-only up to the damage until an operator repairs it (docs/decisions/0007).
"""

import os
from collections.abc import Callable
from operator import attrgetter

from klamm.model.errors import CorruptBatch
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.storage.checkpoints import CLOSED_AT, LEADER_EPOCH, PARTITION_METADATA, read_topic_id
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log import Log
from klamm.storage.log_replay import read_leader_epochs, rebuild_producers, refill_batches
from klamm.storage.log_segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LogSegment
from klamm.storage.log_state import LogState
from klamm.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from klamm.storage.producer_snapshots import ProducerSnapshots
from klamm.storage.producer_state import Origin, ProducerStates
from klamm.storage.segment_list import SegmentList
from klamm.storage.segment_scan import SegmentScan
from klamm.storage.segment_swap import complete_swaps
from klamm.storage.txn_index import AbortedTxn
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

_SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_OTHER_NAMES = {LEADER_EPOCH, PARTITION_METADATA, CLOSED_AT, "quorum-state"}
_OTHER_SUFFIXES = (".checkpoint",)
_REFILL_AGE_MS = 600_000
"""Producers retry for delivery.timeout.ms, two minutes by default; after ten no retry comes."""
_LEFTOVERS = (".deleted", ".cleaned", ".tmp")

Progress = Callable[[str, int], None]


def open_log(
    path: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    disk: Disk,
    files: OpenFiles,
    now_ms: int,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    durable_offset: int = 0,
    progress: Progress | None = None,
) -> Log:
    """Open the log in a folder, creating both when there is none.

    `clean` means that it was closed cleanly. What is below `recovery_point` is durable and not checked; what is below
    `durable_offset` is durable, too. A log that is damaged where it was durable is returned `failed`.
    `progress(name, bytes)` is called as bytes are checked.
    """
    disk.makedirs(path, exist_ok=True)
    # Before the folder is listed: a swap that is completed changes which segments there are.
    complete_swaps(disk, path)
    bases = _list_segments(disk, path)
    segments_on_disk = [LogSegment(disk, files, path, base, disk.getsize(_log_path(path, base))) for base in bases]
    epochs = LeaderEpochs(disk, path)
    snapshots = ProducerSnapshots(disk, path)
    producers = ProducerStates(str(partition))
    checker = _SegmentChecker(
        disk=disk,
        files=files,
        path=path,
        partition=partition,
        config=config,
        epochs=epochs,
        snapshots=snapshots,
        now_ms=now_ms,
        recovery_point=max(recovery_point, durable_offset),
    )

    suspects = _find_suspects(disk, segments_on_disk, recovery_point, clean=clean)
    kept = checker.check_all(segments_on_disk, suspects, progress)
    # A rebuilt index is not on the device yet, so a log with suspects counts as not closed cleanly.
    if kept and not (clean and not suspects):
        clean = False
    try:
        end_offset = kept[-1].next_offset() if kept else log_start_offset
        agreed = not kept or _epochs_match(epochs, SegmentList(disk, files, path, kept), end_offset)
    except CorruptBatch as error:
        logger.warning("tail of a cleanly closed log is damaged, recovering it", partition=partition, reason=error)
        # The clean-shutdown marker was wrong about this log, so its last segment is recovered as after a crash.
        kept = checker.check_all(kept, kept[-1:], progress)
        end_offset, agreed = kept[-1].next_offset(), True
        clean = False
    if clean and end_offset < log_start_offset:
        logger.warning(
            "log start offset beyond the log end ignored",
            partition=partition,
            end_offset=end_offset,
            log_start_offset=log_start_offset,
        )
        log_start_offset = kept[0].base_offset if kept else 0
    if kept and end_offset < log_start_offset and not checker.damaged:
        logger.warning(
            "log ends before its start offset, segments removed",
            partition=partition,
            end_offset=end_offset,
            log_start_offset=log_start_offset,
        )
        # DeleteRecords moved the start beyond records that were never synced: none of what is left may be read.
        for segment in kept:
            segment.remove_files()
        kept, end_offset = [], log_start_offset
        epochs.clear()
    if not kept:
        kept = [LogSegment(disk, files, path, log_start_offset)]
        kept[0].activate(config, now_ms, create=True)
    elif kept[-1].file is None:
        kept[-1].activate(config, now_ms)
    segments = SegmentList(disk, files, path, kept)
    start_offset = max(log_start_offset, kept[0].base_offset)
    if not agreed:
        logger.warning("leader epochs disagree with the log, rebuilding them", path=epochs.path)
        epochs.clear()
        epochs.damaged = True
    _complete_epochs(epochs, segments, start_offset, end_offset, clean=clean)
    # Strays are left by segments that retention or compaction has removed.
    snapshots.remove_strays(segments.bases)
    snapshots.remove_outside(0, end_offset)
    # A clean stop writes a snapshot when there are producers, so without one there are none to rebuild.
    if not (clean and not snapshots.offsets()):
        rebuild_producers(producers, snapshots, segments, end_offset)
        refill_batches(producers, segments, now_ms - _REFILL_AGE_MS)
    state = LogState(
        disk,
        path,
        partition,
        config,
        topic_id=read_topic_id(disk, path) or ZERO_UUID,
        segments=segments,
        producers=producers,
        snapshots=snapshots,
        leader_epochs=epochs,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        # Files of checked segments were rewritten, so syncing begins with them.
        recovery_point=end_offset if clean else min([recovery_point, end_offset, *(s.base_offset for s in suspects)]),
    )
    log = Log(state, now_ms)
    log.appender.schedule_roll()
    if checker.damaged:
        # The next start must come to the same result: the recovery point stays beyond the damage.
        state.recovery_point = recovery_point
        log.fail()
    if clean and segments_on_disk:
        log.flusher.clean_position = log.flusher.position
    return log


def _find_suspects(disk: Disk, segments: list[LogSegment], recovery_point: int, *, clean: bool) -> list[LogSegment]:
    """Return the segments that must be checked batch by batch, in order."""
    unsynced: list[LogSegment] = []
    if not clean:
        # The last segment is always among them: no next segment bounds it, and it was the one being written.
        unsynced = [s for s in segments if _segment_end(segments, s) > recovery_point or s is segments[-1]]
    # A missing or implausible index has its segment scanned even after a clean stop, since lookups rely on it.
    unindexed = [s for s in segments if s not in unsynced and not _has_sane_index(disk, s)]
    return sorted(unsynced + unindexed, key=attrgetter("base_offset"))


def _complete_epochs(
    epochs: LeaderEpochs, segments: SegmentList, start_offset: int, end_offset: int, *, clean: bool
) -> None:
    """Make the leader epochs cover exactly the log: without later ones, with those that the checkpoint has lost."""
    # A leader epoch is written before its first batch; a crash in between leaves an epoch without batches.
    epochs.truncate_from_end(end_offset)
    # Batches without a leader epoch (-1) leave no entries, and after a clean stop none can be missing.
    known = epochs.reaches(start_offset) or (clean and not epochs.entries())
    if end_offset > start_offset and (epochs.damaged or not known):
        epochs.extend_back(read_leader_epochs(segments))
    epochs.truncate_from_start(start_offset)


def create_log(
    path: str, partition: TopicPartition, config: LogConfig, *, disk: Disk, files: OpenFiles, now_ms: int
) -> Log:
    """Create a log in a new folder; FileExistsError when the folder exists.

    Nothing is searched for: a thousand new partitions cost half of what opening a thousand empty folders does.
    """
    disk.makedirs(path)
    segment = LogSegment(disk, files, path, 0)
    segment.activate(config, now_ms, create=True)
    state = LogState(
        disk,
        path,
        partition,
        config,
        topic_id=ZERO_UUID,
        segments=SegmentList(disk, files, path, [segment]),
        producers=ProducerStates(str(partition)),
        snapshots=ProducerSnapshots(disk, path, empty=True),
        leader_epochs=LeaderEpochs(disk, path, empty=True),
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
    )
    return Log(state, now_ms)


class _SegmentChecker:
    """Checks segments batch by batch, rebuilds their indexes, and truncates the log at the first invalid batch."""

    def __init__(
        self,
        *,
        disk: Disk,
        files: OpenFiles,
        path: str,
        partition: TopicPartition,
        config: LogConfig,
        epochs: LeaderEpochs,
        snapshots: ProducerSnapshots,
        now_ms: int,
        recovery_point: int,
    ) -> None:
        self.damaged = False
        """Whether bytes that were durable are damaged."""
        self._recovery_point = recovery_point
        self._disk = disk
        self._files = files
        self._path = path
        self._partition = partition
        self._config = config
        self._epochs = epochs
        self._snapshots = snapshots
        self._now_ms = now_ms

    def check_all(
        self,
        segments: list[LogSegment],
        suspects: list[LogSegment],
        progress: Progress | None,
    ) -> list[LogSegment]:
        """Check the suspects in order; return the segments that remain."""
        if not suspects:
            return segments
        # A state of its own: that of the log is rebuilt afterwards, when it is certain where the log ends.
        producers = ProducerStates(str(self._partition))
        end_offset = -1
        kept = list(segments)
        for segment in suspects:
            # Consecutive suspects continue with the producers of the one before; after a gap they are loaded again.
            if segment.base_offset != end_offset:
                self._load_producers(producers, kept, segment)
            last = segment is kept[-1]
            end_offset, intact = self._check(segment, producers, kept, last=last, progress=progress)
            if self.damaged:
                # Later segments stay on the disk untouched: the operator decides what becomes of them.
                kept = [s for s in kept if s.base_offset <= segment.base_offset]
                break
            if intact and not last and max(end_offset, self._recovery_point) < _segment_end(kept, segment):
                # Unsynced bytes may be lost at a batch's end too. Compaction makes such holes on purpose, but only
                # below the recovery point.
                logger.warning(
                    "offsets missing before the next segment",
                    path=segment.path(LOG_SUFFIX),
                    offset=end_offset,
                    next_segment=_segment_end(kept, segment),
                )
                intact = False
            if not intact:
                later = [s for s in kept if s.base_offset > segment.base_offset]
                for other in later:
                    logger.warning("segment after the damage removed", path=other.path(LOG_SUFFIX))
                    other.remove_files()
                kept = [s for s in kept if s not in later]
                break
            if not last:
                end_offset = _segment_end(kept, segment)
                self._snapshots.take(end_offset, producers.entries.values())
        # Once for all segments, not per correction: a log can have thousands of them.
        self._epochs.flush()
        return kept

    def _load_producers(self, producers: ProducerStates, kept: list[LogSegment], segment: LogSegment) -> None:
        """Load producer state as of the start of a segment."""
        base = segment.base_offset
        before = [s for s in kept if s.base_offset < base]
        if before:
            rebuild_producers(
                producers, self._snapshots, SegmentList(self._disk, self._files, self._path, before), base
            )
        else:
            snapshot = self._snapshots.latest(base, base)
            producers.load(snapshot[1] if snapshot else [])

    def _check(
        self,
        segment: LogSegment,
        producers: ProducerStates,
        kept: list[LogSegment],
        *,
        last: bool,
        progress: Progress | None = None,
        stop: int | None = None,
    ) -> tuple[int, bool]:
        """Check one of the segments `kept`; return the offset after its last valid batch, and whether it is intact.

        The batch at the position `stop` is known to be invalid.
        """
        end = _segment_end(kept, segment)
        # Every checked segment is active for the moment: only active ones can append to their indexes.
        segment.activate(self._config, self._now_ms, rebuild=True)
        assert segment.file is not None
        assert segment.index is not None
        assert segment.time_index is not None
        aborted: list[AbortedTxn] = []
        reason = "the file ends inside a batch"
        reported = 0

        def report(size: int) -> None:
            nonlocal reported
            reported += size
            if progress is not None:
                progress(str(self._partition), size)

        scan = SegmentScan(
            segment,
            producers,
            next_offset=segment.base_offset,
            end_offset=end,
            epochs=self._epochs,
            interval=self._config.index_interval_bytes,
            index=True,
            progress=report,
            stop=stop,
        )
        for data in scan:
            try:
                batch = BatchView(data)
                _check_batch(batch, scan.next_offset, segment.base_offset, end)
                txn = producers.append(batch, Origin.REPLICATION)
            except CorruptBatch as error:
                reason = str(error)
                break
            if txn is not None:
                aborted.append(txn)
            if batch.leader_epoch != self._epochs.epoch_for_offset(batch.base_offset):
                self._epochs.correct(batch.leader_epoch, batch.base_offset)
            scan.accept(batch)
        if progress is not None:
            progress(str(self._partition), segment.size - reported)
        position, next_offset, largest = scan.position, scan.next_offset, scan.largest
        intact = position == segment.size
        if stop is not None:
            reason = "its offset is beyond that of the batch after it"
        # Scanned again up to the batch whose offset is wrong; producers must not have seen it.
        elif not intact and (contradicted := _find_contradicted_batch(segment, position, next_offset)) is not None:
            self._load_producers(producers, kept, segment)
            return self._check(segment, producers, kept, last=last, stop=contradicted)
        # Below the recovery point a crash cannot tear anything: this is damage of the device (see the module's
        # docstring).
        if not intact and next_offset < self._recovery_point:
            self.damaged = True
            logger.error(
                "log damaged below its recovery point, read-only up to there",
                path=segment.path(LOG_SUFFIX),
                position=position,
                offset=next_offset,
                recovery_point=self._recovery_point,
                reason=reason,
                help="klamm storage check, then repair, or restore the file",
            )
            segment.size = position
            segment.max_timestamp = largest
            return next_offset, False
        if not intact:
            logger.warning(
                "log truncated",
                path=segment.path(LOG_SUFFIX),
                size_bytes=segment.size - position,
                position=position,
                offset=next_offset,
                reason=reason,
            )
            segment.size = position
            self._disk.ftruncate(segment.file.fd, position)
        segment.max_timestamp = largest
        segment.bytes_since_index = scan.unindexed
        segment.txn_index.reset(aborted)
        if last or not intact:
            segment.write_indexes()
        else:
            segment.deactivate()
        return next_offset, intact


def _find_contradicted_batch(segment: LogSegment, position: int, next_offset: int) -> int | None:
    """Return where the last batch before `position` begins, if the batch after it shows that its offset is wrong.

    The checksum does not cover offsets. One that is too large makes the valid batch after it look out of order; but
    that batch continues at the end of the one before both.
    """
    try:
        following = next(segment.headers(position), None)
        if following is None or following.base_offset >= next_offset or position + following.size > segment.size:
            return None
        BatchView(segment.open_file().pread(following.size, position)).check_crc()
    except CorruptBatch:
        return None
    at, end, before = 0, segment.base_offset, (0, segment.base_offset)
    for batch in segment.headers(0):
        if at >= position:
            break
        before = (at, end)
        at, end = at + batch.size, batch.next_offset
    return before[0] if before[1] <= following.base_offset else None


def _epochs_match(epochs: LeaderEpochs, segments: SegmentList, end_offset: int) -> bool:
    """Return whether the newest leader epoch is that of the last batch, and not of batches before its start."""
    if not epochs.entries():
        return True
    for offset in (end_offset - 1, epochs.entries()[-1][1] - 1):
        region = segments.read(offset, 1, end_offset, end_offset, True) if offset >= segments[0].base_offset else None
        if region is not None:
            batch = BatchView(region.file.pread(HEADER_SIZE, region.position))
            if batch.last_offset < offset:
                continue
            if 0 <= batch.leader_epoch != epochs.epoch_for_offset(batch.last_offset) >= 0:
                return False
    return True


def _check_batch(batch: BatchView, next_offset: int, segment_base: int, end: int) -> None:
    batch.check_crc()
    if batch.base_offset < next_offset or not 0 <= batch.last_offset - segment_base < 2**31:
        raise CorruptBatch(f"offset {batch.base_offset} does not follow {next_offset - 1}")
    if batch.last_offset >= end:
        raise CorruptBatch(f"offset {batch.last_offset} belongs to the segment that begins with {end}")


def _list_segments(disk: Disk, path: str) -> list[int]:
    """Return the base offsets of the segments in a folder. Leftovers of interrupted changes and orphaned indexes are
    removed; unknown files stay and are logged.
    """
    names = set(disk.listdir(path))
    bases = sorted(int(name[:-4]) for name in names if name.endswith(LOG_SUFFIX) and name[:-4].isdigit())
    known = set(bases)
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        if name.endswith(_LEFTOVERS) and not name.endswith(".checkpoint.deleted"):
            logger.info("leftover of an interrupted change removed", path=os.path.join(path, name))
            disk.unlink(os.path.join(path, name))
        elif suffix in _SEGMENT_SUFFIXES and stem.isdigit():
            if suffix != SNAPSHOT_SUFFIX and int(stem) not in known:
                logger.warning("index without its log removed", path=os.path.join(path, name))
                disk.unlink(os.path.join(path, name))
        elif name not in _OTHER_NAMES and suffix not in _OTHER_SUFFIXES:
            logger.warning("unknown file ignored", path=os.path.join(path, name))
    return bases


def _has_sane_index(disk: Disk, segment: LogSegment) -> bool:
    """Return whether the index files of a segment exist and their last entries are plausible."""
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        if not disk.exists(segment.path(suffix)):
            logger.warning("index missing, rebuilding it", path=segment.path(suffix))
            return False
    sane = segment.offset_index().sane(segment.size)
    if not sane:
        logger.warning("index disagrees with its log, rebuilding it", path=segment.path(INDEX_SUFFIX))
    segment.close_cached()
    return sane


def _segment_end(segments: list[LogSegment], segment: LogSegment) -> int:
    """Return an offset at or beyond the end of a segment."""
    i = segments.index(segment)
    return segments[i + 1].base_offset if i + 1 < len(segments) else 2**63


def _log_path(path: str, base: int) -> str:
    return os.path.join(path, f"{base:020d}{LOG_SUFFIX}")


def suspect_bytes(disk: Disk, path: str, recovery_point: int) -> int:
    """Return how many bytes of a log recovery has to check."""
    bases = sorted(int(name[:-4]) for name in disk.listdir(path) if name.endswith(LOG_SUFFIX) and name[:-4].isdigit())
    ends = [*bases[1:], 2**63][: len(bases)]
    return sum(
        disk.getsize(_log_path(path, base)) for base, end in zip(bases, ends, strict=True) if end > recovery_point
    )
