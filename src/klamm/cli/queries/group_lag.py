"""Groups of every type as `klamm group show` shows them: members, offsets, and how far these are behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.cli.queries.groups import committed_offsets, find_group, sibling_partitions
from klamm.cli.queries.offsets import EARLIEST, LATEST, list_offsets
from klamm.client.admin.group_types import GroupDescription, MemberDescription, StreamsTopology
from klamm.client.admin.share_groups import ShareGroupsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.types import OffsetAndMetadata, TopicPartition
from klamm.model.errors import ErrorCode, KlammError


def describe_lag(cluster: BlockingCluster, name: str, kind: str = "") -> dict[str, Any]:
    """A group as `klamm group show` shows it: members, offsets and how far they are behind.

    `kind` is its type, where a listing has told it: else it takes a request for each type.
    """
    group = find_group(cluster, name, kind)
    if group is None:
        raise KlammError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}; `klamm group ls` lists those there are"
        )
    rows = _share_rows(cluster, group) if group.type == "share" else _offset_rows(cluster, group)
    description: dict[str, Any] = {
        "group": name,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "epoch": group.group_epoch,
        "members": [_describe_member(member) for member in group.members],
        "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
        "offsets": rows,
    }
    if group.topology is not None:
        description["topology"] = _describe_topology(group.topology)
    return description


def total_lag(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The sum of the lags of partitions; None when the broker reports none of them."""
    lags = [row["lag"] for row in rows]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known or not lags else None


def _offset_rows(cluster: BlockingCluster, group: GroupDescription) -> list[dict[str, Any]]:
    """Committed offsets of consumers or of a streams application."""
    committed = committed_offsets(cluster, group.group_id)
    owners = _owners(group)
    siblings = sibling_partitions(cluster, {*committed, *owners})
    if group.type == "streams":
        # Tasks name partitions that a topic with fewer of them does not have.
        owners = {partition: owners[partition] for partition in siblings if partition in owners}
    # Partitions without a committed offset lag too: all their records are still to be read.
    partitions = sorted({*committed, *owners, *siblings})
    ends = list_offsets(cluster, partitions, LATEST)
    starts = list_offsets(cluster, [partition for partition in partitions if partition not in committed], EARLIEST)
    rows = []
    for partition in partitions:
        position = committed.get(partition)
        end = ends.get(partition)
        begin = starts.get(partition) if position is None else position.offset
        lag = max(end - begin, 0) if end is not None and begin is not None else None
        rows.append(_row(partition, position, end, lag, owners))
    return rows


def _share_rows(cluster: BlockingCluster, group: GroupDescription) -> list[dict[str, Any]]:
    """Start offsets of a share group, and its lag as far as the broker reports it.

    The lag is not the distance to the end: records after the start offset may be acknowledged. Where the group has not
    begun, only its share.auto.offset.reset says where it will.
    """
    begun = cluster.run(ShareGroupsAdmin(cluster).list_share_group_offsets(group.group_id))
    owners = _owners(group)
    partitions = sorted({*begun, *owners, *sibling_partitions(cluster, {*begun, *owners})})
    ends = list_offsets(cluster, partitions, LATEST)
    rows = []
    for partition in partitions:
        entry = begun.get(partition)
        position = None if entry is None else OffsetAndMetadata(entry.start_offset)
        rows.append(_row(partition, position, ends.get(partition), None if entry is None else entry.lag, owners))
    return rows


def _owners(group: GroupDescription) -> dict[TopicPartition, str]:
    """The members that read a partition: one of a group of consumers, several of a share group."""
    owners: dict[TopicPartition, list[str]] = {}
    for member in group.members:
        for partition in member.assignment:
            owners.setdefault(partition, []).append(member.member_id)
    return {partition: ", ".join(members) for partition, members in owners.items()}


def _row(
    partition: TopicPartition,
    position: OffsetAndMetadata | None,
    end: int | None,
    lag: int | None,
    owners: Mapping[TopicPartition, str],
) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": None if position is None else position.offset,
        "end": end,
        "lag": lag,
        "member": owners.get(partition, ""),
        "metadata": "" if position is None else position.metadata,
    }


def _describe_member(member: MemberDescription) -> dict[str, Any]:
    description: dict[str, Any] = {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "epoch": member.member_epoch,
        "partitions": len(member.assignment),
        "topics": list(member.subscription),
    }
    if member.tasks is not None:
        tasks = member.tasks
        description["tasks"] = {
            "active": list(tasks.active),
            "standby": list(tasks.standby),
            "warmup": list(tasks.warmup),
        }
    return description


def _describe_topology(topology: StreamsTopology) -> dict[str, Any]:
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology": part.subtopology_id,
                "sources": list(part.source_topics),
                "repartition_sources": list(part.repartition_source_topics),
                "repartition_sinks": list(part.repartition_sink_topics),
                "changelogs": list(part.changelog_topics),
            }
            for part in topology.subtopologies
        ],
    }
