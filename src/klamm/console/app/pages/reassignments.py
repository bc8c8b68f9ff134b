"""GET .../reassignments: moves under way; plans to spread evenly, drain a broker or change replicas; POST them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.client.admin.replica_types import LogDirDescription, Reassignment
from klamm.client.core.reassign_plan import Placement, ReplicaMove, TooFewBrokers, plan_moves
from klamm.client.core.reassign_throttle import REPLICAS, clear_throttle, set_throttle
from klamm.client.errors import KafkaError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.audit import shorten
from klamm.console.core.commands import make_command
from klamm.console.core.move_progress import MoveProgress, list_progress
from klamm.console.core.roles import Action
from klamm.console.sign_reader import read_throttle
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.config_resources import ConfigResource
from klamm.model.config_sources import ConfigSource
from klamm.model.ids import TopicPartition
from klamm.model.units import format_size, parse_size_bytes, pluralize

_SHOWN_MAX: Final = 500
"""Partitions that a page lists; of a plan all are started."""
_KINDS: Final = ("balance", "drain", "copies")
_ABOUT: Final = ("reassignment",)
_TOPICS_PER_REQUEST: Final = 500


class ReassignmentPages(PageGroup):
    """Moving replicas."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/reassignments", self.show_moves, RouteRight(Action.VIEW))
        self.app.post("/c/{cluster}/reassignments", self.start, RouteRight(Action.CLUSTER))
        self.app.post("/c/{cluster}/reassignments/cancel", self.cancel, RouteRight(Action.CLUSTER))
        everywhere = RouteRight(Action.CLUSTER, everywhere=True)
        self.app.post("/c/{cluster}/reassignments/unthrottle", self.unthrottle, everywhere)

    async def show_moves(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../reassignments?plan=balance|drain|copies&broker=&topic=&copies=."""
        admin = await request.cluster.admin()
        moving = await admin.list_partition_reassignments()
        visible = set(request.visible({where.topic for where in moving}))
        moving = {where: move for where, move in moving.items() if where.topic in visible}
        progress = await self._read_progress(request, dict(sorted(moving.items())[:_SHOWN_MAX]))
        kind = request.text("plan")
        moves, failed = [], ""
        if kind in _KINDS:
            try:
                moves = self._plan(request, kind)
            except (TooFewBrokers, ValueError) as error:
                failed = str(error)
        target = request.cluster.cluster.command_target
        words = ["cluster", "drain", request.text("broker")] if kind == "drain" else ["cluster", "reassign"]
        if kind == "copies":
            words += [request.text("topic"), "--replication-factor", request.text("copies")]
        return self.app.page(
            request,
            "reassignments.html",
            title="Reassignment",
            section="reassignments",
            moving=progress,
            moving_total=len(moving),
            copied_now=sum(move.copied_bytes for move in progress),
            whole_bytes=sum(move.total_bytes for move in progress),
            throttle=await read_throttle(admin, request.sample),
            plan=kind,
            broker=request.text("broker"),
            topic_name=request.text("topic"),
            copies=request.text("copies"),
            moves=moves[:_SHOWN_MAX],
            total=len(moves),
            plan_hash=self.keep_plan(request, _ABOUT, _list_targets(moves)) if moves else "",
            copied_bytes=sum(move.copied_bytes for move in moves),
            failed=failed,
            command=make_command(target, *words) if kind else "",
        )

    async def _read_progress(
        self, request: ConsoleRequest, moving: Mapping[TopicPartition, Reassignment]
    ) -> list[MoveProgress]:
        """Return how much of each move is copied, by the log dirs of leaders and of brokers with new replicas."""
        topics = request.sample.topics
        leaders = {
            where: partition.leader
            for where in moving
            if where.topic in topics and (partition := topics[where.topic].partition(where.partition)) is not None
        }
        online = {broker.id for broker in request.sample.brokers if not broker.fenced}
        brokers = sorted({*leaders.values(), *(broker for move in moving.values() for broker in move.adding)} & online)
        log_dirs: dict[int, list[LogDirDescription]] = {}
        admin = await request.cluster.admin()
        for broker in brokers:
            try:
                log_dirs |= await admin.describe_log_dirs([broker], sorted({where.topic for where in moving}))
            except KafkaError:
                # Shown as not known: the moves themselves, and cancelling them, do not depend on it.
                continue
        return list_progress(moving, leaders, log_dirs)

    def _plan(self, request: ConsoleRequest, kind: str) -> list[ReplicaMove]:
        sample = request.sample
        racks = {broker.id: broker.rack for broker in sample.brokers if not broker.fenced}
        if kind == "drain":
            number = request.text("broker")
            if not number.isdecimal() or int(number) not in {broker.id for broker in sample.brokers}:
                raise ValueError("choose the broker to drain")
            racks.pop(int(number), None)
        topic_name = request.text("topic").strip()
        copies = None
        if kind == "copies":
            # Of all topics at once it would fill the disks.
            if topic_name not in sample.topics:
                raise ValueError("write the name of the topic whose replicas change")
            copies = request.number("copies", 0)
            if copies < 1:
                raise ValueError("write how many replicas each partition has then")
        if topic_name:
            request.require(Action.VIEW, topic_name)
        visible = set(request.visible(sample.topics))
        placements = [
            Placement(topic.name, partition.index, partition.replicas, partition.size_bytes or 0)
            for topic in sample.topics.values()
            for partition in topic.partitions
            if topic.name in visible and (not topic_name or topic.name == topic_name)
        ]
        return plan_moves(placements, racks, copies=copies, balance=kind == "balance")

    async def start(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../reassignments: begin the moves of the plan that was shown."""
        moves: dict[TopicPartition, list[int] | None] = dict(self.find_plan(request, _ABOUT))
        _require_topics(request, moves)
        throttle = request.form("throttle")
        if throttle:
            # The rate of a broker slows down the replicas of all topics.
            request.require_everywhere(Action.CLUSTER)
        if throttle and not await self._set_throttle(request, moves, throttle):
            # Nothing moves at full speed because its throttle was refused.
            return redirect(self.path(request, "reassignments"))
        await self._alter(request, "start reassignment", moves, f"{pluralize(len(moves), 'partition')} move now.")
        return redirect(self.path(request, "reassignments"))

    async def cancel(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../reassignments/cancel: one move, or with `all` every one; replicas go back to where they were."""
        admin = await request.cluster.admin()
        moving = await admin.list_partition_reassignments()
        if request.form("all") != "1":
            where = _parse_place(request.form("partition"))
            request.require(Action.CLUSTER, where.topic)
            if where not in moving:
                raise HttpRefusal(409, f"{where.topic}-{where.partition} does not move any more; nothing was changed")
            moving = {where: moving[where]}
        else:
            names = {where.topic for where in moving}
            allowed = set(request.visitor.visible(request.cluster.name, names, Action.CLUSTER))
            moving = {where: move for where, move in moving.items() if where.topic in allowed}
        if not moving:
            raise HttpRefusal(409, "No partition moves any more; nothing was changed")
        moves: dict[TopicPartition, list[int] | None] = dict.fromkeys(moving)
        await self._alter(request, "cancel reassignment", moves, f"Cancelled {pluralize(len(moves), 'move')}.")
        return redirect(self.path(request, "reassignments"))

    async def unthrottle(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../reassignments/unthrottle: copy as fast as possible again."""
        admin = await request.cluster.admin()
        topics = await self._list_throttled_topics(request)
        brokers = [broker.id for broker in request.sample.brokers if not broker.fenced]
        work = functools.partial(admin.alter_configs, clear_throttle(topics, brokers))
        await self.app.change(request, "remove throttle", "cluster", work, done="Removed the throttle.")
        return redirect(self.path(request, "reassignments"))

    async def _set_throttle(
        self, request: ConsoleRequest, moves: dict[TopicPartition, list[int] | None], text: str
    ) -> bool:
        try:
            rate = parse_size_bytes(text.removesuffix("/s"))
        except ValueError as error:
            raise HttpRefusal(400, f"throttle: {error}") from None
        if rate < 1:
            raise HttpRefusal(400, "throttle: write how many bytes per second a broker copies, such as 50MiB")
        topics = request.sample.topics
        replica_moves = [
            ReplicaMove(where.topic, where.partition, partition.replicas, tuple(replicas), 0)
            for where, replicas in moves.items()
            if replicas is not None and where.topic in topics
            for partition in (topics[where.topic].partition(where.partition),)
            if partition is not None
        ]
        brokers = [broker.id for broker in request.sample.brokers if not broker.fenced]
        admin = await request.cluster.admin()
        work = functools.partial(admin.alter_configs, set_throttle(replica_moves, brokers, rate))
        done = f"Each broker copies at most {format_size(rate)} a second, until the throttle is removed."
        return await self.app.change(request, "set throttle", "cluster", work, done=done, detail={"rate": rate})

    async def _list_throttled_topics(self, request: ConsoleRequest) -> list[str]:
        names, throttled = list(request.sample.topics), []
        admin = await request.cluster.admin()
        for begin in range(0, len(names), _TOPICS_PER_REQUEST):
            resources = [ConfigResource.topic(name) for name in names[begin : begin + _TOPICS_PER_REQUEST]]
            described = await admin.describe_configs(resources, keys=REPLICAS)
            throttled += [
                resource.name
                for resource, entries in described.items()
                if any(entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG for entry in entries.values())
            ]
        return throttled

    async def _alter(
        self, request: ConsoleRequest, action: str, moves: dict[TopicPartition, list[int] | None], done: str
    ) -> None:
        admin = await request.cluster.admin()
        detail: dict[str, Any] = {f"{where.topic}-{where.partition}": replicas for where, replicas in moves.items()}
        work = functools.partial(admin.alter_partition_reassignments, moves)
        await self.app.change(request, action, "cluster", work, done=done, detail=shorten(detail))


def _require_topics(request: ConsoleRequest, moves: Mapping[TopicPartition, object]) -> None:
    """Refuse moves of topics that are outside of the visitor's roles."""
    for topic in sorted({where.topic for where in moves}):
        request.require(Action.CLUSTER, topic)


def _parse_place(text: str) -> TopicPartition:
    """Parse `orders/3`."""
    topic, _, partition = text.rpartition("/")
    if not topic or not partition.isascii() or not partition.isdecimal() or len(partition) > 9:
        raise HttpRefusal(400, f"{text[:50]!r} is no partition; nothing was changed")
    return TopicPartition(topic, int(partition))


def _list_targets(moves: Iterable[ReplicaMove]) -> dict[TopicPartition, list[int] | None]:
    return {TopicPartition(move.topic, move.partition): list(move.after) for move in moves}
