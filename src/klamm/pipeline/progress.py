"""One line per micro-batch, so that a long query shows that it moves."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener


class ProgressLines(StreamingQueryListener):  # type: ignore[misc]
    """Prints what each batch did; batches without rows are not worth a line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def _print(self, words: str) -> None:
        print(words, file=self._stream or sys.stderr, flush=True)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """A query begins."""
        self._print(f"{event.name or event.id}: started")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is done."""
        found = event.progress
        rows = found.numInputRows
        if rows:
            took_s = found.durationMs.get("triggerExecution", 0) / 1000
            rate = rows / took_s if took_s else 0.0
            name = found.name or found.id
            self._print(f"{name}: batch {found.batchId}, {rows:,} rows in {took_s:.1f} s ({rate:,.0f} rows/s)")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query ends."""
        self._print(f"{event.id}: {'failed' if event.exception else 'ended'}")
