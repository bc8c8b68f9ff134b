"""Streams groups of Kafka 4 (KIP-1071): their topology, their members and the tasks of these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.cluster_types import Node
from klamm.client.admin.group_descriptions import GroupDescriptionsAdmin, fetch_group
from klamm.client.admin.group_types import (
    GroupDescription,
    MemberDescription,
    StreamsTasks,
    StreamsTopology,
    Subtopology,
)
from klamm.client.types import TopicPartition
from klamm.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest

if TYPE_CHECKING:
    from klamm.client.admin.transport import AdminConnection


class StreamsGroupsAdmin(GroupDescriptionsAdmin):
    """Requests about streams groups."""

    async def describe_streams_groups(
        self, group_ids: Iterable[str], *, authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Streams groups with topology, members and tasks; GroupNotFoundError for a group that is none."""

        async def describe(connection: AdminConnection, coordinator: Node, name: str) -> GroupDescription:
            request = StreamsGroupDescribeRequest(group_ids=[name], include_authorized_operations=authorized_operations)
            return _build_description(await fetch_group(connection, request), coordinator)

        return await self._describe_with(describe, group_ids, "describe_streams_groups")


def _build_description(group: Any, node: Node) -> GroupDescription:
    topology = None if group.topology is None else _topology(group.topology)
    inputs = {
        part.subtopology_id: (*part.source_topics, *part.repartition_source_topics)
        for part in (() if topology is None else topology.subtopologies)
    }
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            tuple(
                sorted(
                    TopicPartition(topic, partition)
                    for task in member.assignment.active_tasks
                    for topic in inputs.get(task.subtopology_id, ())
                    for partition in task.partitions
                )
            ),
            member.rack_id,
            member.member_epoch,
            subscription=tuple(sorted({topic for topics in inputs.values() for topic in topics})),
            # A member that still uses the classic protocol, in a group that is being upgraded.
            upgraded=not member.is_classic,
            tasks=StreamsTasks(
                _names(member.assignment.active_tasks),
                _names(member.assignment.standby_tasks),
                _names(member.assignment.warmup_tasks),
            ),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        "streams",
        "streams",
        group.group_state,
        "",
        node,
        members,
        group.group_epoch,
        group.assignment_epoch,
        operations(group.authorized_operations),
        topology,
    )


def _topology(topology: Any) -> StreamsTopology:
    return StreamsTopology(
        topology.epoch,
        tuple(
            Subtopology(
                part.subtopology_id,
                tuple(part.source_topics),
                tuple(topic.name for topic in part.repartition_source_topics),
                tuple(part.repartition_sink_topics),
                tuple(topic.name for topic in part.state_changelog_topics),
            )
            for part in topology.subtopologies or ()
        ),
    )


def _names(tasks: Any) -> tuple[str, ...]:
    return tuple(f"{task.subtopology_id}_{partition}" for task in tasks for partition in sorted(task.partitions))
