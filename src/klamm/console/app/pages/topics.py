"""GET .../topics, .../topics/{topic}, .../topics/{topic}/settings, .../topics/{topic}/groups."""

from __future__ import annotations

import asyncio
import contextlib
from operator import attrgetter
from typing import Any, Final

from klamm.client.admin.config_types import ConfigEntry
from klamm.console.app.application import RouteRight
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.spans import SPANS, choose_span
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.charts import draw_chart, draw_sparkline
from klamm.console.core.commands import make_command
from klamm.console.core.config_history import list_config_changes
from klamm.console.core.config_rows import list_config_rows
from klamm.console.core.roles import Action
from klamm.console.core.samples import TopicSample
from klamm.console.core.tables import parse_table_query, select_page
from klamm.console.core.topic_rows import TOPIC_COLUMNS, choose_topic_rows, describe_state
from klamm.console.history import HOUR_MS, topic_series
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.config_resources import ConfigResource

_NEW_MS: Final = 1000
"""A sample of this age may lack a topic that was just created."""
_REFRESH_S: Final = 3.0
_CHANGES_SHOWN: Final = 50


class TopicPages(PageGroup):
    """Looking at topics."""

    def add_routes(self) -> None:
        """Serve these pages."""
        view = RouteRight(Action.VIEW, "topic")
        self.app.get("/c/{cluster}/topics", self.list_topics, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/topics/{topic}", self.show_topic, view)
        self.app.get("/c/{cluster}/topics/{topic}/settings", self.show_settings, view)
        self.app.get("/c/{cluster}/topics/{topic}/groups", self.show_groups, view)

    async def list_topics(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../topics?q=&sort=&page=&size=&internal=1&state=."""
        name = request.cluster.name
        query = parse_table_query(request.query, TOPIC_COLUMNS, "name", ("internal", "state"))
        internal, state = request.text("internal") == "1", request.text("state")
        rows = choose_topic_rows(request.views.topic_rows, internal=internal, state=state)
        visible = set(request.visible(row.name for row in rows))
        table = select_page([row for row in rows if row.name in visible], query, TOPIC_COLUMNS, attrgetter("name"))
        end_ms = self.parts.now_ms()
        series = self.parts.history.read(name, [topic_series(row.name) for row in table.rows], end_ms - HOUR_MS, end_ms)
        sparklines = {
            row.name: draw_sparkline(
                [point.value for point in series[topic_series(row.name)]],
                f"records per second of {row.name}, last hour",
            )
            for row in table.rows
        }
        return self.app.page(
            request,
            "topics.html",
            title="Topics",
            section="topics",
            table=table,
            sparklines=sparklines,
            internal=internal,
            state=state,
        )

    async def show_topic(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../topics/{topic}: partitions, size, rate."""
        topic = await self.find_topic(request)
        name = request.cluster.name
        span, begin_ms, end_ms = choose_span(request, self.parts.now_ms())
        points = self.parts.history.read(name, [topic_series(topic.name)], begin_ms, end_ms)[topic_series(topic.name)]
        return self.app.page(
            request,
            "topic.html",
            title=topic.name,
            tab="partitions",
            chart=draw_chart(points, "Records per second", begin_ms, end_ms, broad=True),
            span=span,
            spans=list(SPANS),
            command=make_command(request.cluster.cluster.command_target, "topic", "show", topic.name),
            **self.describe(request, topic),
            largest=max((partition.size_bytes or 0 for partition in topic.partitions), default=0),
            groups=sorted(request.visible(request.sample.lags_by_topic.get(topic.name, ()))),
        )

    async def show_settings(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../settings: the effective values and where each comes from."""
        topic = await self.find_topic(request)
        rows = list_config_rows(await self.read_configs(request, topic.name))
        only_changed = request.text("all") != "1"
        # Names of persons: for those who may see the audit.
        shows_history = request.may(Action.AUDIT, topic.name)
        if shows_history:
            await self.parts.audit.load(request.cluster)
        entries = self.parts.audit.list_entries(request.cluster.name) if shows_history else []
        return self.app.page(
            request,
            "topic_settings.html",
            title=topic.name,
            tab="settings",
            rows=[row for row in rows if row.is_own or not only_changed],
            changed=sum(1 for row in rows if row.is_own),
            all_rows=rows,
            only_changed=only_changed,
            edited=request.text("edit"),
            changes=list_config_changes(entries, topic.name)[:_CHANGES_SHOWN],
            shows_history=shows_history,
            **self.describe(request, topic),
        )

    async def show_groups(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../groups: who reads the topic, and how far behind."""
        topic = await self.find_topic(request)
        sample = request.sample
        lags = sample.lags_by_topic.get(topic.name, {})
        names = request.visible(sorted(lags))
        rows = [(sample.groups[name], lags[name]) for name in names]
        return self.app.page(
            request, "topic_groups.html", title=topic.name, tab="groups", rows=rows, **self.describe(request, topic)
        )

    async def find_topic(self, request: ConsoleRequest) -> TopicSample:
        """Return the topic of the path; a new one may not be in the sample yet."""
        name = request.values["topic"]
        topic = request.sample.topics.get(name)
        # Not for every wrong name: a collection of a large cluster takes seconds.
        if topic is None and self.parts.now_ms() - request.sample.time_ms > _NEW_MS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_S):
                    await self.parts.refresh(request.cluster.name)
            topic = request.sample.topics.get(name)
        if topic is None:
            raise HttpRefusal(404, f"There is no topic {name} in {request.cluster.name}")
        return topic

    async def read_configs(self, request: ConsoleRequest, topic: str) -> dict[str, ConfigEntry]:
        """Return all settings of a topic."""
        admin = await request.cluster.admin()
        resource = ConfigResource.topic(topic)
        return (await admin.describe_configs([resource], synonyms=True, documentation=True))[resource]

    def describe(self, request: ConsoleRequest, topic: TopicSample) -> dict[str, Any]:
        """Return what the head of every page of a topic shows."""
        sample = request.sample
        return {
            "section": "topics",
            "topic": topic,
            "state": describe_state(topic),
            "rate": sample.rates.get(topic.name),
            "byte_rate": sample.byte_rates.get(topic.name),
            "group_count": len(request.visible(sample.lags_by_topic.get(topic.name, ()))),
        }
