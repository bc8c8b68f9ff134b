"""Rates and lags of the last hour, in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

INTERVAL_S: Final = 5.0
_POINTS: Final = 720
"""An hour of points, one every five seconds."""


class StatusHistory:
    """The newest points of each query: time, rows per second, unread records."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], every_s: float = INTERVAL_S) -> None:
        self._status = status
        self._every_s = every_s
        self._closing = threading.Event()
        self._points: dict[str, deque[tuple[int, float, int]]] = {}

    def take(self) -> None:
        """Add a point of each query."""
        status = self._status()
        for name, values in (status.get("queries") or {}).items():
            points = self._points.setdefault(name, deque(maxlen=_POINTS))
            points.append((status["updated_ms"], values.get("rows_per_s") or 0.0, values.get("lag_records") or 0))

    def points(self) -> dict[str, list[tuple[int, float, int]]]:
        """Return all points, the oldest first; callable from any thread."""
        return {name: list(points) for name, points in list(self._points.items())}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take points while the block runs."""
        thread = threading.Thread(target=self._run, name="klamm-history", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing.set()
            thread.join(self._every_s)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self.take()
