"""The state of one log: its files, its offsets and whether its disk still works.

The appender, the reader and the flusher of a log share one `LogState`. One thread owns it; nothing here touches a file
except through the leader epoch checkpoint.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from klamm.model.errors import StorageFailure
from klamm.model.ids import TopicPartition
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_segment import LogSegment
from klamm.storage.producer_snapshots import ProducerSnapshots
from klamm.storage.producer_state import ProducerStates
from klamm.storage.segment_list import SegmentList


class LogStatus(enum.Enum):
    """What a log may still be used for."""

    ONLINE = "online"
    READ_ONLY = "read-only"
    """A write or sync failed, or durable bytes are damaged: appends raise StorageFailure, reads are served."""
    OFFLINE = "offline"
    """The log directory failed: reads raise StorageFailure too."""


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class LogListener:
    """What the owner of logs is called for; one listener serves many logs, so each call names the log's state."""

    on_roll: Callable[["LogState", LogSegment], None] = _ignore
    """Called with the segment just closed, which is not durable yet."""
    before_truncate: Callable[["LogState"], None] = _ignore
    """Called before the end is cut, so that nothing else is at work on the segments."""
    on_truncate: Callable[["LogState"], None] = _ignore
    """Called when the recovery point went back: the recovery point checkpoint on disk is beyond the log's end."""
    on_failure: Callable[["LogState", StorageFailure], None] = _ignore
    """Called once, when the log becomes read-only because of a failure."""


NO_LISTENER = LogListener()


class LogState:
    """Plain attributes of a log, and the rules by which its offsets move.

    Each offset is at most the next: `log_start_offset`, `last_stable_offset`, `high_watermark`, `log_end_offset` (after
    the last written batch). Everything below `recovery_point` is on the device.
    """

    __slots__ = (
        "cleaned_offset",
        "config",
        "disk",
        "high_watermark",
        "leader_epochs",
        "listener",
        "log_end_offset",
        "log_start_offset",
        "name",
        "offline_reason",
        "path",
        "producers",
        "recovery_point",
        "retired",
        "segments",
        "snapshots",
        "status",
        "swapping",
        "topic_id",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: bytes,
        segments: SegmentList,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
        leader_epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        self.disk = disk
        self.path = path
        self.topic_partition = partition
        self.name = str(partition)
        self.config = config
        self.topic_id = topic_id
        self.segments = segments
        self.producers = producers
        self.snapshots = snapshots
        self.leader_epochs = leader_epochs
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.truncations = 0
        """How often the end went back: a sync that began before the last truncation proves nothing."""
        self.cleaned_offset: int | None = None
        """The offset up to which the log is compacted; None when it never was, or the checkpoint was lost."""
        self.swapping: int | None = None
        """Base offset of the cleaned segment whose files end with `.swap` at the moment."""
        self.retired = False
        """Whether the log was taken out of service: failures of its files no longer matter."""
        self.status = LogStatus.ONLINE
        self.offline_reason = ""
        self.listener = NO_LISTENER

    # --- status ------------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether the log takes no appends."""
        return self.status is not LogStatus.ONLINE

    def fail(self, failure: StorageFailure | None = None) -> None:
        """Take no more appends: what is on the disk and what is in memory may differ."""
        if self.status is not LogStatus.ONLINE:
            return
        self.status = LogStatus.READ_ONLY
        if failure is not None:
            self.listener.on_failure(self, failure)

    def fail_on(self, operation: str, error: BaseException) -> StorageFailure:
        """Take no more appends because an operation failed; return the error to raise."""
        failure = StorageFailure(f"{operation}: {error}")
        self.fail(failure)
        return failure

    def take_offline(self, reason: str) -> None:
        """Refuse reads and appends with KAFKA_STORAGE_ERROR from now on: the log directory failed."""
        self.status = LogStatus.OFFLINE
        self.offline_reason = reason

    def check_online(self) -> None:
        """Raise StorageFailure when the log directory failed."""
        if self.status is LogStatus.OFFLINE:
            raise StorageFailure(f"{self.name} is offline, its log directory failed: {self.offline_reason}")

    def check_appendable(self) -> None:
        """Raise StorageFailure when the log takes no appends."""
        if self.status is not LogStatus.ONLINE:
            raise StorageFailure(f"{self.name} takes no appends after a failed write")

    # --- offsets -----------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data stop: no open transaction and no unreplicated marker is below."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))

    @property
    def durable_offset(self) -> int:
        """How far the high watermark may go: with flush.messages, no further than what is on the device.

        Fewer than flush.messages unsynced records hold nothing back, as in Kafka.
        """
        end = self.log_end_offset
        return end if end - self.recovery_point < self.config.flush_messages else self.recovery_point

    def advance_high_watermark(self, offset: int) -> int:
        """Move the high watermark, never beyond the log end nor below its start; return where it is now."""
        self.high_watermark = max(min(offset, self.log_end_offset), self.log_start_offset)
        if not self.producers.is_stable:
            self.producers.on_high_watermark(self.high_watermark)
        return self.high_watermark

    def advance_to_end(self) -> int:
        """Move the high watermark to the log end and return it: the leader is the only replica in sync."""
        end = self.log_end_offset
        self.high_watermark = end
        if not self.producers.is_stable:
            self.producers.on_high_watermark(end)
        return end

    def advance_log_start(self, offset: int) -> None:
        """Move the log start forward; the next retention pass removes segments that end below it."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        # Followers compare epochs of the records that are left; older ones would make them truncate too far back.
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset(offset)

    def mark_durable(self, up_to: int, truncations: int | None = None) -> None:
        """Move the recovery point to `up_to` after a sync; `truncations` is the count from when the sync began."""
        if truncations is None or truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, up_to)

    # --- files -------------------------------------------------------------------------------------------------------

    def end_of(self, segment: LogSegment) -> int:
        """Return the offset after the last one a segment may hold."""
        return self.segments.end_of(segment, self.log_end_offset)

    def relocate(self, path: str) -> None:
        """Use a folder that was renamed."""
        self.path = path
        self.segments.relocate(path)
        self.snapshots.folder = path
        self.leader_epochs.relocate(path)
