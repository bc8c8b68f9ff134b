"""Groups: their members, their committed offsets, and changing both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.base import Outcomes, by_topic
from klamm.client.admin.cluster_types import Node
from klamm.client.admin.group_descriptions import GroupDescriptionsAdmin, fetch_group, list_partitions
from klamm.client.admin.group_types import GroupDescription, GroupListing, MemberDescription
from klamm.client.core.arguments import by_place, places, texts
from klamm.client.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    UnsupportedVersionError,
    error_for,
    raise_for,
)
from klamm.client.types import OffsetAndMetadata, TopicPartition
from klamm.model.errors import ErrorCode, RemoteProtocolError
from klamm.protocol.codec import decode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from klamm.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.list_groups import ListGroupsRequest
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

if TYPE_CHECKING:
    from klamm.client.admin.transport import AdminConnection

_OFFSET_COMMIT_BY_NAME = 9
_OFFSET_FETCH_BY_NAME = 9
"""The newest versions that name topics; later ones have topic ids, and an admin is given names."""


class GroupsAdmin(GroupDescriptionsAdmin):
    """Requests about groups."""

    async def list_groups(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """All groups of all coordinators, by name, those of some states or types only when given."""
        request = ListGroupsRequest(
            states_filter=texts(states, "list_groups, states"), types_filter=texts(types, "list_groups, types")
        )
        responses = await self._send_to_brokers(await self._broker_ids(), request)
        groups = [
            GroupListing(group.group_id, group.group_type, group.protocol_type, group.group_state, broker)
            for broker, response in responses.items()
            for group in response.groups
        ]
        return sorted(groups, key=attrgetter("group_id"))

    async def describe_groups(
        self, group_ids: Iterable[str], *, authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Groups of consumers with either protocol; GroupNotFoundError for one that does not exist.

        Those of other types have methods of their own: `describe_share_groups`, `describe_streams_groups`.
        """

        async def describe(connection: AdminConnection, coordinator: Node, name: str) -> GroupDescription:
            missing = None
            try:
                request = ConsumerGroupDescribeRequest(
                    group_ids=[name], include_authorized_operations=authorized_operations
                )
                return _build_consumer_description(await fetch_group(connection, request), coordinator)
            except GroupNotFoundError as error:
                missing = error.detail
            except UnsupportedVersionError:
                pass
            classic = DescribeGroupsRequest(groups=[name], include_authorized_operations=authorized_operations)
            old = (await connection.request(classic)).groups[0]
            # The message about a missing group is in either response, depending on the version of the broker.
            raise_for(old.error_code, missing or old.error_message or name)
            # Before version 6 DescribeGroups reports a missing group as Dead, without an error (KIP-1043).
            if old.group_state == "Dead":
                raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, missing or f"there is no group {name}")
            return _build_classic_description(old, coordinator)

        return await self._describe_with(describe, group_ids, "describe_groups")

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Remove groups that have no members, with their offsets."""
        wanted = texts(group_ids, "delete_groups")

        async def delete(name: str) -> None:
            def check(response: Any) -> None:
                raise_for(response.results[0].error_code, name)

            await self._send_to_group_coordinator(name, DeleteGroupsRequest(groups_names=[name]), check)

        await self._for_each(wanted, delete)

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, everywhere or for some partitions; those without an offset are left out."""
        by_name = None if partitions is None else by_topic(places(partitions, "list_group_offsets"))
        topics = (
            None
            if by_name is None
            else [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in by_name.items()]
        )
        # Versions before 8 have the topics of one group at the top level; the codec leaves out what a version lacks.
        old_topics = (
            None
            if by_name is None
            else [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in by_name.items()]
        )
        request = OffsetFetchRequest(
            group_id=group_id,
            topics=old_topics,
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)],
            require_stable=require_stable,
        )

        def check(response: Any) -> None:
            group = response.groups[0] if response.groups else response
            raise_for(group.error_code, group_id)
            for topic in group.topics:
                for partition in topic.partitions:
                    raise_for(partition.error_code, f"{topic.name}-{partition.partition_index}")

        response = await self._send_to_group_coordinator(group_id, request, check, _OFFSET_FETCH_BY_NAME)
        group = response.groups[0] if response.groups else response
        return {
            TopicPartition(topic.name, partition.partition_index): OffsetAndMetadata(
                partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
            )
            for topic in group.topics
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members; GroupNotEmptyError when it has any."""
        wanted = {
            where: position if isinstance(position, OffsetAndMetadata) else OffsetAndMetadata(position)
            for where, position in by_place(offsets, "alter_group_offsets").items()
        }
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=wanted[TopicPartition(topic, partition)].offset,
                            committed_leader_epoch=wanted[TopicPartition(topic, partition)].leader_epoch,
                            committed_metadata=wanted[TopicPartition(topic, partition)].metadata,
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in by_topic(wanted).items()
            ],
        )
        outcomes = Outcomes()

        def check(response: Any) -> None:
            # The request may be retried, and only the last response counts.
            outcomes.results.clear()
            outcomes.failures.clear()
            for topic in response.topics:
                for partition in topic.partitions:
                    # A commit without a member id is refused so while the group has members.
                    if partition.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                        raise GroupNotEmptyError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members; stop them first")
                    outcomes.add(TopicPartition(topic.name, partition.partition_index), partition.error_code)

        await self._send_to_group_coordinator(group_id, request, check, _OFFSET_COMMIT_BY_NAME)
        outcomes.results_or_raise()

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's offsets of partitions it is not subscribed to."""
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for name, indexes in by_topic(places(partitions, "delete_group_offsets")).items()
            ],
        )
        outcomes = Outcomes()

        def check(response: Any) -> None:
            raise_for(response.error_code, group_id)
            for topic in response.topics:
                for partition in topic.partitions:
                    outcomes.add(TopicPartition(topic.name, partition.partition_index), partition.error_code)

        await self._send_to_group_coordinator(group_id, request, check)
        outcomes.results_or_raise()

    async def remove_members(
        self, group_id: str, *, instance_ids: Iterable[str] = (), member_ids: Iterable[str] = (), reason: str = ""
    ) -> None:
        """Take members out of a group, static ones by their instance id; without any, all of them."""
        static = texts(instance_ids, "remove_members, instance_ids")
        dynamic = texts(member_ids, "remove_members, member_ids")
        members = [MemberIdentity(member_id="", group_instance_id=instance_id, reason=reason) for instance_id in static]
        members += [MemberIdentity(member_id=member_id, reason=reason) for member_id in dynamic]
        if not members:
            group = (await self.describe_groups([group_id]))[group_id]
            members = [
                MemberIdentity(
                    member_id="" if member.instance_id else member.member_id,
                    group_instance_id=member.instance_id,
                    reason=reason,
                )
                for member in group.members
            ]
        outcomes = Outcomes()

        def check(response: Any) -> None:
            raise_for(response.error_code, group_id)
            for member in response.members:
                outcomes.add(member.group_instance_id or member.member_id, member.error_code)

        if members:
            await self._send_to_group_coordinator(
                group_id, LeaveGroupRequest(group_id=group_id, members=members), check
            )
        outcomes.results_or_raise()


def _build_consumer_description(group: Any, node: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            # Brokers write the host as Java prints an InetAddress, with a slash.
            member.client_host.lstrip("/"),
            list_partitions(member.assignment.topic_partitions),
            member.rack_id,
            member.member_epoch,
            list_partitions(member.target_assignment.topic_partitions),
            tuple(member.subscribed_topic_names),
            None if member.member_type == -1 else member.member_type == 1,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        "consumer",
        "consumer",
        group.group_state,
        group.assignor_name,
        node,
        members,
        group.group_epoch,
        group.assignment_epoch,
        operations(group.authorized_operations),
    )


def _build_classic_description(group: Any, node: Node) -> GroupDescription:
    of_consumers = group.protocol_type in ("consumer", "")
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            parse_assignment(member.member_assignment) if of_consumers else (),
            subscription=parse_subscription(member.member_metadata) if of_consumers else (),
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        "classic",
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        node,
        members,
        authorized_operations=operations(group.authorized_operations),
    )


def parse_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """A classic member's assignment; nothing when it is not a consumer's."""
    if len(data) < 2:
        return ()
    try:
        assignment, _ = decode(ConsumerProtocolAssignment, min(int.from_bytes(data[:2], "big"), 3), data, 2)
    except RemoteProtocolError:
        return ()
    return tuple(
        sorted(
            TopicPartition(topic.topic, partition)
            for topic in assignment.assigned_partitions
            for partition in topic.partitions
        )
    )


def parse_subscription(data: bytes) -> tuple[str, ...]:
    """A classic member's topics; nothing when it is not a consumer."""
    if len(data) < 2:
        return ()
    try:
        subscription, _ = decode(ConsumerProtocolSubscription, min(int.from_bytes(data[:2], "big"), 3), data, 2)
    except RemoteProtocolError:
        return ()
    return tuple(subscription.topics)
