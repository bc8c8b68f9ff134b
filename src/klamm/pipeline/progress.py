"""Prints a line per micro-batch, so that a long query shows its progress on a terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener


class ProgressLines(StreamingQueryListener):  # type: ignore[misc]
    """Prints rows and rate of each batch that had rows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._names: dict[str, str] = {}

    def _print(self, line: str) -> None:
        # sys.stderr is looked up per line: test runners and notebooks replace it.
        print(line, file=self._stream or sys.stderr, flush=True)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """Print that a query has started."""
        # The event of the end has only the id.
        self._names[str(event.id)] = event.name or str(event.id)
        self._print(f"{event.name or event.id}: started")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Print a batch that is done."""
        progress = event.progress
        rows = progress.numInputRows
        # Batches without rows only advance the watermark or the state: not worth a line.
        if rows:
            took_s = progress.durationMs.get("triggerExecution", 0) / 1000
            rate = rows / took_s if took_s else 0.0
            name = progress.name or progress.id
            self._print(f"{name}: batch {progress.batchId}, {rows:,} rows in {took_s:.1f} s ({rate:,.0f} rows/s)")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Print nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Print how a query has ended."""
        name = self._names.pop(str(event.id), str(event.id))
        self._print(f"{name}: {'failed' if event.exception else 'ended'}")
