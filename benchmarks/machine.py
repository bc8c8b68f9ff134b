"""What the machine is, what a process costs on it, and how to make its memory behave."""

import os
import platform
import resource
import time
from pathlib import Path

FREE_BYTES_MAX = 300 << 20
CHUNK_BYTES = 64 << 10
STEP_BYTES = 32 << 20
FILL_TIMEOUT_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


def facts() -> dict[str, object]:
    """What a reader needs to interpret the numbers; nothing that names the machine or its folders."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(_meminfo("MemTotal") / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


class PageCache:
    """Leaves no free memory: fills it with clean page cache, by reading on through one sparse file.

    A virtual machine that returns free memory to its host pays to get it back, in system time of the process that
    writes next. Clean cache pages are dropped for new ones without asking the host. See README.md.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "page-cache"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, 1 << 42)
        # Without read-ahead: its large folios make the kernel reclaim for their sake, and memory never fills.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._position = 0
        self._chunk = bytearray(CHUNK_BYTES)
        self._fills = True

    def fill(self) -> None:
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while self._fills and _meminfo("MemFree") > FREE_BYTES_MAX:
            if time.monotonic() > deadline:
                self._fills = False  # other programs free memory faster than this takes it: do not wait again
                print(f"memory does not fill: {_meminfo('MemFree') >> 20} MB stay free; numbers will vary", flush=True)
                return
            for _ in range(STEP_BYTES // CHUNK_BYTES):
                os.preadv(self._fd, [self._chunk], self._position)
                self._position += CHUNK_BYTES

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
