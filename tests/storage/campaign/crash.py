"""The file system under a trace: what is in the page cache, what is on the device, and what a crash leaves of it.

A kill leaves the page cache: every call up to the cut, the last write perhaps in part. A power loss leaves what was
synced, and of the rest what chance decides:

- of a file: nothing, everything, the writes up to some byte, or any of its sectors (the others keep their old bytes,
  or zeros where there were none). A truncation that was lost takes the writes after it along: their blocks were new.
- of a folder: its creations, renames and removals up to some point, in order. `ordered` takes one point for all
  folders, as a journal does; otherwise every folder and file has its own.
"""

import os
import random
from collections.abc import Iterator

from .trace import CHANGES, Op

SECTOR = 512


class File:
    """A file's bytes: as read now, as on the device, and what happened between."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, int, bytes | None]] = []
        """(sequence, position, bytes written or None for a truncation)."""

    def write(self, sequence: int, position: int, data: bytes) -> None:
        self.pending.append((sequence, position, data))
        _put(self.data, position, data)

    def truncate(self, sequence: int, size: int) -> None:
        self.pending.append((sequence, size, None))
        _resize(self.data, size)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending = []

    def after_power_loss(self, chance: random.Random, horizon: int) -> bytes:
        kept = []
        for op in self.pending:
            if op[2] is None and op[0] > horizon:
                break
            kept.append(op)
        way = chance.choice(("nothing", "everything", "prefix", "prefix", "sectors"))
        content = bytearray(self.durable)
        writes = sum(op[2] is not None for op in kept)
        whole = chance.randint(0, writes) if writes else 0
        for _, position, data in kept:
            if data is None:
                _resize(content, position)
            elif way == "everything" or (way == "prefix" and whole > 1):
                whole -= 1
                _put(content, position, data)
            elif way == "prefix" and whole == 1:
                whole = 0
                _put(content, position, data[: chance.randint(0, len(data))])
            elif way == "sectors":
                for at in _sectors(position, len(data)):
                    if chance.random() < 0.5:
                        _put(content, at[0], data[at[0] - position : at[1] - position])
        return bytes(content)


class Folder:
    """A folder's names, likewise."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}
        self.pending: list[tuple[int, str, str, File | Folder | None]] = []
        """(sequence, name that goes or "", name that comes or "", what it names)."""

    def change(self, sequence: int, gone: str, new: str, what: "File | Folder | None") -> None:
        self.pending.append((sequence, gone, new, what))
        _rename(self.names, gone, new, what)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending = []

    def after_power_loss(self, horizon: int) -> "dict[str, File | Folder]":
        names = dict(self.durable)
        for sequence, gone, new, what in self.pending:
            if sequence > horizon:
                break
            _rename(names, gone, new, what)
        return names


class FileSystem:
    """Follows a trace op by op."""

    def __init__(self) -> None:
        self.root = Folder()
        self._handles: dict[int, File | Folder] = {}
        self._sequence = 0
        self._journal = 0

    def apply(self, op: Op) -> None:
        self._sequence += 1
        if op.kind == "open":
            self._handles[op.handle] = self._find(op.path)
        elif op.kind == "create":
            folder, name = self._parent(op.path)
            made = File()
            folder.change(self._sequence, "", name, made)
            self._handles[op.handle] = made
        elif op.kind == "write":
            self._handles[op.handle].write(self._sequence, op.position, op.data)
        elif op.kind == "truncate":
            self._handles[op.handle].truncate(self._sequence, op.position)
        elif op.kind == "fsync":
            self._handles[op.handle].sync()
            self._journal = self._sequence
        elif op.kind == "syncfs":
            self.root.sync()
            for _, node in list(self._walk(self.root, lambda folder: folder.names)):
                node.sync()
            self._journal = self._sequence
        elif op.kind == "mkdir":
            folder, name = self._parent(op.path)
            folder.change(self._sequence, "", name, Folder())
        elif op.kind in ("unlink", "rmdir"):
            folder, name = self._parent(op.path)
            folder.change(self._sequence, name, "", None)
        elif op.kind == "rename":
            folder, name = self._parent(op.path)
            other, new = self._parent(op.target)
            assert folder is other, "nothing is renamed from folder to folder"
            folder.change(self._sequence, name, new, folder.names[name])

    def killed(self, folder: str, torn: Op | None = None, tear: int = 0) -> None:
        """Write the page cache into `folder`; `torn` is the call under way, of which `tear` bytes were written."""
        file = self._handles[torn.handle] if torn is not None else None
        for path, what in self._walk(self.root, lambda node: node.names):
            if isinstance(what, Folder):
                os.mkdir(os.path.join(folder, path))
                continue
            data = what.data
            if what is file:
                data = bytearray(data)
                _put(data, torn.position, torn.data[:tear])
            _save(folder, path, data)

    def powered_off(self, folder: str, chance: random.Random, *, ordered: bool) -> None:
        """Write into `folder` what the device may hold when the power goes now."""
        common = chance.choice((self._journal, self._sequence, chance.randint(self._journal, self._sequence)))

        def horizon() -> int:
            return common if ordered else chance.choice((0, self._sequence, chance.randint(0, self._sequence)))

        for path, what in self._walk(self.root, lambda node: node.after_power_loss(horizon())):
            if isinstance(what, Folder):
                os.mkdir(os.path.join(folder, path))
            else:
                _save(folder, path, what.after_power_loss(chance, horizon()))

    def _walk(self, folder: Folder, names, prefix: str = "") -> "Iterator[tuple[str, File | Folder]]":
        for name, what in names(folder).items():
            path = os.path.join(prefix, name)
            yield path, what
            if isinstance(what, Folder):
                yield from self._walk(what, names, path)

    def _find(self, path: str) -> "File | Folder":
        at: File | Folder = self.root
        for name in path.split("/") if path != "." else ():
            at = at.names[name]
        return at

    def _parent(self, path: str) -> tuple[Folder, str]:
        head, name = os.path.split(path)
        return self._find(head or "."), name


def boundaries(ops: list[Op]) -> list[int]:
    """Where a trace can be cut: after so many ops, the last of which changed something."""
    return [i + 1 for i, op in enumerate(ops) if op.kind in CHANGES]


def _put(data: bytearray, position: int, new: bytes) -> None:
    if len(data) < position:
        data += bytes(position - len(data))
    data[position : position + len(new)] = new


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data += bytes(size - len(data))


def _rename(names: dict, gone: str, new: str, what) -> None:
    if gone:
        names.pop(gone, None)
    if new:
        names[new] = what


def _sectors(position: int, length: int) -> Iterator[tuple[int, int]]:
    at, end = position, position + length
    while at < end:
        until = min((at // SECTOR + 1) * SECTOR, end)
        yield at, until
        at = until


def _save(folder: str, path: str, data: bytes | bytearray) -> None:
    with open(os.path.join(folder, path), "wb") as file:
        file.write(data)
