"""Small files in the folder of a query's checkpoint; this machine's folders, and the interface of remote ones."""

from __future__ import annotations

import os
import shutil
from typing import Protocol


class CheckpointFolder(Protocol):
    """A folder of small files in a checkpoint, by kind (a folder in it) and name."""

    path: str

    def names(self, kind: str) -> list[str]:
        """Return the names of the files of a kind; none when there is no such folder."""

    def read(self, kind: str, name: str) -> str:
        """Return a file's text; OSError when there is none."""

    def write(self, kind: str, name: str, text: str, *, durable: bool = True) -> None:
        """Write a file atomically, and durably by default."""

    def remove(self, kind: str, name: str) -> None:
        """Remove a file."""

    def remove_folder(self, kind: str, name: str) -> None:
        """Remove a folder with its files, if it exists."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        self.path = path

    def names(self, kind: str) -> list[str]:
        """Return the names of the files of a kind."""
        try:
            return os.listdir(os.path.join(self.path, kind))
        except FileNotFoundError:
            return []

    def read(self, kind: str, name: str) -> str:
        """Return a file's text."""
        with open(os.path.join(self.path, kind, name), encoding="utf-8") as file:
            return file.read()

    def write(self, kind: str, name: str, text: str, *, durable: bool = True) -> None:
        """Write a file atomically, and durably by default."""
        folder = os.path.join(self.path, kind)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, f".{name}.new")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # A file under its final name is complete.
        os.replace(temporary, os.path.join(folder, name))
        if not durable:
            return
        _sync(folder)

    def remove(self, kind: str, name: str) -> None:
        """Remove a file."""
        os.unlink(os.path.join(self.path, kind, name))

    def remove_folder(self, kind: str, name: str) -> None:
        """Remove a folder with its files, if it exists."""
        shutil.rmtree(os.path.join(self.path, kind, name), ignore_errors=True)


def copy_folder(source: str, target: str) -> None:
    """Copy a folder durably: after a power failure it has all of its files, with all of their bytes."""
    shutil.copytree(source, target)
    sync_folder(target)


def sync_folder(path: str) -> None:
    """Make a folder durable: its files, the folders in it, and its own name."""
    for folder, _, names in os.walk(path):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
    _sync(os.path.dirname(os.path.abspath(path)))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
