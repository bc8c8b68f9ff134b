"""File descriptors: partitions must leave some to connections.

Every partition keeps files open, every connection a socket, and the process may have only so many of both. A node that
runs out accepts no connection any more, not even that of an operator who comes to delete topics.
"""

import os
import resource

from klamm.telemetry.log import get_logger

log = get_logger("server")

RESERVE_MIN = 100
"""Descriptors that partitions may not take: connections, housekeeping, segments that roll."""
RESERVE_SHARE = 10
"""The reserve is at least this part of the limit: a tenth."""
PER_PARTITION = 2
"""What one partition is reckoned with: its active segment, and one more that is read or cleaned."""


def raise_limit() -> None:
    """Have as many descriptors as the system allows this process; the soft limit is often a relic of 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("file descriptor limit not raised", soft=soft, hard=hard, reason=error)
        return
    log.info("file descriptor limit raised", soft=soft, hard=hard)


def check_room(partitions: int) -> str:
    """Why so many more partitions cannot be had; empty when they can."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    used = _count_open()
    reserve = max(RESERVE_MIN, limit // RESERVE_SHARE)
    needed = partitions * PER_PARTITION
    if used + needed + reserve <= limit:
        return ""
    return (
        f"{partitions} more partition(s) need about {needed} file descriptors; {used} of {limit} are open on this"
        f" broker, and {reserve} are kept for connections. Raise the limit (ulimit -n), delete topics, or add brokers."
    )


def _count_open() -> int:
    """How many descriptors are open. Linux counts them for a stat of the folder since 6.2; before, they are listed."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:  # no such folder on other systems: the limit is not watched there
        return 0
