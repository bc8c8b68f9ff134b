"""The time that the charts of a page cover, as its URL says: `?span=6h`."""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.console.app.requests import ConsoleRequest
from klamm.console.history import HOUR_MS

SPANS: Final = {"1h": 1, "6h": 6, "24h": 24}


class ChartSpan(NamedTuple):
    """A span by name, and the times between which charts are drawn."""

    name: str
    begin_ms: int
    end_ms: int


def choose_span(request: ConsoleRequest, now_ms: int, default: str = "6h") -> ChartSpan:
    """Return the span of the URL, or the default."""
    name = request.text("span")
    if name not in SPANS:
        name = default
    return ChartSpan(name, now_ms - SPANS[name] * HOUR_MS, now_ms)
