"""Limits how many file descriptors partitions may use, so that connections get some.

Every partition keeps files open and every connection a socket, and the process has one limit for both. A node that
runs out of descriptors accepts no connections, not even that of an operator who deletes topics.
"""

import os
import resource

from klamm.telemetry.log import get_logger

log = get_logger("server")

RESERVE_MIN = 100
"""Descriptors reserved for connections, housekeeping and segments that roll."""
RESERVE_SHARE = 10
"""The reserve is at least the limit divided by this."""
PER_PARTITION = 2
"""The estimate for one partition: its active segment, and one more that is read or cleaned."""


def raise_limit() -> None:
    """Raise the soft limit, which is often still 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("file descriptor limit not raised", soft=soft, hard=hard, reason=error)
        return
    log.info("file descriptor limit raised", soft=soft, hard=hard)


def check_capacity(partitions: int) -> str:
    """Return why so many more partitions cannot be created; empty when they can."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    # Counted, not summed up from partitions: segments, indexes and sockets vary.
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
    """Return the number of open descriptors; 0 on systems without /proc, where the limit is not watched."""
    try:
        # Since 6.2 Linux reports their number as the size of the folder; before, it is 0 and they have to be listed.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
