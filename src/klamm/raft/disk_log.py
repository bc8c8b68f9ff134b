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
    """A storage.Log seen as a RaftLog. Batches carry their offsets and epochs: all are appended as a follower does."""

    def __init__(self, log: Log, disk: Disk) -> None:
        self._log = log
        self._disk = disk
        self._closed = False
        self._named_segments: list[int] = []

    @classmethod
    def open(cls, config: RaftConfig, disk: Disk, now_ms: int, start_offset: int, recovery_point: int) -> "DiskRaftLog":
        """Open or create the log; what lies below `recovery_point` is known to be durable and is not scanned again.

        StorageFailure when durable bytes are damaged: what a member has said it has, it may not do without.
        """
        settings = LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
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
                f"{config.folder}: the log of the metadata is damaged after offset {log.log_end_offset}, "
                "see `klamm storage check`; restore its files, or let this member begin anew without them"
            )
        _forget_closing(disk, config.folder)
        log.set_topic_id(METADATA_TOPIC_ID)
        begin = _after_the_last_hole(log)
        if begin > log.log_start_offset:
            # A crash while the log began anew behind a leader's snapshot: what came before is of no use any more.
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
        """Write one batch at the end."""
        self._log.append_as_follower(memoryview(batch))

    def flush(self) -> None:
        """Sync everything appended before this call, and the names of segments that were begun since the last one."""
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
        """Drop all batches from `end_offset` on, for good: what another leader has there must not follow on them."""
        self._log.truncate_to(end_offset, durable=True)

    def start_at(self, offset: int) -> None:
        """Drop everything; the next batch has this offset."""
        self._log.truncate_fully_and_start_at(offset)

    def delete_before(self, offset: int) -> None:
        """Let the log start at `offset` and delete the segments wholly before it."""
        self._log.advance_log_start(offset)
        self._log.remove_segments_below_start()

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches of one segment, the first of which contains `offset`."""
        found = self._log.read(offset, max_bytes, self._log.log_end_offset)
        return b"" if found is None else found.read()

    def close(self) -> None:
        """Flush, leave a note of how far that was, and release the files."""
        if not self._closed:
            self._closed = True
            self._log.flush()
            self._log.close()
            text = f"{self._log.log_end_offset}\n"
            self._disk.replace_file(os.path.join(self._log.path, CLOSED_AT), text.encode())


def _closed_at(disk: Disk, folder: str) -> int:
    """Where the log ended when it was closed properly; 0 when it was not, or nobody can tell."""
    try:
        return int(disk.read_file(os.path.join(folder, CLOSED_AT)))
    except (FileNotFoundError, ValueError):
        return 0


def _forget_closing(disk: Disk, folder: str) -> None:
    """What is written from now on may be torn by a crash."""
    if disk.exists(os.path.join(folder, CLOSED_AT)):
        disk.unlink(os.path.join(folder, CLOSED_AT))
        disk.sync_dir(folder)


def _after_the_last_hole(log: Log) -> int:
    """The first offset from which on no offset is missing; this log is never compacted, so none should be."""
    begin = log.log_start_offset
    for segment, following in zip(log.segments[:-1], log.segments[1:], strict=True):
        if segment.next_offset() != following.base_offset:
            begin = following.base_offset
    return begin
