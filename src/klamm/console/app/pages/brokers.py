"""GET .../brokers, .../brokers/{broker}: brokers, disks, the quorum, whether one may restart; POST elect."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from klamm.client.admin.cluster_types import QuorumDescription
from klamm.client.admin.replica_types import ElectionType
from klamm.client.errors import KafkaError, UnsupportedVersionError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.config_rows import list_config_rows
from klamm.console.core.restarts import check_restart, check_restarts
from klamm.console.core.roles import Action
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
        """GET .../brokers/{broker}: its settings and disks."""
        number = request.values["broker"]
        broker = next((broker for broker in request.sample.brokers if str(broker.id) == number), None)
        if broker is None:
            raise HttpRefusal(404, f"There is no broker {number}")
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
            failed=failed,
            restart=check_restart(
                request.sample, broker.id, quorum, await self._read_minimums(request), request.visible
            ),
        )

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
