"""The metadata log on disk: `__cluster_metadata-0` as an ordinary partition log, in Kafka's segment format."""

import os

from klamm.model.errors import StorageFailure
from klamm.model.ids import METADATA_TOPIC_ID, TopicPartition
from klamm.raft.config import RaftConfig
from klamm.storage.checkpoints import CLOSED_AT
from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.log import Log
from klamm.storage.log_recovery import open_log

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)


class DiskRaftLog:
    """The log of the quorum over a partition log; batches carry their offsets and epochs, as on a follower."""

    def __init__(self, log: Log, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._closed = False
        self._named_segments: list[int] = []

    @classmethod
    def open(cls, config: RaftConfig, disk: Disk, now_ms: int, start_offset: int, recovery_point: int) -> "DiskRaftLog":
        """Open or create the log; records below `recovery_point` are known to be durable and are not scanned.

        Raise StorageFailure when durable bytes are damaged: this member has acknowledged them, so the quorum counts
        on them.
        """
        settings = LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            # No limit: a follower must take what the leader has accepted.
            max_message_bytes=MAX_LONG,
            message_timestamp_after_max_ms=MAX_LONG,
        )
        log = open_log(
            config.folder,
            METADATA_PARTITION,
            settings,
            disk=disk,
            files=OpenFiles(),
            now_ms=now_ms,
            recovery_point=recovery_point,
            log_start_offset=start_offset,
            durable_offset=_closed_at(disk, config.folder),
        )
        if log.failed:
            raise StorageFailure(
                f"{config.folder}: the metadata log is damaged after offset {log.log_end_offset}, "
                "see `klamm storage check`; restore its files, or let this member start without them"
            )
        # Before the first append: a stale file would declare torn bytes durable after a crash.
        _remove_closed_at(disk, config.folder)
        log.set_topic_id(METADATA_TOPIC_ID)
        begin = _end_of_last_gap(log)
        if begin > log.log_start_offset:
            # A crash while the log was reset to a leader's snapshot: the segments before it are obsolete.
            log.advance_log_start(begin)
            log.remove_segments_below_start()
        return cls(log, disk)

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset the next batch must have."""
        return self._log.log_end_offset

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset written in it) pairs, ascending."""
        return tuple(self._log.leader_epochs.entries())

    def append(self, batch: bytes | bytearray) -> None:
        """Write a batch at the end."""
        self._log.append_as_follower(memoryview(batch))

    def flush(self) -> None:
        """Sync everything appended before this call, and the names of segments created since the last one."""
        # Taken before the flush: a segment created while it runs is left to the next call.
        segments = self._log.segments.bases
        self._log.flush()
        if segments != self._named_segments:
            try:
                self._disk.sync_dir(self._log.path)
                self._disk.sync_dir(os.path.dirname(self._log.path))
            except OSError as error:
                raise StorageFailure(f"cannot sync {self._log.path}: {error}") from error
            self._named_segments = segments

    def truncate_to(self, end_offset: int) -> None:
        """Remove all batches from `end_offset` on durably.

        After a crash they must not reappear below what another leader has written at their offsets.
        """
        self._log.truncate_to(end_offset, durable=True)

    def start_at(self, offset: int) -> None:
        """Remove everything; the next batch has this offset."""
        self._log.truncate_fully_and_start_at(offset)

    def delete_before(self, offset: int) -> None:
        """Let the log start at `offset`, and delete the segments that end before it."""
        self._log.advance_log_start(offset)
        self._log.remove_segments_below_start()

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Complete batches of one segment, from the one that contains `offset` on."""
        region = self._log.read(offset, max_bytes, self._log.log_end_offset)
        return b"" if region is None else region.read()

    def close(self) -> None:
        """Flush, record the end offset in the `closed-at` file, and release the files."""
        if not self._closed:
            self._closed = True
            self._log.flush()
            self._log.close()
            text = f"{self._log.log_end_offset}\n"
            self._disk.replace_file(os.path.join(self._log.path, CLOSED_AT), text.encode())


def _closed_at(disk: Disk, folder: str) -> int:
    """The end of the log at its last clean close; 0 when it was not closed cleanly, or the file cannot be read."""
    try:
        return int(disk.read_file(os.path.join(folder, CLOSED_AT)))
    except (FileNotFoundError, ValueError):
        return 0


def _remove_closed_at(disk: Disk, folder: str) -> None:
    """Remove the `closed-at` file: what is written from now on may be torn by a crash."""
    if disk.exists(os.path.join(folder, CLOSED_AT)):
        disk.unlink(os.path.join(folder, CLOSED_AT))
        disk.sync_dir(folder)


def _end_of_last_gap(log: Log) -> int:
    """The first offset after which no offset is missing; this log is never compacted, so usually its start."""
    begin = log.log_start_offset
    for segment, following in zip(log.segments[:-1], log.segments[1:], strict=True):
        if segment.next_offset() != following.base_offset:
            begin = following.base_offset
    return begin
