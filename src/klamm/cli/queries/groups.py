"""Groups: listing and describing them, their committed offsets, deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.cli.queries.offsets import PartitionPair
from klamm.cli.queries.outcomes import item_outcomes
from klamm.client.admin.any_group import describe_any_group
from klamm.client.admin.group_types import GroupDescription, GroupListing
from klamm.client.admin.groups import GroupsAdmin
from klamm.client.admin.share_groups import ShareGroupsAdmin
from klamm.client.admin.streams_groups import StreamsGroupsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import GroupNotFoundError, KafkaError
from klamm.client.types import OffsetAndMetadata, TopicPartition
from klamm.model.errors import ErrorCode

CommittedOffsets = dict[TopicPartition, OffsetAndMetadata]


class _AllGroupsAdmin(GroupsAdmin, ShareGroupsAdmin, StreamsGroupsAdmin):
    """Requests about groups of all types."""


def list_groups(cluster: BlockingCluster, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """All groups, by name."""
    return cluster.run(GroupsAdmin(cluster).list_groups(states=states, types=types))


def describe_group(cluster: BlockingCluster, name: str) -> GroupDescription:
    """A group of either protocol; KlammError when there is none."""
    return cluster.run(GroupsAdmin(cluster).describe_groups([name]))[name]


def find_group(cluster: BlockingCluster, name: str, kind: str = "") -> GroupDescription | None:
    """A group, or None when there is none of that name; of any type unless `kind` has it as a listing does."""
    try:
        return cluster.run(describe_any_group(_AllGroupsAdmin(cluster), name, kind))
    except GroupNotFoundError:
        return None


def committed_offsets(cluster: BlockingCluster, name: str) -> CommittedOffsets:
    """Every offset a group has committed."""
    return cluster.run(GroupsAdmin(cluster).list_group_offsets(name))


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
