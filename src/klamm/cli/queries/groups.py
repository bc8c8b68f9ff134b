"""Consumer groups: listing and describing them, their committed offsets and lag, deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.cli.queries.offsets import EARLIEST, LATEST, PartitionPair, list_offsets
from klamm.cli.queries.outcomes import item_outcomes
from klamm.client.admin.group_types import GroupDescription, GroupListing
from klamm.client.admin.groups import GroupsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError
from klamm.client.types import OffsetAndMetadata, TopicPartition
from klamm.model.errors import ErrorCode, KlammError

CommittedOffsets = dict[TopicPartition, OffsetAndMetadata]


def list_groups(cluster: BlockingCluster, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """All groups, by name."""
    return cluster.run(GroupsAdmin(cluster).list_groups(states=states, types=types))


def describe_group(cluster: BlockingCluster, name: str) -> GroupDescription:
    """A group of either protocol; KlammError when there is none."""
    return cluster.run(GroupsAdmin(cluster).describe_groups([name]))[name]


def find_group(cluster: BlockingCluster, name: str) -> GroupDescription | None:
    """A group, or None when there is none of that name."""
    try:
        return describe_group(cluster, name)
    except KlammError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def committed_offsets(cluster: BlockingCluster, name: str) -> CommittedOffsets:
    """Every offset a group has committed."""
    return cluster.run(GroupsAdmin(cluster).list_group_offsets(name))


def describe_lag(cluster: BlockingCluster, name: str) -> dict[str, Any]:
    """A group as `klamm group show` shows it: members, committed offsets and how far they are behind."""
    group = find_group(cluster, name)
    if group is None:
        raise KlammError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}; `klamm group ls` lists those there are"
        )
    owners = {partition: member.member_id for member in group.members for partition in member.assignment}
    committed = committed_offsets(cluster, name)
    # Partitions without a committed offset lag too: all their records are still to be read.
    partitions = sorted({*committed, *owners, *sibling_partitions(cluster, {*committed, *owners})})
    ends = list_offsets(cluster, partitions, LATEST)
    starts = list_offsets(cluster, [partition for partition in partitions if partition not in committed], EARLIEST)
    rows = []
    for partition in partitions:
        position = committed.get(partition)
        end = ends.get(partition)
        begin = starts.get(partition) if position is None else position.offset
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": None if position is None else position.offset,
                "end": end,
                "lag": max(end - begin, 0) if end is not None and begin is not None else None,
                "member": owners.get(partition, ""),
                "metadata": "" if position is None else position.metadata,
            }
        )
    members = [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": len(member.assignment),
        }
        for member in group.members
    ]
    return {
        "group": name,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "members": members,
        "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
        "offsets": rows,
    }


def sibling_partitions(cluster: BlockingCluster, partitions: Iterable[PartitionPair]) -> list[TopicPartition]:
    """All partitions of the topics of these; none of a topic that was deleted."""
    topics = {topic for topic, _ in partitions}
    if not topics:
        return []
    cluster.run(cluster.refresh(topics))
    known = cluster.table.topics
    return [TopicPartition(topic, index) for topic in topics if topic in known for index in known[topic].partitions]


def commit_offsets(cluster: BlockingCluster, name: str, offsets: Mapping[PartitionPair, int]) -> None:
    """Commit offsets for a group without members."""
    if offsets:
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        cluster.run(GroupsAdmin(cluster).alter_group_offsets(name, wanted))


def delete_offsets(
    cluster: BlockingCluster, name: str, partitions: Iterable[PartitionPair]
) -> tuple[ErrorCode, dict[PartitionPair, ErrorCode]]:
    """Delete committed offsets; the group's error, and the outcome of each partition."""
    results: dict[PartitionPair, ErrorCode] = {}
    wanted = []
    for topic, partition in partitions:
        if partition < 0:  # a topic that does not exist stands for its unknown partitions
            results[topic, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            wanted.append(TopicPartition(topic, partition))
    try:
        outcomes = item_outcomes(cluster, GroupsAdmin(cluster).delete_group_offsets(name, wanted), wanted)
    except KafkaError as error:
        return error.code, results
    results.update({partition: code for partition, (code, _) in outcomes.items()})
    return ErrorCode.NONE, results


def delete_groups(cluster: BlockingCluster, names: Iterable[str]) -> dict[str, ErrorCode]:
    """Delete groups; the outcome of each."""
    wanted = list(dict.fromkeys(names))
    outcomes = item_outcomes(cluster, GroupsAdmin(cluster).delete_groups(wanted), wanted)
    return {name: code for name, (code, _) in outcomes.items()}
