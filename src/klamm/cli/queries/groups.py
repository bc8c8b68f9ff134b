"""Groups as Kafka's tools show them: members with what they have and shall have, epochs, offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from klamm.cli.queries.topics import check
from klamm.client.blocking_cluster import GROUP, BlockingCluster, BlockingConnection
from klamm.client.groups import OFFSET_COMMIT_VERSION, OFFSET_FETCH_VERSION, Place, _assigned
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


@dataclass(frozen=True, slots=True)
class Member:
    """One member; epochs and targets are None in a classic group."""

    id: str
    instance_id: str | None
    host: str
    client_id: str
    assigned: list[Place]
    epoch: int | None = None
    target: list[Place] | None = None
    upgraded: bool | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One group; `committed` is offset and leader epoch by partition."""

    name: str
    state: str
    assignor: str
    coordinator_id: int
    coordinator_host: str
    coordinator_port: int
    members: list[Member]
    epoch: int | None = None
    target_epoch: int | None = None
    committed: dict[Place, tuple[int, int]] = field(default_factory=dict)


def describe_or_none(cluster: BlockingCluster, name: str) -> Group | None:
    """The group, or None when there is none."""
    try:
        return describe(cluster, name)
    except KlammError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def describe(cluster: BlockingCluster, name: str) -> Group:
    """Everything about a group, of either protocol; KlammError when there is none."""
    from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest

    coordinator = cluster.coordinator(GROUP, name)
    asked = cluster.ask(FindCoordinatorRequest(key=name, key_type=GROUP, coordinator_keys=[name]))
    found = asked.coordinators[0] if asked.coordinators else asked
    where = found.node_id, found.host, found.port
    group = _consumer(coordinator, name, where)
    if not isinstance(group, Group):
        group = _classic(coordinator, name, where, group)
    group.committed.update(_committed(coordinator, name))
    return group


def _consumer(coordinator: BlockingConnection, name: str, where: tuple[int, str, int]) -> Group | str | None:
    """The group, or what was said of one that is not there."""
    from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest

    try:
        answer = coordinator.ask(ConsumerGroupDescribeRequest(group_ids=[name])).groups[0]
    except KlammError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return str(answer.error_message or "")
    check(answer.error_code, answer.error_message)
    members = []
    for member in answer.members:
        owned = [(t.topic_name, i) for t in member.assignment.topic_partitions for i in t.partitions]
        target = [(t.topic_name, i) for t in member.target_assignment.topic_partitions for i in t.partitions]
        kind = getattr(member, "member_type", -1)
        members.append(
            Member(
                member.member_id,
                member.instance_id,
                member.client_host,
                member.client_id,
                owned,
                member.member_epoch,
                target,
                None if kind == -1 else kind == 1,
            )
        )
    return Group(
        name, answer.group_state, answer.assignor_name, *where, members, answer.group_epoch, answer.assignment_epoch
    )


def _classic(coordinator: BlockingConnection, name: str, where: tuple[int, str, int], said: str | None) -> Group:
    from klamm.protocol.messages.describe_groups import DescribeGroupsRequest

    answer = coordinator.ask(DescribeGroupsRequest(groups=[name])).groups[0]
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND or answer.group_state == "Dead":
        raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND, said or answer.error_message or f"Group {name} not found.")
    check(answer.error_code, answer.error_message)
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_host,
            member.client_id,
            _assigned(member.member_assignment) if answer.protocol_type == "consumer" else [],
        )
        for member in answer.members
    ]
    return Group(name, answer.group_state, answer.protocol_data, *where, members)


def _committed(coordinator: BlockingConnection, name: str) -> dict[Place, tuple[int, int]]:
    group = OffsetFetchRequestGroup(group_id=name, topics=None)
    answer = coordinator.ask(OffsetFetchRequest(groups=[group]), OFFSET_FETCH_VERSION).groups[0]
    check(answer.error_code)
    return {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.committed_leader_epoch)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def commit(cluster: BlockingCluster, name: str, goals: Mapping[Place, int]) -> None:
    """Give a group without members new offsets."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, partition), offset in goals.items():
        topics.setdefault(topic, OffsetCommitRequestTopic(name=topic)).partitions.append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        )
    if not topics:
        return
    request = OffsetCommitRequest(group_id=name, topics=list(topics.values()))
    answer = cluster.coordinator(GROUP, name).ask(request, OFFSET_COMMIT_VERSION)
    for each in answer.topics:
        for part in each.partitions:
            check(part.error_code)


def delete_offsets(
    cluster: BlockingCluster, name: str, places: Iterable[Place]
) -> tuple[ErrorCode, dict[Place, ErrorCode]]:
    """Forget committed offsets; the group's error, and what became of each."""
    from klamm.protocol.messages.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    topics: dict[str, OffsetDeleteRequestTopic] = {}
    results: dict[Place, ErrorCode] = {}
    for topic, partition in places:
        if partition < 0:
            results[topic, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic)).partitions.append(
            OffsetDeleteRequestPartition(partition_index=partition)
        )
    request = OffsetDeleteRequest(group_id=name, topics=list(topics.values()))
    answer = cluster.coordinator(GROUP, name).ask(request)
    for each in answer.topics:
        for part in each.partitions:
            results[each.name, part.partition_index] = ErrorCode(part.error_code)
    return ErrorCode(answer.error_code), results
