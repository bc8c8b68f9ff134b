"""What the descriptions of consumer, share and streams groups share: one request per group, to its coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from klamm.client.admin.base import AdminBase
from klamm.client.admin.cluster_types import Node
from klamm.client.admin.group_types import GroupDescription
from klamm.client.core.arguments import texts
from klamm.client.core.routing import ADMIN, GROUP_COORDINATOR
from klamm.client.errors import raise_for
from klamm.client.types import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.transport import AdminConnection

DescribeGroup = Callable[["AdminConnection", Node, str], Awaitable[GroupDescription]]
"""Describes one group: by the connection to its coordinator, the coordinator and the group's id."""


class GroupDescriptionsAdmin(AdminBase):
    """Requests that describe groups of one kind."""

    async def _describe_with(
        self, describe: DescribeGroup, group_ids: Iterable[str], method: str
    ) -> dict[str, GroupDescription]:
        """Describe all groups at once; `method` is named when `group_ids` are none."""

        async def describe_one(name: str) -> GroupDescription:
            async def once() -> GroupDescription:
                coordinator = await self.cluster.find_coordinator(GROUP_COORDINATOR, name)
                connection = await self.cluster.connect(coordinator.host, coordinator.port, ADMIN)
                return await describe(connection, Node(coordinator.node_id, coordinator.host, coordinator.port), name)

            return await self._retrying(once)

        return await self._for_each(texts(group_ids, method), describe_one)


async def fetch_group(connection: AdminConnection, request: Any) -> Any:
    """The one group of a describe request; its error is raised."""
    group = (await connection.request(request)).groups[0]
    raise_for(group.error_code, group.error_message or request.group_ids[0])
    return group


def list_partitions(topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment, sorted."""
    return tuple(sorted(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions))
