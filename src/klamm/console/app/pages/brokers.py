"""GET .../brokers, .../brokers/{broker}: brokers, disks, the quorum, whether one may restart; POST settings, elect."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from klamm.client.admin.cluster_types import QuorumDescription
from klamm.client.admin.config_types import ConfigEntry
from klamm.client.admin.replica_types import ElectionType
from klamm.client.errors import KafkaError, SomeFailed, UnsupportedVersionError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.topic_changes import to_wire
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.broker_settings import plan_setting, read_own_value
from klamm.console.core.config_rows import list_config_rows
from klamm.console.core.restarts import check_restart, check_restarts
from klamm.console.core.roles import Action
from klamm.console.core.samples import BrokerSample
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.ids import TopicPartition
from klamm.model.units import pluralize

_MINIMUMS_WAIT_S: Final = 0.3
"""How long a page waits for settings of topics; of 10,000 topics it shows those that are known."""


class BrokerPages(PageGroup):
    """Brokers and the controller quorum."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/brokers", self.list_brokers, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/brokers/{broker}", self.show_broker, RouteRight(Action.VIEW))
        everywhere = RouteRight(Action.CLUSTER, everywhere=True)
        self.app.post("/c/{cluster}/brokers/{broker}/settings", self.change_setting, everywhere)
        self.app.post("/c/{cluster}/elect", self.elect, RouteRight(Action.CLUSTER))

    async def list_brokers(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../brokers."""
        sample = request.sample
        quorum, quorum_error, has_quorum = await self._describe_quorum(request)
        # DescribeCluster of a cluster with a quorum names any broker: it forwards to the controller.
        controller = quorum.leader_id if quorum is not None else None if has_quorum else sample.controller_id
        moved = self._list_moved(request)
        minimums = await self._read_minimums(request)
        return self.app.page(
            request,
            "brokers.html",
            title="Brokers",
            section="brokers",
            controller=controller,
            quorum=quorum,
            quorum_error=quorum_error,
            moved=len(moved),
            restarts=check_restarts(sample, quorum, minimums, request.visible),
        )

    async def show_broker(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../brokers/{broker}?q=&edit=: its settings and disks."""
        broker = self._find_broker(request)
        number = str(broker.id)
        entries: dict[str, Any] = {}
        failed = ""
        if not broker.fenced:
            resource = ConfigResource(ResourceType.BROKER, number)
            try:
                admin = await request.cluster.admin()
                described = await admin.describe_configs([resource], synonyms=True, documentation=True)
                entries = described[resource]
            except KafkaError as error:
                failed = str(error)
        rows = list_config_rows(entries)
        search = request.text("q").lower()
        quorum, _, _ = await self._describe_quorum(request)
        return self.app.page(
            request,
            "broker.html",
            title=f"Broker {number}",
            section="brokers",
            broker=broker,
            rows=[row for row in rows if search in row.name or (row.is_own and not search)] if search else rows,
            search=search,
            all_rows=rows,
            edited=next((row for row in rows if row.name == request.text("edit") and not row.read_only), None),
            failed=failed,
            restart=check_restart(
                request.sample, broker.id, quorum, await self._read_minimums(request), request.visible
            ),
        )

    async def change_setting(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../settings: one setting of a broker, or of all; with `preview` the cluster only validates it."""
        broker, name, scope = self._find_broker(request), request.form("setting"), request.form("scope")
        is_reset, of_all = bool(request.form("reset")), scope == "all"
        if not name:
            raise HttpRefusal(400, "Name the setting; nothing was changed")
        try:
            value = None if is_reset else to_wire(name, request.form("value"))
        except ValueError as error:
            raise HttpRefusal(400, f"{name}: {error}") from None
        admin = await request.cluster.admin()
        work = functools.partial(
            admin.alter_configs, {ConfigResource.broker("" if of_all else broker.id): {name: value}}
        )
        entries = await self._read_setting(request, name)
        if entries and not any(entries.values()):
            # Brokers take settings that they do not know, for plugins.
            raise HttpRefusal(400, f"No broker knows the setting {name}; nothing was changed")
        changed = None if of_all else broker.id
        if request.form("preview"):
            return self.app.page(
                request,
                "broker_setting.html",
                title=f"{name} of {'all brokers' if of_all else f'broker {broker.id}'}",
                section="brokers",
                broker=broker.id,
                setting=name,
                value=value or "",
                scope=scope,
                reset=is_reset,
                plan=plan_setting(entries, changed, value),
                failed=await _try(work(validate_only=True)),
            )
        place = "all brokers" if of_all else f"broker {broker.id}"
        is_secret = any(entry is not None and entry.sensitive for entry in entries.values())
        detail = {
            "setting": name,
            "before": read_own_value((entries.get(broker.id),), changed),
            "value": "[hidden]" if is_secret and value is not None else value,
        }
        # Not the value: that of a secret must not be on the page.
        done = f"Took back {name} of {place}." if is_reset else f"Changed {name} of {place}."
        await self.app.change(request, "change broker setting", place, work, done=done, detail=detail)
        return redirect(self.path(request, "brokers", str(broker.id)))

    async def _read_setting(self, request: ConsoleRequest, name: str) -> dict[int, ConfigEntry | None]:
        """Return the setting on each broker that answers; None where it has none of this name."""
        brokers = [broker.id for broker in request.sample.brokers if not broker.fenced]
        admin = await request.cluster.admin()
        try:
            described = await admin.describe_configs(map(ConfigResource.broker, brokers), keys=[name], synonyms=True)
        except SomeFailed as error:
            described = error.results
        return {
            broker: described[resource].get(name)
            for broker in brokers
            if (resource := ConfigResource.broker(broker)) in described
        }

    def _find_broker(self, request: ConsoleRequest) -> BrokerSample:
        number = request.values["broker"]
        broker = next((broker for broker in request.sample.brokers if str(broker.id) == number), None)
        if broker is None:
            raise HttpRefusal(404, f"There is no broker {number}")
        return broker

    async def _read_minimums(self, request: ConsoleRequest) -> Mapping[str, int]:
        admin = await request.cluster.admin()
        return await request.cluster.insync_minimums.read(admin, list(request.sample.topics), _MINIMUMS_WAIT_S)

    async def _describe_quorum(self, request: ConsoleRequest) -> tuple[QuorumDescription | None, str, bool]:
        """Return the quorum, or why it is not known, and whether there is one."""
        try:
            admin = await request.cluster.admin()
            return await admin.describe_quorum(), "", True
        except UnsupportedVersionError as error:
            # Clusters with ZooKeeper have no quorum.
            return None, str(error), False
        except KafkaError as error:
            # Without the right to describe the cluster.
            return None, str(error), True

    def _list_moved(self, request: ConsoleRequest) -> list[TopicPartition]:
        """Partitions that another than the preferred replica leads, and whose preferred one could.

        Those of topics that the visitor may act on, or see.
        """
        action = Action.CLUSTER if request.may(Action.CLUSTER) else Action.VIEW
        allowed = set(request.visitor.visible(request.cluster.name, request.sample.topics, action))
        return [
            TopicPartition(topic.name, index)
            for topic in request.sample.topics.values()
            for index, leader, replicas, isr in topic.layouts()
            if topic.name in allowed and replicas and leader != replicas[0] and replicas[0] in isr
        ]

    async def elect(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../elect: give partitions their preferred leader back."""
        moved = self._list_moved(request)
        if not moved:
            raise HttpRefusal(409, "All partitions have their preferred leader")
        admin = await request.cluster.admin()
        work = functools.partial(admin.elect_leaders, moved, ElectionType.PREFERRED)
        done = f"Elected the preferred leaders of {pluralize(len(moved), 'partition')}."
        await self.app.change(request, "elect leaders", "cluster", work, done=done, detail={"partitions": len(moved)})
        return redirect(self.path(request, "brokers"))


async def _try(work: Awaitable[object]) -> str:
    """Return the complaint of the cluster; empty when it has none."""
    try:
        await work
    except (KafkaError, SomeFailed) as error:
        return str(error)
    return ""
