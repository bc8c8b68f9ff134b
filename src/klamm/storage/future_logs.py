"""Future logs: copies of replicas that move from one log dir to another, until they replace the original.

The copy is in the other log dir as `<topic>-<partition>.<uuid>-future` and is a log like any other, except that it is
not read and only the mover appends to it. Taking over is two renames, the old folder's first:

    <old dir>/orders-0                 ->  <old dir>/orders-0.<uuid>-delete
    <new dir>/orders-0.<uuid>-future   ->  <new dir>/orders-0

Before that, the mover makes the copy durable and the metadata names the new log dir. So a crash leaves either both (the
move continues), or the copy alone in the log dir that the metadata names (it takes over at the next start).
"""

import os
import uuid
from collections.abc import Callable, Iterator

from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.model.ids import TopicPartition
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.log import Log
from klamm.storage.log_dir import LogDir
from klamm.storage.log_recovery import open_log
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

NAME_MAX = 255


class FutureLogs:
    """The future logs of a broker, at most one per partition. `LogManager` owns it."""

    def __init__(self, disk: Disk, files: OpenFiles, new_uuid: Callable[[], uuid.UUID]) -> None:
        self._disk = disk
        self._files = files
        self._new_uuid = new_uuid
        self._logs: dict[TopicPartition, Log] = {}

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, partition: TopicPartition) -> Log | None:
        """The future log of a partition, if it has one."""
        return self._logs.get(partition)

    def adopt(self, log: Log) -> None:
        """Register a future log that was opened at start; a second one for its partition is ignored."""
        if log.topic_partition in self._logs:
            logger.warning("folder ignored", path=log.path, reason="the partition has another future log")
            log.close(clean=False)
        else:
            self._logs[log.topic_partition] = log

    def create(self, log: Log, log_dir: LogDir, start_offset: int, now_ms: int) -> Log:
        """Create an empty copy of a log in another log dir."""
        assert log.topic_partition not in self._logs
        name = f"{log.name}.{self._new_uuid().hex}-future"
        if len(name) > NAME_MAX:
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        path = os.path.join(log_dir.path, name)
        try:
            future = open_log(
                path,
                log.topic_partition,
                log.config,
                disk=self._disk,
                files=self._files,
                now_ms=now_ms,
                clean=True,
                log_start_offset=start_offset,
            )
        except OSError as error:
            raise StorageFailure(f"cannot create {path}: {error}") from error
        future.set_topic_id(log.topic_id)
        self._logs[log.topic_partition] = future
        return future

    def release(self, log: Log) -> None:
        """Drop a future log: it replaces the original now, or is about to be deleted."""
        if self._logs.get(log.topic_partition) is log:
            del self._logs[log.topic_partition]

    def take_over(self, future: Log, current: Log | None, log_dir: LogDir) -> None:
        """Rename the copy to the partition's own name; `current`, whose folder is out of the way, hands over its state.

        Both logs end at the same offset.
        """
        target = os.path.join(log_dir.path, future.name)
        try:
            # The folder of the old log is out of the way already: its rename came first, so the name is free.
            self._disk.rename(future.path, target)
            self._disk.sync_dir(log_dir.path)
        except OSError as error:
            raise StorageFailure(f"cannot rename {future.path}: {error}") from error
        self.release(future)
        future.relocate(target)
        if current is not None:
            assert future.log_end_offset == current.log_end_offset
            future.advance_log_start(current.log_start_offset)
            future.take_over_from(current)
            if future.producers.entries:
                # Some producers wrote nothing that is in the copy: after a crash only this snapshot has them.
                future.snapshots.remove(future.log_end_offset)
                future.snapshots.take(future.log_end_offset, future.producers.entries.values())
