"""Which batch of a writer is in a folder of plain files: one that was decided is finished, and never done twice.

A folder has no transactions; a reader sees whatever lies in it. So files are written beside it, and then

1. the decision is written down: the batch's number and the list of moves, by one atomic replacement;
2. every file is moved to its final name by an atomic rename;
3. the list is forgotten, the number stays.

A driver that dies before 1 has done nothing; its files lie beside the folder and are removed by the next one. After 1
whoever comes next finishes the moves, without computing anything again. A row is never there twice; between 1 and 3 a
part of a batch may be there. A lock lets one process at a time decide and move.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from klamm.pipeline.core.lake_tables import app_key
from klamm.pipeline.core.sink_commits import SinkError


class Move(NamedTuple):
    """From beside the folder, to its place in it; relative to each."""

    staged: str
    final: str


class BatchEntry(NamedTuple):
    """The newest decided batch of a writer, and the moves that may still have to be made."""

    batch: int
    moves: tuple[Move, ...] = ()


class FolderLog:
    """What is known of one folder's batches; kept in a folder beside it, which readers do not look into."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.side = side_folder(self.path)

    def staging(self, app: str, name: str) -> str:
        """A folder for files that are not yet part of anything; not made."""
        return os.path.join(self.side, "staging", app_key(app), name)

    @contextlib.contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        """Be the one that moves files, or does something else of a name; waits for another."""
        os.makedirs(self.side, exist_ok=True)
        handle = os.open(os.path.join(self.side, name), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _file(self, app: str) -> str:
        return os.path.join(self.side, "batches", app_key(app))

    def entry(self, app: str) -> BatchEntry | None:
        """What was decided last."""
        try:
            with open(self._file(app), encoding="utf-8") as file:
                whole = json.load(file)
            return BatchEntry(int(whole["batch"]), tuple(Move(*move) for move in whole["moves"]))
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise SinkError(f"{self._file(app)} does not say which batches are in {self.path}: {error!r}") from None

    def settled(self, app: str, batch: int) -> bool:
        """Whether a batch is there; one that was decided is finished first. Needs the lock."""
        found = self.entry(app)
        if found is None:
            return False
        if found.moves:
            self._finish(app, found)
        return found.batch >= batch

    def settle(self, app: str, batch: int, moves: Sequence[Move]) -> None:
        """Decide a batch, and move its files. Needs the lock."""
        for move in moves:
            fsync_path(os.path.join(self.side, move.staged))
        entry = BatchEntry(batch, tuple(moves))
        self._decide(app, entry)
        self._finish(app, entry)

    def settle_all(self) -> None:
        """Finish whatever any writer has decided. Needs the lock."""
        folder = os.path.join(self.side, "batches")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if name.startswith("."):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                app = json.load(file)["app"]
            found = self.entry(app)
            if found is not None and found.moves:
                self._finish(app, found)

    def clear(self, app: str) -> None:
        """Remove what attempts at batches left behind. Needs the lock, and that none of them is decided."""
        shutil.rmtree(os.path.join(self.side, "staging", app_key(app)), ignore_errors=True)

    def _decide(self, app: str, entry: BatchEntry) -> None:
        path = self._file(app)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"app": app, "batch": entry.batch, "moves": entry.moves}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_path(os.path.dirname(path))

    def _finish(self, app: str, entry: BatchEntry) -> None:
        folders = set()
        for move in entry.moves:
            staged, final = os.path.join(self.side, move.staged), os.path.join(self.path, move.final)
            folder = os.path.dirname(final)
            folders.add(folder)
            os.makedirs(folder, exist_ok=True)
            if not _moved(staged, final):
                raise SinkError(f"batch {entry.batch} was decided, but its file {move.staged} is gone")
        for folder in folders:
            fsync_path(folder)
        self._decide(app, entry._replace(moves=()))


def side_folder(path: str) -> str:
    """The folder beside a folder; inside of it where it is a mount of its own, since files cannot be moved across."""
    parent, name = os.path.split(os.path.abspath(path))
    if os.path.isdir(path) and os.stat(parent).st_dev != os.stat(path).st_dev:
        return os.path.join(path, "_klamm")
    return os.path.join(parent, f".{name}.klamm")


def _moved(staged: str, final: str) -> bool:
    """Move a file, unless it was before; False when it is at neither place."""
    try:
        os.replace(staged, final)
    except FileNotFoundError:
        return os.path.exists(final)
    return True


def fsync_path(path: str) -> None:
    """Make a file, or the names in a folder, last."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
