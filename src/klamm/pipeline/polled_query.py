"""A query that is a polling loop in the driver, with the interface of Spark's StreamingQuery and DataStreamWriter.

Spark has no streaming source for databases. The supervisor starts, watches and stops such loops like Spark's queries.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import deque
from typing import Any, Final, Self

from klamm.pipeline.sql.core.statement_options import duration_ms

POLL_S: Final = 1.0
_PROGRESS_KEPT: Final = 100
_GRACE_S: Final = 2.0
_STOP_S: Final = 60.0


class PolledQuery:
    """A loop in a thread; a subclass implements `run_loop`, and `interrupt` where a batch can be cancelled."""

    def __init__(self, name: str, *, once: bool, interval_s: float = POLL_S) -> None:
        self.name = name
        self.once = once
        self.interval_s = interval_s
        self.stopping = threading.Event()
        self.busy = False
        self._error: Exception | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._thread = threading.Thread(target=self._run, name=f"klamm-poll-{name}", daemon=True)

    def run_loop(self) -> None:
        """Poll until `stopping` is set, or with `once` until all current rows are read."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Cancel the running batch; the next start repeats it."""

    def wrap_error(self, error: Exception) -> Exception:
        """Return an error that may be shown."""
        return error

    def report(self, batch: int, rows: int, took_ms: int | None, **more: Any) -> None:
        """Add a progress report in Spark's form; without `took_ms` it is one between two batches."""
        durations = {} if took_ms is None else {"triggerExecution": took_ms, "addBatch": took_ms}
        self._progress.append(
            {
                "name": self.name,
                "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
                "batchId": batch,
                "numInputRows": rows,
                "processedRowsPerSecond": rows * 1000 / took_ms if took_ms else 0.0,
                "durationMs": durations,
                **more,
            }
        )

    def _run(self) -> None:
        try:
            self.run_loop()
        except Exception as error:  # noqa: BLE001 - drivers and Spark raise any exception
            self._error = self.wrap_error(error)

    def start(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's names, here and below
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """The state, as Spark's queries report it."""
        return {"message": "reading" if self.busy else "waiting", "isTriggerActive": self.busy}

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The progress of the last batches."""
        return list(self._progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The progress of the last batch."""
        return self._progress[-1] if self._progress else None

    def exception(self) -> Exception | None:
        """Return the error that ended the thread, or None."""
        return None if self.isActive else self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until the thread ends; raise its error."""
        self._thread.join(timeout)
        if self._error is not None and not self.isActive:
            raise self._error
        return not self.isActive

    def stop(self) -> None:
        """Stop, after the current batch if it ends soon; an interrupted batch is read again by the next start."""
        self.stopping.set()
        # A batch that is nearly done ends by itself; a cancelled one would be read twice.
        self._thread.join(_GRACE_S)
        if self.isActive:
            self.interrupt()
            self._thread.join(_STOP_S)


class PolledWriter:
    """Starts a polled query for the engine, with the interface of Spark's DataStreamWriter."""

    def __init__(self) -> None:
        self.name = ""
        self.folder = ""
        self.once = False
        self.interval_s = POLL_S

    def queryName(self, name: str) -> Self:  # noqa: N802 - Spark's names, here and below
        """Set the query's name."""
        self.name = name
        return self

    def option(self, name: str, value: Any) -> Self:
        """Set the checkpoint's folder; other options have no meaning here."""
        if name == "checkpointLocation":
            self.folder = str(value)
        return self

    def trigger(self, *, availableNow: bool = False, processingTime: str | None = None) -> Self:  # noqa: N803
        """Set whether to read only the current rows, or how often to poll."""
        self.once = availableNow
        if processingTime is not None:
            self.interval_s = (duration_ms(processingTime) or 0) / 1000 or POLL_S
        return self

    def start(self) -> PolledQuery:
        """Start polling."""
        raise NotImplementedError
