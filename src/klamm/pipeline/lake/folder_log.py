"""The record of batches in a folder of plain files: which batch of which writer is in it, each exactly once.

A folder has no transactions; a reader sees every file in it. So files are written beside it, and then

1. the decision is recorded: the batch's number and the list of moves, by one atomic replacement of a file;
2. every file is moved to its final name by an atomic rename;
3. the list of moves is removed from the record, the number stays.

A driver that dies before 1 has changed nothing; the next one removes the files beside the folder. After 1 the next
driver finishes the moves, without computing the batch again. A row is never there twice; between 1 and 3 a part of a
batch may be visible. A lock lets one process at a time decide and move.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from klamm.pipeline.core.batch_ledger import BatchPosition
from klamm.pipeline.core.lake_tables import app_key
from klamm.pipeline.core.sink_commits import SinkError


class FileMove(NamedTuple):
    """A file's path beside the folder and its final path in the folder, each relative."""

    staged: str
    final: str


class BatchEntry(NamedTuple):
    """The newest decided batch of a writer, and the moves that may still be open."""

    batch: int
    moves: tuple[FileMove, ...] = ()
    position: str = ""
    """The source position at which the batch ended, as JSON text; empty when it was written without one."""


class FolderLog:
    """The batches of one folder, recorded in a hidden folder beside it, which readers do not list."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.side = side_folder(self.path)

    def staging(self, app: str, name: str) -> str:
        """Return a path for files that are not yet part of the folder; it is not created."""
        return os.path.join(self.side, "staging", app_key(app), name)

    @contextlib.contextmanager
    def hold_lock(self, name: str = "lock") -> Iterator[None]:
        """Hold the lock of a name; waits while another process holds it."""
        os.makedirs(self.side, exist_ok=True)
        handle = os.open(os.path.join(self.side, name), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # The kernel releases it when the process dies. The file stays: removing it would let two processes lock
            # different files.
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _file(self, app: str) -> str:
        return os.path.join(self.side, "batches", app_key(app))

    def entry(self, app: str) -> BatchEntry | None:
        """Return the newest decided batch of a writer, or None."""
        try:
            with open(self._file(app), encoding="utf-8") as file:
                encoded = json.load(file)
            moves = tuple(FileMove(*move) for move in encoded["moves"])
            return BatchEntry(int(encoded["batch"]), moves, str(encoded.get("position", "")))
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise SinkError(f"{self._file(app)} is not a record of the batches in {self.path}: {error!r}") from None

    def has_batch(self, app: str, batch: int) -> bool:
        """Whether a batch is in the folder; a decided batch is finished first. Needs the lock."""
        entry = self.entry(app)
        if entry is None:
            return False
        if entry.moves:
            self._finish(app, entry)
        return entry.batch >= batch

    def commit_batch(
        self, app: str, batch: int, moves: Sequence[FileMove], position: BatchPosition | None = None
    ) -> None:
        """Decide a batch, and move its files. Needs the lock."""
        # Contents are durable before the decision: after a power failure a decided file must not be empty.
        for move in moves:
            fsync_path(os.path.join(self.side, move.staged))
        entry = BatchEntry(batch, tuple(moves), "" if position is None else position.text)
        self._decide(app, entry)
        self._finish(app, entry)

    def finish_decided(self) -> None:
        """Finish the decided batches of all writers. Needs the lock."""
        folder = os.path.join(self.side, "batches")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            if name.startswith("."):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                app = json.load(file)["app"]
            entry = self.entry(app)
            if entry is not None and entry.moves:
                self._finish(app, entry)

    def clear(self, app: str) -> None:
        """Remove staged files of a writer. Needs the lock, and no decided batch with open moves."""
        shutil.rmtree(os.path.join(self.side, "staging", app_key(app)), ignore_errors=True)

    def _decide(self, app: str, entry: BatchEntry) -> None:
        path = self._file(app)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # In the same folder: os.replace is atomic only within a file system.
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"app": app, "batch": entry.batch, "moves": entry.moves, "position": entry.position}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        # The rename itself is durable only when the folder is synced.
        fsync_path(os.path.dirname(path))

    def _finish(self, app: str, entry: BatchEntry) -> None:
        folders = set()
        for move in entry.moves:
            staged, final = os.path.join(self.side, move.staged), os.path.join(self.path, move.final)
            folder = os.path.dirname(final)
            folders.add(folder)
            os.makedirs(folder, exist_ok=True)
            # A move that was done before the crash is recognized by the final file.
            if not _move(staged, final):
                raise SinkError(f"batch {entry.batch} was decided, but its file {move.staged} does not exist")
        # Moves are durable before the list of moves is removed from the record.
        for folder in folders:
            fsync_path(folder)
        # The number is never removed: a replay of the batch is recognized by it.
        self._decide(app, entry._replace(moves=()))


def side_folder(path: str) -> str:
    """Return the hidden folder beside a folder; inside of it when it is a mount, as renames cannot cross mounts."""
    parent, name = os.path.split(os.path.abspath(path))
    if os.path.isdir(path) and os.stat(parent).st_dev != os.stat(path).st_dev:
        return os.path.join(path, "_klamm")
    return os.path.join(parent, f".{name}.klamm")


def _move(staged: str, final: str) -> bool:
    """Move a file unless that was done before; return False when it is at neither path."""
    try:
        os.replace(staged, final)
    except FileNotFoundError:
        return os.path.exists(final)
    return True


def fsync_path(path: str) -> None:
    """Make a file's contents, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
