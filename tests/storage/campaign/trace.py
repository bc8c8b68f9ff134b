"""A disk that works and remembers: the trace of a workload, to be cut anywhere."""

import os
from typing import NamedTuple

from klamm.storage import Disk


class Op(NamedTuple):
    """One call. `handle` numbers an open file from its `open` on; `path` and `target` are names below the root."""

    kind: str
    handle: int = -1
    path: str = ""
    target: str = ""
    position: int = 0
    data: bytes = b""
    flags: int = 0


CHANGES = ("create", "write", "truncate", "fsync", "syncfs", "rename", "unlink", "mkdir", "rmdir")
"""What counts as a boundary; an `open` that changes nothing does not."""


class TracingDisk(Disk):
    """The real disk, and a list of what was done to it below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.ops: list[Op] = []
        self._handles: dict[int, int] = {}
        self._opened = 0

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def open(self, path, flags, mode=0o777):
        new = not os.path.exists(path)
        fd = os.open(path, flags, mode)
        self._opened += 1
        self._handles[fd] = self._opened
        self.ops.append(Op("create" if new else "open", self._opened, self._name(path)))
        if flags & os.O_TRUNC and not new:
            self.ops.append(Op("truncate", self._opened))
        return fd

    def close(self, fd):
        self._handles.pop(fd, None)
        os.close(fd)

    def pwritev(self, fd, buffers, position):
        written = os.pwritev(fd, buffers, position)
        self.ops.append(Op("write", self._handles[fd], position=position, data=b"".join(buffers)[:written]))
        return written

    def pwrite(self, fd, data, position):
        written = os.pwrite(fd, data, position)
        self.ops.append(Op("write", self._handles[fd], position=position, data=bytes(data)[:written]))
        return written

    def ftruncate(self, fd, length):
        os.ftruncate(fd, length)
        self.ops.append(Op("truncate", self._handles[fd], position=length))

    def posix_fallocate(self, fd, offset, length):
        os.posix_fallocate(fd, offset, length)
        if os.fstat(fd).st_size == offset + length:
            self.ops.append(Op("truncate", self._handles[fd], position=offset + length))

    def fsync(self, fd):
        self.ops.append(Op("fsync", self._handles[fd]))

    def fdatasync(self, fd):
        self.ops.append(Op("fsync", self._handles[fd]))

    def sync_file_system(self, path):
        self.ops.append(Op("syncfs"))
        return True

    def rename(self, path, target):
        os.rename(path, target)
        self.ops.append(Op("rename", path=self._name(path), target=self._name(target)))

    def unlink(self, path):
        os.unlink(path)
        self.ops.append(Op("unlink", path=self._name(path)))

    def rmdir(self, path):
        os.rmdir(path)
        self.ops.append(Op("rmdir", path=self._name(path)))

    def rmtree(self, path):
        for top, folders, names in os.walk(path, topdown=False):
            for name in sorted(names):
                self.unlink(os.path.join(top, name))
            for name in sorted(folders):
                self.rmdir(os.path.join(top, name))
        self.rmdir(path)

    def makedirs(self, path, mode=0o777, exist_ok=False):
        missing = []
        at = path
        while at != self.root and not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        os.makedirs(path, mode=mode, exist_ok=exist_ok)
        self.ops += [Op("mkdir", path=self._name(folder)) for folder in reversed(missing)]


class QuickDisk(Disk):
    """A disk for reading scratch folders: nothing waits for the device."""

    def fsync(self, fd):
        pass

    def fdatasync(self, fd):
        pass
