"""The files in a pipeline's folder: identity, status, lock and requests.

pipeline.json   the identity                    status.json   the status, rewritten while it runs
columns.json    the columns of its SELECTs
stop            its presence requests a stop    lock          held by the process that runs it
requests/       pause, resume, restart          paused.json   the queries that stay off
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.checkpoint_files import last_batch, planned_batch
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.query_failures import safe_message
from klamm.pipeline.sql.core.query_progress import read_offsets

IDENTITY: Final = "pipeline.json"
_STATUS: Final = "status.json"
_COLUMNS: Final = "columns.json"
_STOP: Final = "stop"
_LOCK: Final = "lock"
_REQUESTS: Final = "requests"
_PAUSED: Final = "paused.json"
_LOCK_ATTEMPTS: Final = 20
_LOCK_PAUSE_S: Final = 0.05
"""A process that starts retries the lock: `klamm pipeline ls` holds it for an instant to see whether it is free."""
_ERROR_CHARS_MAX: Final = 2000
_LEFT_OUT: Final = "\n ...\n"
NEVER_RAN: Final = "never ran"
_ALIVE: Final = ("starting", "running")
"""States that only a process that holds the lock has."""


class ControlAction(StrEnum):
    """What can be requested of a running pipeline, of one query or of all."""

    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request to the process that runs a pipeline; without a query it is for all of them."""

    id: str
    action: ControlAction
    query: str | None


def committed_offsets(checkpoint: str) -> dict[tuple[str, int], int]:
    """Return how far a query had read by its checkpoint; empty when that is not readable from this machine."""
    planned = planned_batch(checkpoint, last_batch(checkpoint, "commits"))
    return {} if planned is None else read_offsets({"sources": [{"endOffset": end} for end in planned.ends]})


class Home:
    """The folder of one pipeline."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def identity(self) -> QueryIdentity | None:
        """Return the stored identity; None for a new folder."""
        text = self._read(IDENTITY)
        return None if text is None else QueryIdentity.decode(text, self._file(IDENTITY))

    def keep(self, identity: QueryIdentity) -> None:
        """Store the identity."""
        self._write(IDENTITY, identity.encode())

    def restore(self, identity: QueryIdentity | None) -> None:
        """Store the identity of before; None for a folder that had none."""
        if identity is not None:
            self.keep(identity)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(IDENTITY))

    def take(self, older: Home) -> None:
        """Move the folder of a pipeline that was renamed here; ConfigError when that one runs, or this one exists."""
        with older.hold_lock(), self.hold_lock():
            if self.identity() is not None:
                raise ConfigError(f"{self.path} is the folder of a pipeline already")
            # A start that was refused leaves a lock and a status.
            shutil.rmtree(self.path)
            os.rename(older.path, self.path)

    def columns(self) -> dict[str, dict[str, str]]:
        """Return names and types of the columns of each query that the last run had; empty for a new folder."""
        text = self._read(_COLUMNS)
        try:
            return dict(json.loads(text)) if text else {}
        except ValueError:
            return {}

    def keep_columns(self, columns: Mapping[str, Mapping[str, str]]) -> None:
        """Store the columns of queries: only Spark can tell them, and `pipeline.tables` reads results without it."""
        self._write(_COLUMNS, json.dumps(columns, indent=2) + "\n")

    def status(self) -> dict[str, Any]:
        """Return the status; "gone" for a process that ended without writing its last one."""
        text = self._read(_STATUS)
        try:
            status: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            status = {}
        # A folder that only a backfill has created has no status.
        status.setdefault("state", NEVER_RAN)
        status.setdefault("queries", {})
        # The lock decides: a killed process has left its status file behind, but not its lock.
        if status["state"] in _ALIVE and not self.running():
            status["state"] = "gone"
        return status

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status; not synced, it is rewritten several times a second."""
        # Without indents, which Python's fast encoder cannot write: of 10,000 partitions they would take 4 ms.
        self._write(_STATUS, json.dumps(status) + "\n", durable=False)

    def running(self) -> bool:
        """Whether a process runs the pipeline now."""
        with self._handle() as handle:
            # Shared, so that two commands that check at the same time do not take each other for the runner.
            return not _try_lock(handle, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the pipeline's lock; ConfigError when another process runs it."""
        with self._handle() as handle:
            for _ in range(_LOCK_ATTEMPTS):
                if _try_lock(handle, fcntl.LOCK_EX):
                    break
                time.sleep(_LOCK_PAUSE_S)
            else:
                raise ConfigError(f"{self.path} runs already; `klamm pipeline stop` ends it")
            yield

    @contextlib.contextmanager
    def _handle(self) -> Iterator[int]:
        os.makedirs(self.path, exist_ok=True)
        handle = os.open(self._file(_LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield handle
        finally:
            os.close(handle)

    def request_stop(self) -> None:
        """Request that the process that runs it stops after the running batches."""
        self._write(_STOP, "")

    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return os.path.exists(self._file(_STOP))

    def clear_stop_request(self) -> None:
        """Remove a stop request of an earlier run."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(_STOP))

    def send_request(self, action: ControlAction, query: str | None) -> str:
        """Send a request to the process that runs it; return the id under which the status has the answer."""
        # Names sort by time: requests are obeyed in the order they were sent.
        request_id = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        os.makedirs(self._file(_REQUESTS), exist_ok=True)
        self._write(os.path.join(_REQUESTS, request_id), json.dumps({"action": action, "query": query}))
        return request_id

    def requests(self) -> list[ControlRequest]:
        """Return the requests that wait for an answer, the oldest first."""
        requests = []
        for name in sorted(self._request_names()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                fields = json.loads(self._read(os.path.join(_REQUESTS, name)) or "{}")
                requests.append(ControlRequest(name, ControlAction(fields["action"]), fields["query"]))
        return requests

    def remove_request(self, request: ControlRequest) -> None:
        """Remove a request that was obeyed or refused."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(os.path.join(_REQUESTS, request.id)))

    def clear_requests(self) -> None:
        """Remove what an earlier run has left: the stop request, and requests without an answer."""
        self.clear_stop_request()
        for name in self._request_names():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(os.path.join(_REQUESTS, name)))

    def _request_names(self) -> list[str]:
        try:
            names = os.listdir(self._file(_REQUESTS))
        except FileNotFoundError:
            return []
        # A name with a dot is a file that is being written.
        return [name for name in names if not name.startswith(".")]

    def read_paused(self) -> frozenset[str]:
        """Return the queries that were paused, also by an earlier run."""
        return frozenset(json.loads(self._read(_PAUSED) or "[]"))

    def keep_paused(self, names: Iterable[str]) -> None:
        """Store the queries that are paused."""
        self._write(_PAUSED, json.dumps(sorted(names)) + "\n")

    def _read(self, name: str) -> str | None:
        try:
            with open(self._file(name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str, *, durable: bool = True) -> None:
        os.makedirs(self.path, exist_ok=True)
        folder, file_name = os.path.split(name)
        part = self._file(os.path.join(folder, f".{file_name}.part"))
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # Readers see the old file or the new one.
        os.replace(part, self._file(name))


def is_home(path: str) -> bool:
    """Whether a folder is a pipeline's; one that starts for the first time has a status, and no identity yet."""
    return any(os.path.exists(os.path.join(path, name)) for name in (IDENTITY, _STATUS))


def error_line(error: object) -> str:
    """Return one line of an error: the last of a Python traceback, otherwise the first."""
    # The first exception of a chain is the cause; the rest is how it was passed on.
    text = str(error).split("\nDuring handling of the above exception")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        lines = [line for line in lines if not line.startswith(" ")][-1:]
    return lines[0].strip() if lines else ""


def error_summary(error: object) -> str:
    """Return an error's message, without the query plan and the JVM's stack trace that Spark appends."""
    text = str(error)
    for end in ("\n=== Streaming Query ===", "\n\nJVM stacktrace", "\n\tat "):
        text = text.split(end, maxsplit=1)[0]
    text = safe_message(text).strip()
    if len(text) <= _ERROR_CHARS_MAX:
        return text
    # The last line of a Python traceback is what happened.
    half = (_ERROR_CHARS_MAX - len(_LEFT_OUT)) // 2
    return f"{text[:half]}{_LEFT_OUT}{text[-half:]}"


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
