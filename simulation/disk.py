"""The disk of a simulated machine: what is in the page cache, what is on the device, what a crash leaves of both.

A kill leaves the page cache. A power loss leaves what was synced and, of the rest, what chance decides: of a file the
writes up to some byte, of the names the changes up to some point, in order, as a journal keeps them. Any sync commits
the journal.
"""

import copy
import errno
import os
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from klamm.storage.disk import Disk

ROOT = "/"


class Stat(NamedTuple):
    """What `fstat` tells."""

    st_size: int
    st_mtime_ns: int


class DiskSpace(NamedTuple):
    """What `statvfs` tells."""

    f_blocks: int
    f_bavail: int
    f_frsize: int


class File:
    """A file's bytes as read now, and how to get back to what the device has."""

    __slots__ = ("data", "modified_ns", "undo")

    def __init__(self) -> None:
        self.data = bytearray()
        self.undo: list[tuple[int, bytes, int]] = []
        """Per change since the last sync: (position, bytes that were there, size of the file before)."""
        self.modified_ns = 0

    def put(self, position: int, data: bytes) -> None:
        """Write."""
        old = self.data
        size = len(old)
        if position > size:
            old += bytes(position - size)
        self.undo.append((position, bytes(old[position : position + len(data)]), size))
        old[position : position + len(data)] = data

    def cut(self, size: int) -> None:
        """Make it shorter, or longer with zeros."""
        old = self.data
        self.undo.append((min(size, len(old)), bytes(old[size:]), len(old)))
        if size < len(old):
            del old[size:]
        else:
            old += bytes(size - len(old))

    def revert(self, count: int) -> None:
        """Undo the last changes."""
        for position, old, size in reversed(self.undo[len(self.undo) - count :]):
            self.data[position : position + len(old)] = old
            if len(self.data) > size:
                del self.data[size:]
            else:
                self.data += bytes(size - len(self.data))
        del self.undo[len(self.undo) - count :]


class Folder:
    """A folder's place in the tree; its names are those of the paths below it."""

    __slots__ = ()


class Image:
    """What is on one machine's disk; outlives the processes that use it."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {ROOT: Folder()}
        self.journal: list[tuple[str, str, Any]] = []
        """Name changes since a folder was last synced: (kind, path, what is needed to undo it)."""

    def snapshot(self) -> "Image":
        """A copy as of now."""
        return copy.deepcopy(self)

    def lose_power(self, chance: Random) -> int:
        """Keep what was synced and some of the rest; returns how many changes were lost."""
        lost = 0
        if self.journal and chance.random() < 0.7:
            keep = chance.randint(0, len(self.journal))
            for kind, path, more in reversed(self.journal[keep:]):
                lost += 1
                self._undo(kind, path, more)
        self.journal.clear()
        for path in sorted(self.names):
            file = self.names[path]
            if not isinstance(file, File) or not file.undo:
                continue
            if chance.random() < 0.7:
                gone = chance.randint(0, len(file.undo))
                if gone:
                    lost += gone
                    before = bytes(file.data)
                    file.revert(gone)
                    if chance.random() < 0.5:
                        # The first write that was lost may have got through in part.
                        start = len(file.data)
                        file.data += before[start : start + chance.randint(0, max(len(before) - start, 0))]
            file.undo.clear()
        return lost

    def _undo(self, kind: str, path: str, more: Any) -> None:
        if kind == "create":
            for name in [n for n in self.names if n == path or n.startswith(path + "/")]:
                del self.names[name]
        elif kind == "unlink":
            self.names[path] = more
        else:
            target, replaced = more
            moved = {n: f for n, f in self.names.items() if n == target or n.startswith(target + "/")}
            for name in moved:
                del self.names[name]
            for name, file in moved.items():
                self.names[path + name[len(target) :]] = file
            if replaced is not None:
                self.names[target] = replaced

    def flip(self, chance: Random, accept: Callable[[str], bool]) -> str | None:
        """Turn one bit of one file over; returns which file, None when there is none.

        Of a batch, offset and leader epoch are left alone: its checksum does not cover them.
        """
        paths = [p for p, f in sorted(self.names.items()) if isinstance(f, File) and f.data and accept(p)]
        if not paths:
            return None
        path = chance.choice(paths)
        data = self.names[path].data  # type: ignore[union-attr]
        at = chance.randrange(len(data))
        if path.endswith(".log"):
            while not _is_covered(data, at):
                at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        return path


def _is_covered(data: bytearray, at: int) -> bool:
    """Whether a reader of batches would notice a change here."""
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if at < end:
            return 8 <= at - position < 12 or at - position >= 16
        position = end
    return True


class SimDisk(Disk):
    """The calls of one process on its machine's disk. After the process is dead they do nothing any more."""

    def __init__(self, image: Image, now_ns: Callable[[], int], add_to_digest: Callable[[bytes], None]) -> None:
        self.image = image
        self.dead = False
        self.full = False
        self.failing_syncs = False
        self.failing_writes = False
        self.locks: set[str] = set()
        self._now_ns = now_ns
        self._add_to_digest = add_to_digest
        self._open: dict[int, tuple[File | Folder, str]] = {}
        self._next_fd = 100_000

    # --- files -------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        self._alive()
        file = self.image.names.get(path)
        if file is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self._parent(path)
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            file = self.image.names[path] = File()
            file.modified_ns = self._now_ns()
            self.image.journal.append(("create", path, None))
        elif flags & os.O_TRUNC and isinstance(file, File):
            file.cut(0)
        self._next_fd += 1
        self._open[self._next_fd] = (file, path)
        return self._next_fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._alive()
        if self.full or self.failing_writes:
            raise OSError(errno.ENOSPC if self.full else errno.EIO, "No space left on device")
        file, _ = self._open[fd]
        assert isinstance(file, File)
        piece = bytes(data)
        file.put(position, piece)
        file.modified_ns = self._now_ns()
        self._add_to_digest(piece)
        return len(piece)

    def pwritev(self, fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        return self.pwrite(fd, b"".join(buffers), position)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        file, _ = self._open[fd]
        assert isinstance(file, File)
        return bytes(file.data[position : position + length])

    def ftruncate(self, fd: int, length: int) -> None:
        self._alive()
        file, _ = self._open[fd]
        assert isinstance(file, File)
        if len(file.data) != length:
            file.cut(length)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        file, _ = self._open[fd]
        assert isinstance(file, File)
        if len(file.data) < offset + length:
            file.cut(offset + length)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._alive()
        if self.failing_syncs:
            raise OSError(errno.EIO, "Input/output error")
        file, _ = self._open[fd]
        if isinstance(file, File):
            file.undo.clear()
        self.image.journal.clear()

    fdatasync = fsync  # type: ignore[assignment]

    def sync_file_system(self, path: str) -> bool:
        return False

    def fstat(self, fd: int) -> Any:
        file, _ = self._open[fd]
        return Stat(len(file.data), file.modified_ns) if isinstance(file, File) else Stat(0, 0)

    def map(self, fd: int) -> bytes:
        file, _ = self._open[fd]
        assert isinstance(file, File)
        return bytes(file.data)

    def utime(self, fd: Any, times: Any = None, *, ns: Any = None) -> None:  # type: ignore[override]
        file, _ = self._open[fd]
        if isinstance(file, File) and ns is not None:
            file.modified_ns = ns[1]

    def lock(self, fd: int) -> None:
        _, path = self._open[fd]
        if path in self.locks:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.locks.add(path)

    # --- names -------------------------------------------------------------------------------------------------------

    def rename(self, path: str, target: str) -> None:  # type: ignore[override]
        self._alive()
        names = self.image.names
        if path not in names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self._parent(target)
        replaced = names.get(target)
        if isinstance(names[path], Folder):
            prefix = path + "/"
            for name in [n for n in names if n.startswith(prefix)]:
                names[target + name[len(path) :]] = names.pop(name)
        names[target] = names.pop(path)
        self.image.journal.append(("rename", path, (target, replaced)))

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._alive()
        file = self.image.names.pop(path, None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.image.journal.append(("unlink", path, file))

    def listdir(self, path: str) -> list[str]:  # type: ignore[override]
        if not self.isdir(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        prefix = path.rstrip("/") + "/"
        cut = len(prefix)
        return [n[cut:] for n in self.image.names if n.startswith(prefix) and "/" not in n[cut:] and n != prefix]

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:  # type: ignore[override]
        self._alive()
        names = self.image.names
        if path in names:
            if not exist_ok or not isinstance(names[path], Folder):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            return
        parts = path.strip("/").split("/")
        at = ""
        for part in parts:
            at += "/" + part
            if at not in names:
                names[at] = Folder()
                self.image.journal.append(("create", at, None))

    def isdir(self, path: str) -> bool:  # type: ignore[override]
        return isinstance(self.image.names.get(path), Folder)

    def exists(self, path: str) -> bool:  # type: ignore[override]
        return path in self.image.names

    def getsize(self, path: str) -> int:  # type: ignore[override]
        file = self.image.names.get(path)
        if not isinstance(file, File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return len(file.data)

    def rmtree(self, path: str) -> None:
        self._alive()
        for name in [n for n in self.image.names if n == path or n.startswith(path + "/")]:
            self.image.journal.append(("unlink", name, self.image.names.pop(name)))

    def statvfs(self, path: str) -> Any:  # type: ignore[override]
        return DiskSpace(1 << 20, 0 if self.full else 1 << 19, 4096)

    def _parent(self, path: str) -> None:
        if not isinstance(self.image.names.get(os.path.dirname(path)), Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def _alive(self) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead")
