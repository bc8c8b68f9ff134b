"""Clean shutdown of many logs: everything the next start trusts is made durable, with as few syncs as possible."""

import os
from collections.abc import Iterable
from concurrent.futures import Executor

from klamm.model.errors import KlammError
from klamm.storage.disk import Disk
from klamm.storage.log import Log
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

SYNCFS_LOGS_MIN = 64
"""From this number of logs on, one sync of the file system costs less than several per log."""


def close_logs(disk: Disk, logs: Iterable[Log], threads: Executor, *, clean: bool) -> set[str]:
    """Close logs; return the log dirs in which one could not be closed cleanly."""
    failed_dirs: set[str] = set()
    unsynced: dict[str, list[Log]] = {}
    for log in logs:
        folder = os.path.dirname(log.path)
        try:
            # All files are written first and synced afterwards, so that the device can order the writes.
            if clean and not log.failed and folder not in failed_dirs and log.prepare_clean_close():
                unsynced.setdefault(folder, []).append(log)
            else:
                log.close_files()
        except (OSError, KlammError) as error:
            _log_close_failure(log, error)
            failed_dirs.add(folder)
        if log.failed:
            failed_dirs.add(folder)
    for folder, waiting in unsynced.items():
        try:
            together = folder not in failed_dirs and len(waiting) >= SYNCFS_LOGS_MIN and disk.sync_file_system(folder)
        except OSError as error:
            # Never retried file by file: after a failed sync the kernel may drop the dirty pages and report success.
            logger.failure("log directory could not be synced", error, folder=folder)
            failed_dirs.add(folder)
            together = False
        if together:
            for log in waiting:
                log.flusher.mark_all_durable()
        elif folder not in failed_dirs:
            for log, failure in zip(waiting, threads.map(_sync, waiting), strict=True):
                if failure is not None:
                    _log_close_failure(log, failure)
                    failed_dirs.add(folder)
        for log in waiting:
            log.close_files()
    return failed_dirs


def _sync(log: Log) -> BaseException | None:
    try:
        log.flusher.sync_all()
    except (OSError, KlammError) as error:
        return error
    return None


def _log_close_failure(log: Log, error: BaseException) -> None:
    logger.failure("log could not be closed cleanly", error, partition=log.name)
