"""One log dir: its lock, its identity, its checkpoints, its clean-shutdown marker."""

import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition, Uuid
from klamm.storage.checkpoints import (
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    REPLICATION_OFFSET,
    read_offsets,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offsets,
)
from klamm.storage.disk import Disk
from klamm.storage.log import Log
from klamm.storage.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

LOCK = ".lock"
METADATA_TOPIC = "__cluster_metadata"
PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)\Z")
DELETED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-delete\Z")
FUTURE_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-future\Z")
STRAY_FOLDER = re.compile(r".+\.[0-9a-f]{32}-stray\Z")
KNOWN_FILES = re.compile(r"(?:.*-checkpoint|meta\.properties|bootstrap\.checkpoint|\.lock|\.kafka_cleanshutdown)\Z")


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """What DescribeLogDirs reports of a folder."""

    path: str
    total_bytes: int
    usable_bytes: int
    failure: str | None = None
    """Why the folder is offline, None while it is not."""


class LogDirUnusable(ConfigError):
    """Raised when the disk refuses access to a folder: it is offline, the other log dirs are served."""


@dataclass(frozen=True, slots=True)
class SavedOffsets:
    """The content of the checkpoint files of a folder."""

    points: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Recovery points: below them logs are not checked."""
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Log start offsets, where they are not those of the first segment."""
    marks: Mapping[TopicPartition, int] = field(default_factory=dict)
    """High watermarks."""
    cleaned: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets up to which logs are compacted."""


class LogDir:
    """A folder of logs held by this process alone, from construction to `release`."""

    def __init__(self, disk: Disk, path: str, *, failure: str | None = None) -> None:
        """Lock the folder; with a `failure`, only report it: nothing is created or locked."""
        self.disk = disk
        self.path = os.path.abspath(path)
        self._lock_fd = -1
        self.failure = failure
        """Why the folder is offline, None while it is not."""
        self.saved = SavedOffsets()
        # Checkpoints are written in several threads, one at a time and never an older one over a newer.
        self._writing = threading.Lock()
        self._taken = self._written = 0
        if failure is None:
            self._lock()

    def _lock(self) -> None:
        try:
            self.disk.makedirs(self.path, exist_ok=True)
            self._lock_fd = self.disk.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogDirUnusable(f"the data folder {self.path} cannot be written: {error.strerror}") from error
        try:
            self.disk.lock(self._lock_fd)
        except OSError as error:
            self.release()
            raise ConfigError(f"the data folder {self.path} is in use by another process") from error

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock_fd >= 0:
            self.disk.close(self._lock_fd)
            self._lock_fd = -1

    def identify(self, cluster_id: str | None, node_id: int) -> MetaProperties | None:
        """Read the folder's identity and refuse one of another cluster or node."""
        properties = read_meta_properties(self.disk, self.path)
        if properties is None:
            return None
        if cluster_id is not None and properties.cluster_id != cluster_id:
            raise ConfigError(
                f"the data folder {self.path} belongs to cluster {properties.cluster_id}, not to {cluster_id}; "
                "use the folder of this cluster or an empty one"
            )
        if properties.node_id != node_id:
            raise ConfigError(
                f"the data folder {self.path} belongs to node {properties.node_id}, not to node {node_id}; "
                f"set node.id={properties.node_id} or use another folder"
            )
        return properties

    def format(self, cluster_id: str, node_id: int, directory_id: Uuid) -> MetaProperties:
        """Give an unidentified folder its identity."""
        properties = MetaProperties(cluster_id, node_id, directory_id)
        write_meta_properties(self.disk, self.path, properties)
        return properties

    def take_clean_shutdown(self) -> int | None:
        """Remove the clean-shutdown marker; return its broker epoch, None when the last stop was not clean."""
        return take_clean_shutdown(self.disk, self.path)

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the clean-shutdown marker: all logs here were closed cleanly."""
        write_clean_shutdown(self.disk, self.path, broker_epoch)

    def load(self) -> None:
        """Read the checkpoint files."""
        self.saved = SavedOffsets(
            *(
                read_offsets(self.disk, os.path.join(self.path, name))
                for name in (RECOVERY_POINT, LOG_START_OFFSET, REPLICATION_OFFSET, CLEANER_OFFSET)
            )
        )

    def has_checkpoint_of(self, partition: TopicPartition) -> bool:
        """Return whether a checkpoint file here has an entry for a partition, maybe a deleted one of the same name."""
        saved = self.saved
        return any(partition in offsets for offsets in (saved.points, saved.starts, saved.marks, saved.cleaned))

    def checkpoint(self, logs: Iterable[Log], original: Callable[[Log], Log]) -> Callable[[], None]:
        """Return what writes the three offset checkpoints of the logs here, as of now; it may run in a thread.

        `original` returns the log of which one is a copy, or the log itself: a copy that takes over has its offsets.
        """
        points, starts, marks = {}, {}, {}
        for log in logs:
            key, source = log.topic_partition, original(log)
            points[key] = log.recovery_point
            marks[key] = min(source.high_watermark, log.log_end_offset)
            if source.log_start_offset > log.segments[0].base_offset:
                starts[key] = source.log_start_offset

        # Numbered when the offsets are read, on the loop; threads may write them in another order.
        self._taken += 1
        number = self._taken

        def write() -> None:
            with self._writing:
                if number < self._written:
                    return  # a later checkpoint was written first
                self._written = number
                write_offsets(self.disk, os.path.join(self.path, RECOVERY_POINT), points)
                # Twice, because a wrong number here would hide records, or have them deleted.
                write_offsets(self.disk, os.path.join(self.path, LOG_START_OFFSET), starts, twice=True)
                write_offsets(self.disk, os.path.join(self.path, REPLICATION_OFFSET), marks)
                self.saved = replace(self.saved, points=points, starts=starts, marks=marks)

        return write

    def cleaner_checkpoint(self, logs: Iterable[Log]) -> Callable[[], None]:
        """Return what writes the cleaner offset checkpoint of the logs here, as of now; it may run in a thread."""
        offsets = {log.topic_partition: log.cleaned_offset for log in logs if log.cleaned_offset is not None}

        def write() -> None:
            with self._writing:
                write_offsets(self.disk, os.path.join(self.path, CLEANER_OFFSET), offsets)
                self.saved = replace(self.saved, cleaned=offsets)

        return write

    def partition_folders(self) -> dict[TopicPartition, str]:
        """Return the partition folders here, without deleted and future ones; unknown names are logged."""
        folders = {}
        for name in sorted(self.disk.listdir(self.path)):
            full = os.path.join(self.path, name)
            match = PARTITION_FOLDER.match(name)
            if match and self.disk.isdir(full):
                if match["topic"] != METADATA_TOPIC:
                    folders[TopicPartition(match["topic"], int(match["partition"]))] = full
            elif not (DELETED_FOLDER.match(name) or FUTURE_FOLDER.match(name) or KNOWN_FILES.match(name)):
                reason = "stray partition, inspect it" if STRAY_FOLDER.match(name) else "not part of Klamm's data"
                logger.warning("folder ignored", path=full, reason=reason)
        return folders

    def future_folders(self) -> dict[TopicPartition, str]:
        """Return the folders of future logs here; of two for one partition, the first."""
        folders: dict[TopicPartition, str] = {}
        for name in sorted(self.disk.listdir(self.path)):
            match = FUTURE_FOLDER.match(name)
            if match:
                full = os.path.join(self.path, name)
                if folders.setdefault(TopicPartition(match["topic"], int(match["partition"])), full) != full:
                    logger.warning("folder ignored", path=full, reason="the partition has another future log here")
        return folders

    def deleted_folders(self) -> list[str]:
        """Return folders of deleted partitions whose removal was interrupted."""
        return [os.path.join(self.path, name) for name in self.disk.listdir(self.path) if DELETED_FOLDER.match(name)]

    def facts(self) -> LogDirFacts:
        """Return size and free space of the volume, for DescribeLogDirs."""
        if self.failure is not None:
            return LogDirFacts(self.path, -1, -1, self.failure)
        stat = self.disk.statvfs(self.path)
        return LogDirFacts(self.path, stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def is_held(path: str) -> bool:
    """Return whether a node has locked a data folder; changes nothing."""
    try:
        fd = os.open(os.path.join(path, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Both kinds, as `Disk.lock` takes them: a JVM holds only the second.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
