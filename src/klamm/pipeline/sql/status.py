"""What a running pipeline leaves for others to read, and how others ask it to stop: files in its folder.

pipeline.json   its identity           status.json   how it is doing, renewed while it runs
stop            made to stop it        lock          held by the process that runs it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.identity import Identity
from klamm.pipeline.sql.core.problems import suggest

DEFAULT_HOME: Final = os.path.join(".klamm", "pipelines")
IDENTITY: Final = "pipeline.json"
_STATUS: Final = "status.json"
_STOP: Final = "stop"
_LOCK: Final = "lock"
_LOOKS: Final = 20
_LOOK_S: Final = 0.05
"""How often and how far apart a process that starts tries the lock: others hold it for a moment to look."""
_LONGEST_ERROR: Final = 2000


def summarize_progress(progress: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """What matters of a query's progress as Spark tells it."""
    lag: int | None = None
    for each in progress.get("sources") or ():
        behind = lag_records(each.get("endOffset"), each.get("latestOffset"))
        if behind is not None:
            lag = (lag or 0) + behind
    times = progress.get("eventTime") or {}
    newest_ms = _millis(times.get("max"))
    state = progress.get("stateOperators") or ()
    watermark = times.get("watermark")
    if watermark == "1970-01-01T00:00:00.000Z":
        watermark = None
    late_ms = None if newest_ms is None else max(now_ms - newest_ms, 0)
    return {
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows"),
        "rows_per_s": round(float(progress.get("processedRowsPerSecond") or 0.0), 1),
        "lag_records": lag,
        "lag_ms": 0 if lag == 0 else late_ms,
        "watermark": watermark,
        "watermark_ms": _millis(watermark),
        "state_rows": sum(each.get("numRowsTotal", 0) for each in state),
        "state_bytes": sum(each.get("memoryUsedBytes", 0) for each in state),
        "batch_ms": (progress.get("durationMs") or {}).get("triggerExecution"),
    }


def read_offsets(progress: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """How far a query has read its topics; where it reads one twice, the smaller offset."""
    found: dict[tuple[str, int], int] = {}
    for each in progress.get("sources") or ():
        for (topic, part), offset in (_offsets(each.get("endOffset")) or {}).items():
            if part.isdecimal():
                where = topic, int(part)
                found[where] = min(offset, found.get(where, offset))
    return found


def committed_offsets(checkpoint: str) -> dict[tuple[str, int], int]:
    """How far a query had read when it last ended, by its checkpoint; nothing when that is not to be seen from here."""
    try:
        batch = max(int(each) for each in os.listdir(os.path.join(checkpoint, "commits")) if each.isdecimal())
        with open(os.path.join(checkpoint, "offsets", str(batch)), encoding="utf-8") as file:
            lines = file.read().splitlines()[2:]  # after the version and what the batch was planned with
    except (OSError, ValueError):
        return {}
    return read_offsets({"sources": [{"endOffset": line} for line in lines]})


def lag_records(end: Any, latest: Any) -> int | None:
    """How many offsets lie between two positions of our source; None when they are not such."""
    first, last = _offsets(end), _offsets(latest)
    if first is None or last is None:
        return None
    return sum(max(offset - first.get(where, 0), 0) for where, offset in last.items())


def _offsets(position: Any) -> dict[tuple[str, str], int] | None:
    if isinstance(position, str):
        try:
            position = json.loads(position)
        except ValueError:
            return None
    if not isinstance(position, dict):
        return None
    return {
        (topic, part): offset
        for topic, parts in position.items()
        if isinstance(parts, dict)
        for part, offset in parts.items()
        if isinstance(offset, int)
    }


def _millis(text: str | None) -> int | None:
    from datetime import datetime  # noqa: PLC0415

    if not text:
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


class Home:
    """The folder of one pipeline."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def identity(self) -> Identity | None:
        """What made the folder; None when nothing did yet."""
        text = self._read(IDENTITY)
        return None if text is None else Identity.decode(text, self._file(IDENTITY))

    def keep(self, identity: Identity) -> None:
        """Write the identity down."""
        self._write(IDENTITY, identity.encode())

    def status(self) -> dict[str, Any]:
        """How it is doing; a process that left without a word is told from one that runs."""
        text = self._read(_STATUS)
        try:
            found: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            found = {}
        found.setdefault("state", "never ran")
        found.setdefault("queries", {})
        if found["state"] == "running" and not self.running():
            found["state"] = "gone"
        return found

    def tell(self, status: Mapping[str, Any]) -> None:
        """Write the status down."""
        self._write(_STATUS, json.dumps(status, indent=2) + "\n", durable=False)

    def running(self) -> bool:
        """Whether a process runs it now."""
        with self._handle() as handle:
            return not _taken(handle, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one that runs it; ConfigError when another process does, and not only looks whether one does."""
        with self._handle() as handle:
            for _ in range(_LOOKS):
                if _taken(handle, fcntl.LOCK_EX):
                    break
                time.sleep(_LOOK_S)
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
        """Ask the process that runs it to finish its batches and leave."""
        self._write(_STOP, "")

    def stop_requested(self) -> bool:
        """Whether somebody asked."""
        return os.path.exists(self._file(_STOP))

    def clear_stop_request(self) -> None:
        """Begin anew."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(_STOP))

    def _read(self, name: str) -> str | None:
        try:
            with open(self._file(name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str, *, durable: bool = True) -> None:
        os.makedirs(self.path, exist_ok=True)
        part = self._file(f".{name}.part")
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, self._file(name))


def homes(root: str = DEFAULT_HOME) -> dict[str, Home]:
    """All pipelines under a folder, by name."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return {}
    return {
        name: Home(os.path.join(root, name)) for name in names if os.path.exists(os.path.join(root, name, IDENTITY))
    }


def home(name: str, root: str = DEFAULT_HOME) -> Home:
    """A pipeline by its name, or by its folder; ConfigError when there is none."""
    if os.path.exists(os.path.join(name, IDENTITY)):
        return Home(name)
    known = homes(root)
    if name not in known:
        raise ConfigError(f"there is no pipeline {name} in {root}{suggest(name, known)}")
    return known[name]


def error_line(error: object) -> str:
    """One line of an error: the last of a Python traceback, otherwise the first."""
    text = str(error).split("\nDuring handling of the above exception")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        lines = [line for line in lines if not line.startswith(" ")][-1:]
    return lines[0].strip() if lines else ""


def error_summary(error: object) -> str:
    """An error's first words, without the plan and the trace of the JVM that Spark prints with it."""
    text = str(error)
    for end in ("\n=== Streaming Query ===", "\n\nJVM stacktrace", "\n\tat "):
        text = text.split(end, maxsplit=1)[0]
    return text[:_LONGEST_ERROR].strip()


def _taken(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
