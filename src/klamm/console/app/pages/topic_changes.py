"""Creating, growing, changing, emptying and deleting topics."""

from __future__ import annotations

import functools
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError, SomeFailed
from klamm.client.types import NewPartitions
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.commands import create_command
from klamm.console.core.roles import Action
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.config_resources import ConfigResource
from klamm.model.ids import TopicPartition
from klamm.model.topic_names import name_complaint
from klamm.model.units import parse_duration_ms, parse_size_bytes, pluralize

_CLONED_NOT: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Settings that name replicas of the topic they were set on."""


class TopicChangePages(PageGroup):
    """Changing topics."""

    def add_routes(self) -> None:
        """Serve these pages."""
        topic = RouteRight(Action.TOPICS, "topic")
        self.app.get("/c/{cluster}/new-topic", self.show_form, RouteRight(Action.TOPICS))
        self.app.post("/c/{cluster}/new-topic", self.create, RouteRight(Action.TOPICS))
        self.app.post("/c/{cluster}/topics/{topic}/grow", self.grow, topic)
        self.app.post("/c/{cluster}/topics/{topic}/settings", self.change_setting, topic)
        self.app.post("/c/{cluster}/topics/{topic}/empty", self.empty, topic)
        self.app.post("/c/{cluster}/topics/{topic}/delete", self.delete, topic)

    async def show_form(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../new-topic?clone=NAME: the form, with the values of another topic."""
        values: dict[str, Any] = {"name": "", "partitions": "", "replicas": "", "settings": ""}
        cloned = request.text("clone")
        if cloned and cloned in request.sample.topics:
            request.require(Action.VIEW, cloned)
            topic = request.sample.topics[cloned]
            admin = await request.cluster.admin()
            resource = ConfigResource.topic(cloned)
            entries = (await admin.describe_configs([resource]))[resource]
            own = [
                f"{entry.name}={entry.value}"
                for entry in entries.values()
                if entry.source.name == "DYNAMIC_TOPIC_CONFIG" and not entry.sensitive and entry.name not in _CLONED_NOT
            ]
            values = {
                "name": f"{cloned}-copy",
                "partitions": len(topic.partitions),
                "replicas": topic.replication_factor,
                "settings": "\n".join(own),
            }
        return self._form_page(request, values, "", cloned)

    async def create(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../new-topic; with `preview` the cluster only validates, and the command is shown."""
        name = request.form("name")
        values = {key: request.form(key) for key in ("name", "partitions", "replicas")}
        values["settings"] = request.form_raw("settings")
        try:
            # The name is in the form and not in the path, so that the right is checked here.
            request.require(Action.TOPICS, name)
            complaint = name_complaint(name)
            if complaint:
                raise ValueError(f"{name!r} is no name of a topic: {complaint}")
            partitions, replicas = request.form_number("partitions"), request.form_number("replicas")
            configs = parse_settings(request.form_raw("settings"))
        except (ValueError, HttpRefusal) as error:
            return self._form_page(request, values, str(error), status=400)
        admin = await request.cluster.admin()
        work = functools.partial(admin.create_topic, name, partitions or -1, replicas or -1, configs=configs)
        if request.form("preview"):
            complaint = await _try(work(validate_only=True))
            command = create_command(request.cluster.cluster.command_target, name, partitions, replicas, configs)
            return self._form_page(request, values, complaint, "", "" if complaint else command)
        detail = {"partitions": partitions, "replicas": replicas, "configs": configs}
        if not await self.app.change(request, "create topic", name, work, done=f"Created {name}.", detail=detail):
            return self._form_page(request, values, "", status=409)
        return redirect(self.path(request, "topics", name))

    def _form_page(
        self,
        request: ConsoleRequest,
        values: dict[str, Any],
        failed: str,
        cloned: str = "",
        command: str = "",
        status: int = 200,
    ) -> HttpResponse:
        return self.app.page(
            request,
            "topic_new.html",
            status,
            title="New topic",
            section="topics",
            values=values,
            failed=failed,
            cloned=cloned,
            command=command,
        )

    async def grow(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../grow: more partitions."""
        name = request.values["topic"]
        count = request.form_number("partitions") or 0
        admin = await request.cluster.admin()
        work = functools.partial(admin.create_partitions, {name: NewPartitions(count)})
        size = pluralize(count, "partition")
        done = f"{name} has {size} now. Keys of new records may go to other partitions than before."
        await self.app.change(request, "add partitions", name, work, done=done, detail={"partitions": count})
        return redirect(self.path(request, "topics", name))

    async def change_setting(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../settings: set one setting, or reset it to its default."""
        topic, name = request.values["topic"], request.form("setting")
        reset = bool(request.form("reset"))
        try:
            value = None if reset else to_wire(name, request.form("value"))
        except ValueError as error:
            raise HttpRefusal(400, f"{name}: {error}") from None
        admin = await request.cluster.admin()
        before = await _read_own_value(admin, topic, name)
        work = functools.partial(admin.alter_configs, {ConfigResource.topic(topic): {name: value}})
        done = f"{name} has its default again." if reset else f"{name} is {value} now."
        await self.app.change(
            request,
            "change setting",
            topic,
            work,
            done=done,
            detail={"setting": name, "before": before, "value": value},
        )
        return redirect(self.path(request, "topics", topic, "settings"))

    async def empty(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../empty: delete all records, keep the topic."""
        name = request.values["topic"]
        self._check_name(request, name)
        admin = await request.cluster.admin()
        partitions = await admin.partitions_of(name)
        # -1 is the high watermark: everything that consumers could read.
        before: dict[TopicPartition, int] = dict.fromkeys(partitions, -1)
        work = functools.partial(admin.delete_records, before)
        await self.app.change(request, "empty topic", name, work, done=f"Deleted all records of {name}.")
        return redirect(self.path(request, "topics", name))

    async def delete(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../delete."""
        name = request.values["topic"]
        self._check_name(request, name)
        admin = await request.cluster.admin()
        work = functools.partial(admin.delete_topics, [name])
        if not await self.app.change(request, "delete topic", name, work, done=f"Deleted {name}."):
            return redirect(self.path(request, "topics", name))
        return redirect(self.path(request, "topics"))

    def _check_name(self, request: ConsoleRequest, name: str) -> None:
        """Refuse what destroys records unless the name was typed: a click must not be enough."""
        if request.form("name") != name:
            raise HttpRefusal(400, f"Write {name} to confirm; nothing was changed")


async def _read_own_value(admin: AsyncAdmin, topic: str, name: str) -> str | None:
    """Return the value that a topic has of its own, for the history; None for the cluster's."""
    resource = ConfigResource.topic(topic)
    try:
        entry = (await admin.describe_configs([resource], keys=[name]))[resource].get(name)
    except (KafkaError, SomeFailed):
        # The change itself says what is wrong.
        return ""
    if entry is None or entry.source.name != "DYNAMIC_TOPIC_CONFIG":
        return None
    return "" if entry.sensitive else entry.value


async def _try(work: Any) -> str:
    """Return the complaint of the cluster; empty when it has none."""
    try:
        await work
    except (KafkaError, SomeFailed) as error:
        return str(error)
    return ""


def parse_settings(text: str) -> dict[str, str]:
    """Parse lines of KEY=VALUE, with units; ValueError shows the line."""
    settings = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{line.strip()!r} is no setting; write one such as retention.ms=7d")
        settings[name.strip()] = to_wire(name.strip(), value.strip())
    return settings


def to_wire(name: str, value: str) -> str:
    """Return a value with its units as numbers: `7d` of a setting in milliseconds."""
    if value.removeprefix("-").isdecimal():
        return value
    if name.endswith(".ms"):
        return str(parse_duration_ms(value))
    return str(parse_size_bytes(value)) if name.endswith(".bytes") else value
