"""GET .../groups, .../groups/{group}; POST reset, undo, delete, remove a member."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.spans import SPANS, choose_span
from klamm.console.app.requests import ConsoleRequest
from klamm.console.audit import shorten
from klamm.console.core.charts import draw_chart
from klamm.console.core.commands import group_command, seek_command
from klamm.console.core.group_rows import GROUP_COLUMNS
from klamm.console.core.numbers import format_seconds
from klamm.console.core.offset_plans import OffsetMove, parse_reset
from klamm.console.core.roles import Action
from klamm.console.core.tables import parse_table_query, select_page
from klamm.console.group_details import GroupDetails, describe_group, plan_group_reset
from klamm.console.history import group_age_series, group_series
from klamm.console.offset_resets import OffsetResets, restore_offsets
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition
from klamm.model.units import pluralize

_SHOWN_MAX: Final = 500
"""Partitions of a plan that its page lists; all of them are moved."""


class GroupPages(PageGroup):
    """Groups, their lag and their offsets."""

    def add_routes(self) -> None:
        """Serve these pages."""
        view, change = RouteRight(Action.VIEW, "group"), RouteRight(Action.GROUPS, "group")
        self.app.get("/c/{cluster}/groups", self.list_groups, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/groups/{group}", self.show_group, view)
        self.app.get("/c/{cluster}/groups/{group}/reset", self.show_reset, change)
        self.app.post("/c/{cluster}/groups/{group}/reset", self.reset, change)
        self.app.post("/c/{cluster}/groups/{group}/undo/{reset}", self.undo, change)
        self.app.post("/c/{cluster}/groups/{group}/remove-member", self.remove_member, change)
        self.app.post("/c/{cluster}/groups/{group}/delete", self.delete, change)

    @property
    def resets(self) -> OffsetResets:
        """Offsets from before resets, for undo."""
        return OffsetResets(self.parts.history)

    async def list_groups(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../groups?q=&sort=&state=&topic=."""
        query = parse_table_query(request.query, GROUP_COLUMNS, "-lag", ("state", "topic"))
        views, state, topic = request.views, request.text("state"), request.text("topic")
        if topic:
            request.require(Action.VIEW, topic)
        of_topic = views.sample.lags_by_topic.get(topic, {}) if topic else None
        rows = [
            row
            for row in views.group_rows
            if (not state or row.state == state) and (of_topic is None or row.name in of_topic)
        ]
        visible = set(request.visible(row.name for row in rows))
        table = select_page([row for row in rows if row.name in visible], query, GROUP_COLUMNS, attrgetter("name"))
        states = sorted({row.state for row in views.group_rows})
        return self.app.page(
            request,
            "groups.html",
            title="Groups",
            section="groups",
            table=table,
            states=states,
            state=state,
            topic_name=topic,
        )

    async def show_group(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../groups/{group}: members, lag in records and seconds."""
        name = request.values["group"]
        span, begin_ms, end_ms = choose_span(request, self.parts.now_ms())
        details = await self._describe(request, name, end_ms)
        lags, ages = group_series(name), group_age_series(name)
        points = self.parts.history.read(request.cluster.name, [lags, ages], begin_ms, end_ms)
        return self.app.page(
            request,
            "group.html",
            title=name,
            section="groups",
            name=name,
            details=details,
            charts=[
                ("Unread records", draw_chart(points[lags], f"Unread records of {name}", begin_ms, end_ms, half=True)),
                (
                    "Behind by, the age of the oldest unread record",
                    draw_chart(
                        points[ages],
                        f"Age of the oldest unread record of {name}",
                        begin_ms,
                        end_ms,
                        format_seconds,
                        base=60,
                        half=True,
                    ),
                ),
            ],
            span=span,
            spans=list(SPANS),
            command=group_command(request.cluster.cluster.command_target, name),
            past_resets=self.resets.list_recent(request.cluster.name, name),
        )

    async def _describe(self, request: ConsoleRequest, name: str, now_ms: int) -> GroupDetails:
        details = await describe_group(request.cluster, name, now_ms)
        return details.keep_topics(request.visible(topic.topic for topic in details.topics))

    async def show_reset(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../reset?to=&topic=: the plan of a reset; nothing is changed."""
        name, position = request.values["group"], request.text("to").strip()
        topics = [topic for topic in request.query.get("topic", ()) if topic]
        moves, failed = [], ""
        if position:
            try:
                moves = await self._plan(request, name, position, topics)
            except ValueError as error:
                failed = str(error)
        details = await self._describe(request, name, self.parts.now_ms())
        if not details.limits.can_reset:
            raise HttpRefusal(409, details.limits.notes[0])
        return self.app.page(
            request,
            "group_reset.html",
            title=f"Reset {name}",
            section="groups",
            name=name,
            details=details,
            position=position,
            chosen=topics,
            moves=moves[:_SHOWN_MAX],
            total=len(moves),
            plan=self.keep_plan(request, ("reset", name), _list_targets(moves)) if moves else "",
            failed=failed,
            read_again=sum(move.records for move in moves if move.records > 0),
            skipped=-sum(move.records for move in moves if move.records < 0),
            command=seek_command(request.cluster.cluster.command_target, name, position, topics) if position else "",
        )

    async def _plan(self, request: ConsoleRequest, name: str, position: str, topics: list[str]) -> list[OffsetMove]:
        for topic in topics:
            request.require(Action.GROUPS, topic)
        target = parse_reset(position, self.parts.now_ms())
        allowed = functools.partial(request.visitor.visible, request.cluster.name, action=Action.GROUPS)
        return await plan_group_reset(request.cluster, name, target, topics, allowed)

    async def reset(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../reset: commit the plan that was shown, not one that is made anew."""
        name = request.values["group"]
        after = self.find_plan(request, ("reset", name))
        _require_topics(request, after)
        admin = await request.cluster.admin()
        committed = {where: entry.offset for where, entry in (await admin.list_group_offsets(name)).items()}
        # None for a partition without a committed offset: undo deletes the one that the reset commits.
        before = {where: committed.get(where) for where in after}
        number = self.resets.keep(request.cluster.name, name, request.visitor.name, self.parts.now_ms(), before)
        await self.app.change(
            request,
            "reset offsets",
            name,
            functools.partial(admin.alter_group_offsets, name, after),
            done=f"Moved {name} in {pluralize(len(after), 'partition')}.",
            detail={"before": shorten(_as_text(before)), "after": shorten(_as_text(after))},
            undo=f"{self.path(request, 'groups', name)}/undo/{number}",
        )
        return redirect(self.path(request, "groups", name))

    async def undo(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../undo/{reset}: commit the offsets from before a reset, and delete those that were not committed."""
        name, number = request.values["group"], request.values["reset"]
        offsets = self.resets.find(request.cluster.name, name, int(number)) if number.isdecimal() else None
        if offsets is None:
            raise HttpRefusal(404, f"{name} has no reset {number}")
        _require_topics(request, offsets)
        admin = await request.cluster.admin()
        work = functools.partial(restore_offsets, admin, name, offsets)
        detail = {"after": shorten(_as_text(offsets))}
        done = f"{name} has the offsets from before the reset again."
        if await self.app.change(request, "undo reset", name, work, done=done, detail=detail):
            self.resets.mark_undone(int(number))
        return redirect(self.path(request, "groups", name))

    async def remove_member(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../remove-member: take one member out of the group."""
        name, member = request.values["group"], request.form("member")
        instance = request.form("instance")
        if not member and not instance:
            # Without a name all members would be removed.
            raise HttpRefusal(400, "Name the member")
        admin = await request.cluster.admin()
        who: dict[str, Any] = {"instance_ids": [instance]} if instance else {"member_ids": [member]}
        work = functools.partial(admin.remove_members, name, reason="removed in the console", **who)
        done = f"Removed {instance or member} from {name}; it joins again if it still runs."
        await self.app.change(request, "remove member", name, work, done=done, detail=who)
        return redirect(self.path(request, "groups", name))

    async def delete(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../delete: a group without members, with its offsets."""
        name = request.values["group"]
        if request.form("name") != name:
            raise HttpRefusal(400, f"Write {name} to confirm; nothing was changed")
        admin = await request.cluster.admin()
        work = functools.partial(admin.delete_groups, [name])
        if not await self.app.change(request, "delete group", name, work, done=f"Deleted {name}."):
            return redirect(self.path(request, "groups", name))
        return redirect(self.path(request, "groups"))


def _require_topics(request: ConsoleRequest, partitions: Iterable[TopicPartition]) -> None:
    """Refuse to move offsets in topics that are outside of the visitor's roles."""
    for topic in sorted({where.topic for where in partitions}):
        request.require(Action.GROUPS, topic)


def _list_targets(moves: Iterable[OffsetMove]) -> dict[TopicPartition, int]:
    return {TopicPartition(move.topic, move.partition): move.after for move in moves}


def _as_text(offsets: Mapping[TopicPartition, int | None]) -> dict[str, int | None]:
    return {f"{where.topic}-{where.partition}": offset for where, offset in sorted(offsets.items())}
