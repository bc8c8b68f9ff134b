"""The start of a broker's storage: lock the log dirs, read their identity, open every log in them.

One of several log dirs that cannot be used is offline, as it would be later on, and the others are served. A vital log
dir, the last one, or a configuration error (another cluster's folder, a partition in two log dirs) stops the start.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from klamm.model.clock import Clock
from klamm.model.errors import ConfigError, StorageFailure
from klamm.model.ids import TopicPartition, Uuid
from klamm.storage.config import LogConfig
from klamm.storage.disk import Disk, OpenFiles
from klamm.storage.log import Log
from klamm.storage.log_dir import LogDir, LogDirUnusable
from klamm.storage.log_recovery import open_log, suspect_bytes
from klamm.storage.meta_properties import MetaProperties
from klamm.storage.recovery_progress import RecoveryProgress
from klamm.telemetry.log import get_logger

logger = get_logger("storage")


def lock_dirs(disk: Disk, paths: tuple[str, ...], is_vital: Callable[[str], bool], dirs: list[LogDir]) -> None:
    """Lock log dirs and add them to `dirs`; one that cannot be used is added as failed, if others are left."""
    for path in paths:
        try:
            dirs.append(LogDir(disk, path))
        except LogDirUnusable as error:
            offline = LogDir(disk, path, failure=str(error))
            dirs.append(offline)
            # Nothing is served yet, so a fatal error can still be reported to the operator directly.
            if is_vital(offline.path) or len(paths) == 1:
                raise
            logger.error("log directory failed", folder=offline.path, reason=str(error))  # noqa: TRY400
    if all(log_dir.failure is not None for log_dir in dirs):
        raise ConfigError(f"none of the data folders can be used: {dirs[0].failure}")


@dataclass(slots=True)
class NodeIdentity:
    """The cluster of this node and the meta.properties of its log dirs, as read at start."""

    cluster_id: str | None
    properties: dict[str, MetaProperties | None]
    """By path, of the log dirs that are online; None where a folder is not formatted."""


def read_identity(
    dirs: list[LogDir], cluster_id: str | None, node_id: int, is_vital: Callable[[str], bool]
) -> NodeIdentity:
    """Read the identity of every log dir; ConfigError when they do not belong together or to this node."""
    properties: dict[str, MetaProperties | None] = {}
    for log_dir in dirs:
        if log_dir.failure is None:
            try:
                properties[log_dir.path] = log_dir.identify(cluster_id, node_id)
            except OSError as error:
                fail_at_start(dirs, log_dir, error, is_vital)
    # A disk of another node, or mounted in the wrong place, is refused before anything in it is opened.
    known = {meta.cluster_id for meta in properties.values() if meta is not None}
    if len(known) > 1:
        raise ConfigError(f"the data folders belong to different clusters: {', '.join(sorted(known))}")
    return NodeIdentity(cluster_id or next(iter(known), None), properties)


def complete_identity(log_dir: LogDir, identity: NodeIdentity, node_id: int, new_id: Callable[[], Uuid] | None) -> Uuid:
    """Return the directory id of a log dir; an unformatted one is formatted when `new_id` is given."""
    meta = identity.properties[log_dir.path]
    if meta is None:
        if new_id is None or identity.cluster_id is None:
            raise ConfigError(
                f"the data folder {log_dir.path} is not formatted; "
                "run `klamm storage format -t CLUSTER_ID -c FILE` first"
            )
        meta = log_dir.format(identity.cluster_id, node_id, new_id())
    return meta.directory_id


@dataclass(slots=True)
class LoadedLog:
    """A log that was opened: the one of its partition, or a future log."""

    log: Log
    log_dir: LogDir
    is_future: bool


class LogLoader:
    """Opens every log of every log dir, many at a time."""

    def __init__(
        self,
        disk: Disk,
        files: OpenFiles,
        clock: Clock,
        config_for: Callable[[str], LogConfig],
        is_vital: Callable[[str], bool],
    ) -> None:
        self._disk = disk
        self._files = files
        self._clock = clock
        self._config_for = config_for
        self._is_vital = is_vital
        self.broker_epochs: list[int | None] = []
        """The broker epoch in the clean-shutdown marker of every log dir; None where there is none."""
        self.leftovers: list[str] = []
        """Folders of deleted partitions that a crash has left."""

    def open_all(self, dirs: list[LogDir], pool: Executor) -> Iterator[LoadedLog]:
        """Open all logs and yield them; a log dir that fails meanwhile is left out with all its logs."""
        jobs: list[tuple[Future[Log], LogDir, bool]] = []
        for log_dir in dirs:
            if log_dir.failure is None:
                try:
                    jobs += self._begin(log_dir, pool)
                except (OSError, StorageFailure) as error:
                    fail_at_start(dirs, log_dir, error, self._is_vital)
        loaded_logs: list[LoadedLog] = []
        for done, (job, log_dir, is_future) in enumerate(jobs, 1):
            try:
                loaded_logs.append(LoadedLog(job.result(), log_dir, is_future))
            # The first failure takes the log dir offline; those of its other logs add nothing.
            except (OSError, StorageFailure) as error:
                if log_dir.failure is None:
                    fail_at_start(dirs, log_dir, error, self._is_vital)
            if done % 100 == 0 or done == len(jobs):
                logger.info("logs opened", done=done, total=len(jobs))
        for loaded in loaded_logs:
            if loaded.log_dir.failure is not None:
                loaded.log.close(clean=False)
                continue
            # Only now: no thread works on the log any more, and the loop owns it from here.
            loaded.log.advance_high_watermark(loaded.log_dir.saved.marks.get(loaded.log.topic_partition, 0))
            loaded.log.state.cleaned_offset = loaded.log_dir.saved.cleaned.get(loaded.log.topic_partition)
            yield loaded

    def _begin(self, log_dir: LogDir, pool: Executor) -> list[tuple[Future[Log], LogDir, bool]]:
        log_dir.load()
        # Removed with this call: a crash during the start must not look like a clean stop to the next one.
        epoch = log_dir.take_clean_shutdown()
        self.broker_epochs.append(epoch)
        self.leftovers += log_dir.deleted_folders()
        points, starts = log_dir.saved.points, log_dir.saved.starts
        partitions, futures = log_dir.partition_folders(), log_dir.future_folders()
        progress = None
        # Only an unclean start reads the logs, so only then is there progress to report.
        if epoch is None and partitions:
            total = sum(
                suspect_bytes(self._disk, path, points.get(partition, 0))
                for partition, path in (*partitions.items(), *futures.items())
            )
            progress = RecoveryProgress(self._clock, total).advance
            logger.info(
                "unclean shutdown, recovering logs",
                folder=log_dir.path,
                logs=len(partitions),
                mb=total // 1_000_000,
            )

        def begin(partition: TopicPartition, path: str) -> Future[Log]:
            return pool.submit(
                open_log,
                path,
                partition,
                self._config_for(partition.topic),
                disk=self._disk,
                files=self._files,
                now_ms=self._clock.now_ms(),
                clean=epoch is not None,
                recovery_point=points.get(partition, 0),
                log_start_offset=starts.get(partition, 0),
                progress=progress,
            )

        return [
            *((begin(*partition_path), log_dir, False) for partition_path in partitions.items()),
            *(
                (begin(*partition_path), log_dir, True)
                for partition_path in futures.items()
                if partition_path[0] not in partitions
            ),
        ]


def fail_at_start(dirs: list[LogDir], log_dir: LogDir, error: Exception, is_vital: Callable[[str], bool]) -> None:
    """Take a log dir offline before anything is served; raises ConfigError when the node needs it."""
    log_dir.failure = str(error)
    logger.error("log directory failed", folder=log_dir.path, reason=error)
    if is_vital(log_dir.path) or all(other.failure is not None for other in dirs):
        raise ConfigError(f"the data folder {log_dir.path} cannot be used: {error}") from error
