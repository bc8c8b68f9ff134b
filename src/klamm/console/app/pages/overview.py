"""GET /c/{cluster}: health, traffic, and what needs attention."""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import Final

from klamm.console.app.application import RouteRight
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.spans import SPANS, choose_span
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.charts import draw_chart
from klamm.console.core.numbers import format_short
from klamm.console.core.roles import Action
from klamm.console.history import BYTE_RATE, LAG, RATE
from klamm.http.messages import HttpResponse
from klamm.model.units import format_size

_TOP: Final = 5


class OverviewPages(PageGroup):
    """The first page of a cluster."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}", self.show_overview, RouteRight(Action.VIEW))

    async def show_overview(self, request: ConsoleRequest) -> HttpResponse:
        """GET /c/{cluster}."""
        sample, name = request.sample, request.cluster.name
        visible, groups = set(request.visible(sample.topics)), set(request.visible(sample.groups))
        span, begin_ms, end_ms = choose_span(request, self.parts.now_ms(), "1h")
        series = self.parts.history.read(name, (RATE, BYTE_RATE, LAG), begin_ms, end_ms)
        charts = [
            ("Records per second", draw_chart(series[RATE], "Records per second", begin_ms, end_ms, format_short)),
            (
                "Bytes per second",
                draw_chart(series[BYTE_RATE], "Bytes per second", begin_ms, end_ms, format_size, base=1024),
            ),
            ("Unread records of all groups", draw_chart(series[LAG], "Lag", begin_ms, end_ms, format_short)),
        ]
        busiest = heapq.nsmallest(
            _TOP, ((topic, rate) for topic, rate in sample.rates.items() if rate > 0 and topic in visible), key=_largest
        )
        behind = heapq.nsmallest(
            _TOP, ((group, lag) for group, lag in sample.lags.items() if lag and group in groups), key=_largest
        )
        return self.app.page(
            request,
            "overview.html",
            title="Overview",
            section="overview",
            attention=request.views.choose_attention(visible, groups),
            charts=charts,
            span=span,
            spans=list(SPANS),
            busiest=busiest,
            behind=behind,
            partitions=request.views.partitions,
            in_sync=request.views.in_sync,
            online=sum(1 for broker in sample.brokers if not broker.fenced),
            size_bytes=sum(map(attrgetter("size_bytes"), sample.brokers)),
        )


def _largest(entry: tuple[str, float]) -> tuple[float, str]:
    return -entry[1], entry[0]
