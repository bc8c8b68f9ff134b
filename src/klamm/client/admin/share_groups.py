"""Share groups of Kafka 4 (KIP-932): their members, and where they begin in each partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.cluster_types import Node
from klamm.client.admin.group_descriptions import GroupDescriptionsAdmin, fetch_group, list_partitions
from klamm.client.admin.group_types import GroupDescription, MemberDescription, ShareGroupOffset
from klamm.client.errors import raise_for
from klamm.client.types import TopicPartition
from klamm.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from klamm.protocol.messages.share_group_describe import ShareGroupDescribeRequest

if TYPE_CHECKING:
    from klamm.client.admin.transport import AdminConnection


class ShareGroupsAdmin(GroupDescriptionsAdmin):
    """Requests about share groups."""

    async def describe_share_groups(
        self, group_ids: Iterable[str], *, authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Share groups and their members; GroupNotFoundError for a group that is none."""

        async def describe(connection: AdminConnection, coordinator: Node, name: str) -> GroupDescription:
            request = ShareGroupDescribeRequest(group_ids=[name], include_authorized_operations=authorized_operations)
            return _build_description(await fetch_group(connection, request), coordinator)

        return await self._describe_with(describe, group_ids, "describe_share_groups")

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


def _build_description(group: Any, node: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            None,
            member.client_id,
            member.client_host.lstrip("/"),
            list_partitions(member.assignment.topic_partitions),
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
