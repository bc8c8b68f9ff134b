"""All logs of a broker: opens them at start, creates, moves and deletes them, and handles failed disks.

The loop calls `tick` regularly for periodic work (see `housekeeping`). Nothing in here blocks the loop on a disk longer
than renaming a few files takes.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial

from klamm.model.clock import Clock, SystemClock
from klamm.model.errors import ConfigError, ErrorCode, KlammError, StorageFailure
from klamm.model.ids import ZERO_UUID, TopicPartition, Uuid
from klamm.storage.background_io import BackgroundIo
from klamm.storage.clean_shutdown import close_logs
from klamm.storage.config import LogConfig, StorageConfig
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.future_logs import FutureLogs
from klamm.storage.group_sync import GroupSync
from klamm.storage.housekeeping import Housekeeping
from klamm.storage.log import Log
from klamm.storage.log_cleaner import LogCleaner
from klamm.storage.log_dir import LogDir, LogDirFacts
from klamm.storage.log_recovery import create_log, open_log
from klamm.storage.log_segment import LogSegment
from klamm.storage.log_state import LogListener, LogState
from klamm.storage.storage_startup import LogLoader, complete_identity, lock_dirs, read_identity
from klamm.storage.thread_pools import Threads, real_threads
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

_PREFERRED_MAX = 10_000
"""Bounds what AlterReplicaLogDirs may leave in memory for partitions that are never created."""
_BITS_DAMAGED_MAX = 6
"""One damaged character of a topic id is six bits. Two random ids are never that similar."""


class LogManager:
    """The logs of all log dirs. `identify` locks the folders, `open_logs` opens the logs, `close` releases both."""

    def __init__(
        self,
        config: StorageConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        threads: Threads = real_threads,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
        call_on_loop: Callable[[Callable[[], object]], object] | None = None,
        on_failure: Callable[[LogState, StorageFailure], None] | None = None,
        on_dir_offline: Callable[[LogDir], None] | None = None,
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._make_threads = threads
        self._new_uuid = new_uuid
        # Shared by all logs: the limit is on file descriptors of the process.
        self._files = OpenFiles(config.open_files_max)
        self.dirs: list[LogDir] = []
        self.directory_ids: dict[str, Uuid] = {}
        """Log dir path -> directory id."""
        self.cluster_id: str | None = None
        self.previous_broker_epoch = -1
        """The broker epoch of the last run if it stopped cleanly, -1 otherwise."""
        self._logs: dict[TopicPartition, Log] = {}
        self.futures = FutureLogs(self._disk, self._files, new_uuid)
        """Copies of replicas that move to another log dir."""
        self._preferred: dict[TopicPartition, str] = {}
        """The log dir that partitions get when they are created here (AlterReplicaLogDirs before creation)."""
        self._background = BackgroundIo(self._disk, threads)
        self.group_sync = GroupSync(threads, call_on_loop=call_on_loop)
        self.cleaner = LogCleaner(
            config.cleaner,
            self._disk,
            self._clock,
            discard=self._discard,
            checkpoint_writer=self._cleaner_checkpoint,
            recovery_point_writer=self._recovery_point_writer,
            threads=threads,
            call_on_loop=call_on_loop,
        )
        self.housekeeping = Housekeeping(
            config,
            self._clock,
            self._background,
            self.cleaner,
            logs=self._logs.values,
            checkpoint=partial(self.checkpoint, wait=False),
            discard=self._discard,
        )
        self._listener = LogListener(
            on_roll=self._on_roll,
            before_truncate=self._before_truncate,
            on_truncate=self._on_truncate,
            on_failure=self._on_failure,
        )
        self.on_failure = on_failure
        """Called when a vital log directory, or the last one, failed; the node then stops."""
        self.on_dir_offline = on_dir_offline
        """Called when one of several log directories failed."""

    @property
    def _threads(self) -> Executor:
        """The pool in which slow I/O runs; a test may replace it."""
        return self._background.threads

    @_threads.setter
    def _threads(self, threads: Executor) -> None:
        self._background.threads = threads

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(
        self,
        cluster_id: str | None,
        node_id: int,
        *,
        format_empty: bool = False,
        config_for: Callable[[str], LogConfig] | None = None,
    ) -> None:
        """`identify` and `open_logs` in one."""
        self.identify(cluster_id, node_id, format_empty=format_empty)
        self.open_logs(config_for)

    def identify(self, cluster_id: str | None, node_id: int, *, format_empty: bool = False) -> None:
        """Lock every log dir and read its `meta.properties`; ConfigError leaves them all untouched.

        `cluster_id` None takes the one the folders carry. Unidentified folders are formatted when `format_empty` and
        the cluster id is known.
        """
        try:
            lock_dirs(self._disk, self.config.log_dirs, self._is_vital, self.dirs)
            identity = read_identity(self.dirs, cluster_id, node_id, self._is_vital)
            self.cluster_id = identity.cluster_id
            new_id = self._new_directory_id if format_empty else None
            for log_dir in self.dirs:
                if log_dir.failure is None:
                    self.directory_ids[log_dir.path] = complete_identity(log_dir, identity, node_id, new_id)
        except BaseException:
            self._release()
            raise

    def open_logs(self, config_for: Callable[[str], LogConfig] | None = None) -> None:
        """Open every log in the log dirs; `config_for` gives the settings of a topic."""
        try:
            self._open_all(config_for or _default_config)
        except BaseException:
            self._release()
            raise
        self.housekeeping.begin()

    def close(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs. `clean` syncs them, writes checkpoints and leaves the clean-shutdown marker."""
        # The cleaner and the syncs first: they work on logs that are about to be closed.
        self.cleaner.close()
        self.group_sync.close()
        # Waits for removals too; one that is not due yet is found again by the next start.
        self._background.close(wait=True)
        failed_dirs = {log_dir.path for log_dir in self.dirs if log_dir.failure is not None}
        with self._make_threads(8, "klamm-stop") as threads:
            failed_dirs |= close_logs(self._disk, [*self._logs.values(), *self.futures], threads, clean=clean)
        try:
            if clean:
                self.checkpoint()
                for log_dir in self.dirs:
                    # Without the marker the next start recovers the logs in this folder.
                    if log_dir.path not in failed_dirs:
                        log_dir.mark_clean(broker_epoch)
        finally:
            self._logs.clear()
            self._release()

    def _new_directory_id(self) -> Uuid:
        return Uuid(self._new_uuid().bytes)

    def _release(self) -> None:
        self._background.close(wait=False)
        for log_dir in self.dirs:
            log_dir.release()
        self.dirs.clear()

    def _is_vital(self, path: str) -> bool:
        return path in map(os.path.abspath, self.config.vital_dirs)

    def _open_all(self, config_for: Callable[[str], LogConfig]) -> None:
        opening = LogLoader(self._disk, self._files, self._clock, config_for, self._is_vital)
        with self._make_threads(self.config.recovery_threads_per_dir * len(self.dirs), "klamm-recovery") as pool:
            for loaded in opening.open_all(self.dirs, pool):
                if loaded.is_future:
                    self.futures.adopt(loaded.log)
                else:
                    self._register_loaded(loaded.log)
        self._background.remove(opening.leftovers, 0)
        epochs = opening.broker_epochs
        # One unclean log dir makes the whole stop unclean: the controller must treat the broker's replicas as suspect.
        if len(epochs) == len(self.dirs) and all(epoch is not None for epoch in epochs):
            self.previous_broker_epoch = min(epoch for epoch in epochs if epoch is not None)

    def _register_loaded(self, log: Log) -> None:
        other = self._logs.get(log.topic_partition)
        if other is not None:
            raise ConfigError(f"{log.name} is in two data folders, {other.path} and {log.path}; move one of them away")
        self._register(log)

    def _register(self, log: Log) -> None:
        log.listener = self._listener
        self._logs[log.topic_partition] = log

    # --- logs --------------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition, None when this broker has none."""
        return self._logs.get(TopicPartition(topic, partition))

    def logs(self) -> list[Log]:
        """Return all logs."""
        return list(self._logs.values())

    def log_dir_of(self, log: Log | LogState) -> LogDir:
        """Return the log dir that holds a log."""
        parent = os.path.dirname(log.path)
        return next(log_dir for log_dir in self.dirs if log_dir.path == parent)

    def create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *, directory_id: bytes | None = None
    ) -> Log:
        """Return the log of a partition, created if need be: in the given directory, or the one with the fewest logs.

        INCONSISTENT_TOPIC_ID when a log of that name belongs to another topic id.
        """
        key = TopicPartition(topic, partition)
        log = self._logs.get(key)
        if log is None:
            log_dir = self._preferred_dir(key) or self._choose_dir(directory_id)
            path = os.path.join(log_dir.path, str(key))
            self._drop_stale_checkpoints(log_dir, key)
            now_ms = self._clock.now_ms()
            try:
                try:
                    log = create_log(path, key, config, disk=self._disk, files=self._files, now_ms=now_ms)
                # A folder that an earlier creation left behind when it failed half way.
                except FileExistsError:
                    log = open_log(path, key, config, disk=self._disk, files=self._files, now_ms=now_ms, clean=True)
            except OSError as error:
                raise StorageFailure(f"cannot create {path}: {error}") from error
            self._register(log)
        elif log.config != config:
            log.config = config
        if topic_id != ZERO_UUID:
            log.set_topic_id(topic_id)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Delete a log: unregistered and renamed at once, removed from the disk after file.delete.delay.ms."""
        log = self._logs.get(TopicPartition(topic, partition))
        if log is not None:
            target = self._unregister(log, "delete")
            self._background.remove([target], self._clock.monotonic_ms() + log.config.file_delete_delay_ms)

    def set_aside(self, log: Log) -> None:
        """Take a stray log out of service and rename its folder, for an operator to inspect; nothing is deleted."""
        if self.futures.get(log.topic_partition) is log:
            self.futures.release(log)
            self._retire_folder(log, "stray")
        else:
            self._unregister(log, "stray")

    def _unregister(self, log: Log, state: str) -> str:
        # Unregistered before the rename: when that fails, the log is out of service all the same.
        del self._logs[log.topic_partition]
        self.cleaner.release(log)
        return self._retire_folder(log, state)

    def _retire_folder(self, log: Log, state: str) -> str:
        log.retire()
        log_dir = self.log_dir_of(log)
        # A folder name has at most 255 characters; the topic's name is cut, the suffix is what a start looks at.
        suffix = f"-{log.partition}.{self._new_uuid().hex}-{state}"
        target = os.path.join(log_dir.path, log.topic[: 255 - len(suffix)] + suffix)
        try:
            self._disk.rename(log.path, target)
            self._disk.sync_dir(log_dir.path)
        except OSError as error:
            raise StorageFailure(f"cannot rename {log.path}: {error}") from error
        log.relocate(target)
        return target

    def _drop_stale_checkpoints(self, log_dir: LogDir, partition: TopicPartition) -> None:
        """Write the checkpoints of a log dir without the entries of an earlier log that had the same name."""
        if log_dir.has_checkpoint_of(partition):
            self.checkpoint_writer(log_dir)()
            log_dir.cleaner_checkpoint(self._logs_in(log_dir))()

    def _logs_in(self, log_dir: LogDir) -> list[Log]:
        """Return the logs of a log dir, future ones too."""
        everything = (*self._logs.values(), *self.futures)
        if len(self.dirs) == 1:
            return list(everything)
        return [log for log in everything if os.path.dirname(log.path) == log_dir.path]

    # --- from one log dir to another ---------------------------------------------------------------------------------

    def log_dir_at(self, path: str) -> LogDir:
        """Return the log dir with a path; LOG_DIR_NOT_FOUND when there is none, StorageFailure when it failed."""
        for log_dir in self.dirs:
            if log_dir.path == path:
                if log_dir.failure is not None:
                    raise StorageFailure(f"Log directory {path} is offline")
                return log_dir
        raise KlammError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")

    def prefer(self, topic: str, partition: int, path: str) -> None:
        """Set the log dir of a partition that is not here yet."""
        # A client may name any partition here, also ones that will never exist.
        if len(self._preferred) < _PREFERRED_MAX:
            self._preferred[TopicPartition(topic, partition)] = path

    def _preferred_dir(self, partition: TopicPartition) -> LogDir | None:
        path = self._preferred.pop(partition, None)
        return next((log_dir for log_dir in self.dirs if log_dir.path == path and log_dir.failure is None), None)

    def create_future(self, log: Log, log_dir: LogDir, start_offset: int) -> Log:
        """Create a copy of a log in another log dir; the log is not compacted until the copy has replaced it."""
        self._drop_stale_checkpoints(log_dir, log.topic_partition)
        future = self.futures.create(log, log_dir, start_offset, self._clock.now_ms())
        self.cleaner.pause(log)
        return future

    def drop_future(self, future: Log) -> None:
        """Cancel a move: the copy is removed at once."""
        self.futures.release(future)
        log = self._logs.get(future.topic_partition)
        if log is not None and self.futures.get(future.topic_partition) is None:
            self.cleaner.resume(log)
        if self.log_dir_of(future).failure is None:
            self._background.remove([self._retire_folder(future, "delete")], 0)

    def take_over(self, future: Log) -> None:
        """Replace a log by its complete and durable copy; the log itself may be gone already."""
        log = self._logs.get(future.topic_partition)
        if log is not None:
            target = self._unregister(log, "delete")
            self._background.remove([target], self._clock.monotonic_ms() + log.config.file_delete_delay_ms)
        self.futures.take_over(future, log, self.log_dir_of(future))
        self._register(future)
        if log is not None:
            future.state.cleaned_offset = log.cleaned_offset
        writers = [d.cleaner_checkpoint(self._logs_in(d)) for d in self.dirs if d.failure is None]
        self._background.run(writers)
        self.checkpoint(wait=False)

    def strays(self, known: Mapping[TopicPartition, bytes]) -> list[Log]:
        """Return logs whose partitions the metadata does not have, or has under another topic id.

        An id that differs in a few bits only is damaged, not another: it is overwritten.
        """
        for log in (*self._logs.values(), *self.futures):
            right = known.get(log.topic_partition, ZERO_UUID)
            if log.topic_id not in (right, ZERO_UUID) and _bits_apart(log.topic_id, right) <= _BITS_DAMAGED_MAX:
                logger.warning("damaged topic id overwritten", partition=log.name, path=log.path)
                log.overwrite_topic_id(right)
        return [
            log
            for log in (*self._logs.values(), *self.futures)
            if log.topic_partition not in known or log.topic_id not in (known[log.topic_partition], ZERO_UUID)
        ]

    def describe_dirs(self) -> list[LogDirFacts]:
        """Return path and free space of every log dir."""
        return [log_dir.facts() for log_dir in self.dirs]

    def _choose_dir(self, directory_id: bytes | None) -> LogDir:
        if directory_id is not None:
            for log_dir in self.dirs:
                if self.directory_ids.get(log_dir.path) == directory_id:
                    if log_dir.failure is not None:
                        raise StorageFailure(f"log directory {log_dir.path} failed: {log_dir.failure}")
                    return log_dir
            # Ids below 100 are reserved by Kafka (UNASSIGNED, LOST, MIGRATING). Any other belongs to a log dir that was
            # replaced, or to one that could not be read: then the log may be there, and must not be created again.
            if int.from_bytes(directory_id, "big") >= 100 and any(other.failure is not None for other in self.dirs):
                raise StorageFailure("the partition may be in a log directory that is offline")
        if len(self.dirs) == 1:
            return self.dirs[0]
        metadata_only = set(map(os.path.abspath, self.config.metadata_only_dirs))
        usable = {d.path: d for d in self.dirs if d.failure is None and d.path not in metadata_only}
        if not usable:
            raise StorageFailure("no log directory is online for a new partition")
        counts = dict.fromkeys((log_dir.path for log_dir in self.dirs), 0)
        for log in self._logs.values():
            counts[os.path.dirname(log.path)] += 1
        return usable[min(usable, key=counts.__getitem__)]

    # --- periodic work -----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int | None = None) -> None:
        """Do the periodic work that is due. `now_ms` is monotonic."""
        self.housekeeping.tick(self._clock.monotonic_ms() if now_ms is None else now_ms)

    @property
    def behind(self) -> bool:
        """Whether a tick has left work for the next one, which should come soon."""
        return self.housekeeping.behind

    def checkpoint(self, *, wait: bool = True) -> None:
        """Write recovery points, log starts and high watermarks of every log dir; without `wait`, in a thread."""
        writers = [self.checkpoint_writer(log_dir) for log_dir in self.dirs if log_dir.failure is None]
        self._background.write_checkpoints(writers, wait=wait)

    def checkpoint_writer(self, log_dir: LogDir) -> Callable[[], None]:
        """Return what writes the offset checkpoints of a log dir, as of now; it may run in a thread."""
        return log_dir.checkpoint(self._logs_in(log_dir), self._original_of)

    def _original_of(self, log: Log) -> Log:
        """Return the log of which a future log is the copy, or the log itself."""
        return self._logs.get(log.topic_partition, log)

    def _on_roll(self, state: LogState, _segment: LogSegment) -> None:
        """Sync a closed segment in a thread; after that no restart checks anything before the new one."""
        log = self._logs.get(state.topic_partition)
        if log is not None and log.state is state:
            self._background.sync(log, log.segments.active.base_offset)

    def _discard(self, log: Log, renamed: list[str]) -> None:
        """Remove files that were renamed to `.deleted`, after file.delete.delay.ms."""
        self._background.remove(renamed, self._clock.monotonic_ms() + log.config.file_delete_delay_ms)

    def _cleaner_checkpoint(self, log: Log) -> Callable[[], None]:
        log_dir = self.log_dir_of(log)
        return log_dir.cleaner_checkpoint(self._logs_in(log_dir))

    def _recovery_point_writer(self, log: Log) -> Callable[[], None] | None:
        """Return what writes the recovery point of a log; None while its closed segments are not durable yet."""
        if log.recovery_point < log.segments.active.base_offset:
            self._background.sync(log, log.segments.active.base_offset)
            return None
        return self.checkpoint_writer(self.log_dir_of(log))

    # --- events of logs ----------------------------------------------------------------------------------------------

    def _before_truncate(self, state: LogState) -> None:
        log = self._logs.get(state.topic_partition)
        if log is not None and log.state is state:
            self.cleaner.release(log)

    def _on_truncate(self, state: LogState) -> None:
        """Write the recovery point: the one on disk is beyond the new end, where no restart would check new bytes."""
        if not state.retired:
            self.checkpoint()

    def _on_failure(self, state: LogState, failure: StorageFailure) -> None:
        """Take the log directory of a failed log offline, with all logs in it."""
        logger.error("log failed", partition=state.name, reason=failure.message)
        if not self.dirs:
            return  # closed meanwhile: a sync that was under way has failed, and nothing depends on it any more
        log_dir = self.log_dir_of(state)
        if log_dir.failure is not None:
            return
        # Set before anything is called: a failure that follows from this one must not come here again.
        log_dir.failure = str(failure)
        if self._is_vital(log_dir.path) or all(other.failure is not None for other in self.dirs):
            if self.on_failure is not None:
                self.on_failure(state, failure)
            return
        lost = [other for other in self._logs.values() if os.path.dirname(other.path) == log_dir.path]
        logger.error("log directory failed", folder=log_dir.path, partitions=len(lost), reason=failure.message)
        for other in lost:
            other.take_offline(str(failure))
        if self.on_dir_offline is not None:
            self.on_dir_offline(log_dir)

    def fail_dir(self, log_dir: LogDir, failure: StorageFailure) -> None:
        """Take a log dir offline because a write to a future log in it failed."""
        log = next((candidate for candidate in self._logs_in(log_dir)), None)
        if log is not None:
            self._on_failure(log.state, failure)

    def offline_directory_ids(self) -> list[Uuid]:
        """Return the ids of failed log dirs, for the controller; one that could not be read has no known id."""
        return [
            self.directory_ids[log_dir.path]
            for log_dir in self.dirs
            if log_dir.failure is not None and log_dir.path in self.directory_ids
        ]

    def online_directory_ids(self, paths: Iterable[str]) -> list[Uuid]:
        """Return the ids of those of these log dirs that are online."""
        online = {log_dir.path for log_dir in self.dirs if log_dir.failure is None}
        return [self.directory_ids[path] for path in map(os.path.abspath, paths) if path in online]


def _default_config(_topic: str) -> LogConfig:
    return LogConfig()


def _bits_apart(left: bytes, right: bytes) -> int:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).bit_count()
