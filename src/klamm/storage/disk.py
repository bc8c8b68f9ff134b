"""File access of storage: the calls of the operating system in one class, and file descriptors that close themselves.

Every call that touches the disk goes through a `Disk`, so that a test can let one fail and a simulation can replace
them all.
"""

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from klamm.model.errors import StorageFailure

SYNCS_KEPT = 4096
"""Times of syncs that are kept for the metrics of a node, which reads them every second."""


class Disk:
    """The real disk. Methods are the `os` calls of the same name; they raise OSError."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pwritev = staticmethod(os.pwritev)
    pwrite = staticmethod(os.pwrite)
    pread = staticmethod(os.pread)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(os.fdatasync)
    fstat = staticmethod(os.fstat)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    listdir = staticmethod(os.listdir)
    makedirs = staticmethod(os.makedirs)
    posix_fallocate = staticmethod(os.posix_fallocate)
    statvfs = staticmethod(os.statvfs)
    utime = staticmethod(os.utime)
    isdir = staticmethod(os.path.isdir)
    exists = staticmethod(os.path.exists)
    getsize = staticmethod(os.path.getsize)

    sync_seconds: deque[float] = deque(maxlen=0)  # noqa: RUF012 - keeps nothing; for disks without `__init__`
    """The times of syncs that were not read yet; threads add to it, which is safe for a deque."""

    def __init__(self) -> None:
        self.sync_seconds = deque(maxlen=SYNCS_KEPT)

    def lock(self, fd: int) -> None:
        """Hold a file for this process alone; OSError when another does."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Kafka's JVM takes a POSIX record lock; hold one too, so that neither starts on the other's folder.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def map(self, fd: int) -> mmap.mmap | bytes:
        """A file that is not empty, mapped for reading."""
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def rmtree(self, path: str) -> None:
        """Remove a folder with all that is in it, as far as that is possible."""
        shutil.rmtree(path, ignore_errors=True)

    def read_file(self, path: str) -> bytes:
        """Return the content of a small file."""
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = self.fstat(fd).st_size
            parts = []
            position = 0
            while position < size:
                part = self.pread(fd, size - position, position)
                if not part:
                    break
                parts.append(part)
                position += len(part)
            return b"".join(parts)
        finally:
            self.close(fd)

    def write_file(self, path: str, data: bytes | bytearray | memoryview, *, sync: bool = False) -> None:
        """Replace a file's content in place."""
        # For files that recovery can rebuild: a crash in between leaves a torn one. `replace_file` is for the others.
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(self, fd, data, 0)
            if sync:
                self.fsync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a file atomically: a later read returns the old content or the new, never a mixture."""
        # The same directory, because a rename across file systems is not atomic; a start removes leftovers.
        temporary = path + ".tmp"
        self.write_file(temporary, data, sync=sync)
        self.rename(temporary, path)
        # The rename is in the directory: without this a power loss may bring the old file back.
        if sync:
            self.sync_dir(os.path.dirname(path))

    def sync_file(self, path: str) -> None:
        """Make a file that was written earlier durable, if there is one."""
        try:
            fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def sync_file_system(self, path: str) -> bool:
        """Sync the file system of a folder; False where errors of that call cannot be relied on."""
        syncfs = _syncfs()
        if syncfs is None:
            return False
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # One call instead of an fsync per file, for a clean stop with very many logs.
        try:
            error = syncfs(fd)
        finally:
            self.close(fd)
        if error:
            raise OSError(error, os.strerror(error), path)
        return True

    def remove_if_exists(self, path: str) -> None:
        """Unlink a file that may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)


def _syncfs() -> Callable[[int], int] | None:
    """Return the system call, which returns an error number; None before Linux 5.8, where it hides failed writes."""
    system = os.uname()
    version = tuple(int(part) for part in re.findall(r"\d+", system.release)[:2])
    if system.sysname != "Linux" or version < (5, 8):
        return None
    import ctypes  # noqa: PLC0415 - a large stop needs it, nothing else

    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return None

    def syncfs(fd: int) -> int:
        return ctypes.get_errno() if call(fd) else 0

    return syncfs


def write_all(disk: Disk, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of `data` at `position`, however many calls it takes."""
    view = memoryview(data)
    # pwrite may write less than it is given, on a nearly full disk or after a signal.
    while view:
        written = disk.pwrite(fd, view, position)
        position += written
        view = view[written:]


class SegmentFile:
    """An open `.log` file; its descriptor is closed when the last reference to this object goes.

    Replies in flight hold a reference through their FileSlice, so a segment may be evicted, renamed or deleted while
    its bytes are still being sent.
    """

    __slots__ = ("_disk", "fd", "path")

    def __init__(self, disk: Disk, path: str, *, writable: bool = False, create: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.fd = -1
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self.fd = disk.open(path, flags, 0o644)
        except OSError as error:
            raise StorageFailure(f"cannot open {path}: {error}") from error

    def fileno(self) -> int:
        """The descriptor, for os.sendfile and friends."""
        return self.fd

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes at `position`; StorageFailure when the disk refuses."""
        try:
            return self._disk.pread(self.fd, length, position)
        except OSError as error:
            raise StorageFailure(f"cannot read {self.path} at {position}: {error}") from error

    def __del__(self) -> None:
        if self.fd >= 0:
            self._disk.close(self.fd)
            self.fd = -1


class FileSlice(NamedTuple):
    """The region of a file that answers a read: whole batches of one segment.

    `next_offset` is an upper bound (exclusive) of the offsets inside, good for looking up aborted transactions.
    """

    file: SegmentFile
    position: int
    length: int
    next_offset: int

    def read(self) -> bytes:
        """Return the bytes themselves, for callers that do not use sendfile."""
        parts = []
        position, left = self.position, self.length
        while left:
            part = self.file.pread(left, position)
            if not part:
                raise StorageFailure(f"{self.file.path} ends at {position}, {left} bytes too early")
            parts.append(part)
            position += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class OpenFiles:
    """The few closed segments whose files and indexes are kept open; least recently used goes first.

    Dropping an entry only drops a reference: the object closes itself when the last user drops its own.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()  # recovery and flush open segments in threads

    def get(self, key: Hashable, opener: Callable[[], Any]) -> Any:
        """Return the open object under `key`, opened now when it is not cached."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry
        # Opened outside of the lock: it may block on the disk. Two threads may open the same file; one copy is dropped.
        entry = opener()
        with self._lock:
            self._entries[key] = entry
            if len(self._entries) > self._capacity:
                # Only a reference is dropped: a reply in flight keeps its file open.
                self._entries.popitem(last=False)
        return entry

    def forget(self, key: Hashable) -> None:
        """Drop an entry, if it is there."""
        with self._lock:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)
