"""Replacing segments by cleaned ones so that a crash loses neither.

    <base>.log.cleaned     being written; a restart removes it
    <base>.log.swap        complete and durable: a restart completes the swap
    <base>.log.deleted     an old file, out of the log

A segment's `.log` is the last of its files to get the ending `.swap` and the last to lose it: while it has it, the swap
is decided. Only then are the old files removed.
"""

import os
from collections.abc import Iterable

from klamm.records.batch import HEADER_SIZE, LOG_OVERHEAD
from klamm.storage.disk import Disk
from klamm.storage.log_segment import LOG_SUFFIX, SUFFIXES, offset_name
from klamm.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from klamm.telemetry.log import get_logger

logger = get_logger("storage")

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_LOG_LAST = (*(suffix for suffix in SUFFIXES if suffix != LOG_SUFFIX), LOG_SUFFIX)


def rename_files(disk: Disk, folder: str, base_offset: int, before: str, after: str) -> None:
    """Give all files of a segment another ending, the `.log` last."""
    for suffix in _LOG_LAST:
        path = os.path.join(folder, offset_name(base_offset) + suffix)
        try:
            disk.rename(path + before, path + after)
        # Indexes may be missing, or have been renamed before a crash; without the `.log` there is nothing to swap.
        except FileNotFoundError:
            if suffix == LOG_SUFFIX:
                raise


def remove_files(disk: Disk, folder: str, base_offset: int, ending: str) -> None:
    """Remove all files of a segment with an ending, the `.log` first: without it the rest means nothing."""
    for suffix in reversed(_LOG_LAST):
        disk.remove_if_exists(os.path.join(folder, offset_name(base_offset) + suffix + ending))


def complete_swaps(disk: Disk, folder: str) -> None:
    """Complete the swaps that a crash interrupted; undo those whose `.log` was not renamed yet."""
    names = set(disk.listdir(folder))
    complete = _bases(names, LOG_SUFFIX + SWAP_SUFFIX)
    for base in complete:
        logger.info("interrupted swap completed", path=os.path.join(folder, offset_name(base) + LOG_SUFFIX))
        # All segments that begin inside the cleaned one were merged into it; an empty one replaces at least its own.
        end = max(_end_offset(disk, folder, base), base + 1)
        for other in _bases(names, LOG_SUFFIX):
            if base <= other < end:
                remove_files(disk, folder, other, "")
                # The snapshot at the base stays: the cleaned segment begins with the same producers.
                if other != base:
                    disk.remove_if_exists(os.path.join(folder, offset_name(other) + SNAPSHOT_SUFFIX))
        rename_files(disk, folder, base, SWAP_SUFFIX, "")
    for name in sorted(disk.listdir(folder)):
        if name.endswith(SWAP_SUFFIX) and name[:20].isdigit():
            logger.info("interrupted swap undone", path=os.path.join(folder, name))
            disk.unlink(os.path.join(folder, name))
    if complete:
        disk.sync_dir(folder)


def _bases(names: Iterable[str], suffix: str) -> list[int]:
    return sorted(int(name[: -len(suffix)]) for name in names if name.endswith(suffix) and name[:20].isdigit())


def _end_offset(disk: Disk, folder: str, base: int) -> int:
    """Return the offset after the last batch of a `.log.swap`, which was synced before it was renamed."""
    path = os.path.join(folder, offset_name(base) + LOG_SUFFIX + SWAP_SUFFIX)
    fd = disk.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, position, end = disk.fstat(fd).st_size, 0, base
        while position + HEADER_SIZE <= size:
            header = disk.pread(fd, HEADER_SIZE, position)
            end = int.from_bytes(header[:8], "big") + int.from_bytes(header[23:27], "big") + 1
            position += max(int.from_bytes(header[8:12], "big"), HEADER_SIZE - LOG_OVERHEAD) + LOG_OVERHEAD
    finally:
        disk.close(fd)
    return end
