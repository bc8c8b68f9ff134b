"""Share groups of Kafka 4 (KIP-932): their members, and where they begin in each partition."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.base import AdminBase
from klamm.client.admin.cluster_types import Node
from klamm.client.admin.group_types import GroupDescription, MemberDescription, ShareGroupOffset
from klamm.client.core.arguments import texts
from klamm.client.core.routing import ADMIN, GROUP_COORDINATOR
from klamm.client.errors import raise_for
from klamm.client.types import TopicPartition
from klamm.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from klamm.protocol.messages.share_group_describe import ShareGroupDescribeRequest


class ShareGroupsAdmin(AdminBase):
    """Requests about share groups."""

    async def describe_share_groups(
        self, group_ids: Iterable[str], *, authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Share groups and their members; GroupNotFoundError for a group that is none."""
        wanted = texts(group_ids, "describe_share_groups")
        return await self._for_each(wanted, functools.partial(self._describe_share, authorized=authorized_operations))

    async def _describe_share(self, name: str, authorized: bool) -> GroupDescription:
        async def once() -> GroupDescription:
            coordinator = await self.cluster.find_coordinator(GROUP_COORDINATOR, name)
            connection = await self.cluster.connect(coordinator.host, coordinator.port, ADMIN)
            request = ShareGroupDescribeRequest(group_ids=[name], include_authorized_operations=authorized)
            group = (await connection.request(request)).groups[0]
            raise_for(group.error_code, group.error_message or name)
            return _described(group, Node(coordinator.node_id, coordinator.host, coordinator.port))

        return await self._retrying(once)

    async def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareGroupOffset]:
        """Where a share group begins in each partition that it has read; records after it may be acknowledged."""
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]
        )

        def check(response: Any) -> None:
            raise_for(response.groups[0].error_code, response.groups[0].error_message or group_id)

        response = await self._send_to_group_coordinator(group_id, request, check)
        return {
            TopicPartition(topic.topic_name, partition.partition_index): ShareGroupOffset(
                partition.start_offset, partition.lag if partition.lag >= 0 else None
            )
            for topic in response.groups[0].topics
            for partition in topic.partitions
            # Without a start offset the group has not begun there.
            if not partition.error_code and partition.start_offset >= 0
        }


def _described(group: Any, node: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            None,
            member.client_id,
            member.client_host.lstrip("/"),
            tuple(
                sorted(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                )
            ),
            member.rack_id,
            member.member_epoch,
            subscription=tuple(member.subscribed_topic_names),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        "share",
        "share",
        group.group_state,
        group.assignor_name,
        node,
        members,
        group.group_epoch,
        group.assignment_epoch,
        operations(group.authorized_operations),
    )
