"""Questions about groups, asked of a cluster: who is in them, how far they have read, where they shall go on."""

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from klamm.client.blocking_cluster import GROUP, BlockingCluster, BlockingConnection
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.codec import decode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from klamm.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest
from klamm.protocol.messages.list_groups import ListGroupsRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

Place = tuple[str, int]
"""A topic and a partition."""

EARLIEST, LATEST = -2, -1
OFFSET_COMMIT_VERSION = 8
OFFSET_FETCH_VERSION = 8
"""The newest versions that name topics: what a command knows."""
_ALL_ATTEMPTS = 200


def list_groups(
    cluster: BlockingCluster, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """All groups, by name."""
    rows = []
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    for broker_id in cluster.broker_ids:
        for _ in range(_ALL_ATTEMPTS):
            answer = cluster.broker(broker_id).ask(request)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
        if answer.error_code:
            raise KlammError(ErrorCode(answer.error_code), f"broker {broker_id} does not list its groups")
        rows += [
            {
                "group": group.group_id,
                "type": group.group_type,
                "protocol": group.protocol_type,
                "state": group.group_state,
                "coordinator": broker_id,
            }
            for group in answer.groups
        ]
    return sorted(rows, key=lambda row: row["group"])


def describe_group(cluster: BlockingCluster, name: str) -> dict[str, Any]:
    """Everything about one group; KlammError when there is none of that name."""
    coordinator = cluster.coordinator(GROUP, name)
    found = _describe_classic(coordinator, name) or _describe_consumer(coordinator, name)
    if found is None:
        raise KlammError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}; `klamm group ls` lists those there are"
        )
    owners = found.pop("owners")
    committed = committed_offsets(coordinator, name)
    # Partitions nothing was committed of lag too: all they hold is still to be read.
    places = sorted({*committed, *owners, *_sibling_partitions(cluster, {*committed, *owners})})
    ends = list_offsets(cluster, places, LATEST)
    starts = list_offsets(cluster, [place for place in places if place not in committed], EARLIEST)
    offsets = []
    for topic, partition in places:
        offset, note = committed.get((topic, partition), (None, ""))
        end = ends.get((topic, partition))
        begin = starts.get((topic, partition)) if offset is None else offset
        offsets.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "end": end,
                "lag": max(end - begin, 0) if end is not None and begin is not None else None,
                "member": owners.get((topic, partition), ""),
                "metadata": note,
            }
        )
    return {"group": name, **found, "coordinator": coordinator.address, "offsets": offsets}


def list_members(cluster: BlockingCluster, name: str) -> list[dict[str, Any]]:
    """The members of a group; none of one that does not exist."""
    coordinator = cluster.coordinator(GROUP, name)
    found = _describe_classic(coordinator, name) or _describe_consumer(coordinator, name)
    return [] if found is None else list(found["members"])


def _sibling_partitions(cluster: BlockingCluster, places: Iterable[Place]) -> list[Place]:
    """All partitions of the topics of these; none of a topic that is gone."""
    names = [MetadataRequestTopic(name=name) for name in sorted({topic for topic, _ in places})]
    if not names:
        return []
    topics = cluster.ask(MetadataRequest(topics=names, allow_auto_topic_creation=False)).topics
    return [(topic.name, partition.partition_index) for topic in topics for partition in topic.partitions]


def _describe_classic(coordinator: BlockingConnection, name: str) -> dict[str, Any] | None:
    answer = coordinator.ask(DescribeGroupsRequest(groups=[name])).groups[0]
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND or answer.group_state == "Dead":
        return None
    if answer.error_code:
        raise KlammError(ErrorCode(answer.error_code), f"{name} cannot be shown")
    owners: dict[Place, str] = {}
    members = []
    for member in answer.members:
        owned = _assigned(member.member_assignment) if answer.protocol_type == "consumer" else []
        owners.update(dict.fromkeys(owned, member.member_id))
        members.append(
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host.lstrip("/"),
                "partitions": len(owned),
            }
        )
    return {
        "type": "classic",
        "state": answer.group_state,
        "assignor": answer.protocol_data,
        "members": members,
        "owners": owners,
    }


def _assigned(data: bytes) -> list[Place]:
    if len(data) < 2:
        return []
    version = min(int.from_bytes(data[:2], "big"), 3)
    found, _ = decode(ConsumerProtocolAssignment, version, data, 2)
    return [(topic.topic, partition) for topic in found.assigned_partitions for partition in topic.partitions]


def _describe_consumer(coordinator: BlockingConnection, name: str) -> dict[str, Any] | None:
    try:
        answer = coordinator.ask(ConsumerGroupDescribeRequest(group_ids=[name])).groups[0]
    except KlammError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if answer.error_code:
        raise KlammError(ErrorCode(answer.error_code), answer.error_message or f"{name} cannot be shown")
    owners: dict[Place, str] = {}
    members = []
    for member in answer.members:
        owned = [(t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions]
        owners.update(dict.fromkeys(owned, member.member_id))
        members.append(
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host.lstrip("/"),
                "partitions": len(owned),
            }
        )
    return {
        "type": "consumer",
        "state": answer.group_state,
        "assignor": answer.assignor_name,
        "members": members,
        "owners": owners,
    }


def committed_offsets(coordinator: BlockingConnection, name: str) -> dict[Place, tuple[int, str]]:
    """Every offset a group has committed, with its note."""
    group = OffsetFetchRequestGroup(group_id=name, topics=None)
    answer = coordinator.ask(OffsetFetchRequest(groups=[group]), OFFSET_FETCH_VERSION).groups[0]
    if answer.error_code:
        raise KlammError(ErrorCode(answer.error_code), f"the offsets of {name} cannot be read")
    return {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.metadata or "")
        for topic in answer.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def list_offsets(
    cluster: BlockingCluster, places: Iterable[Place], timestamp: int, isolation_level: int = 0
) -> dict[Place, int]:
    """The offset at a time (or EARLIEST, LATEST) of each partition; those nobody leads are left out.

    With isolation level 1 a partition ends at its last stable offset.
    """
    wanted = set(places)
    if not wanted:
        return {}
    names = sorted({topic for topic, _ in wanted})
    named = [MetadataRequestTopic(name=each) for each in names]
    topics = cluster.ask(MetadataRequest(topics=named, allow_auto_topic_creation=False)).topics
    by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if (topic.name, partition.partition_index) in wanted and partition.leader_id >= 0:
                asked = ListOffsetsPartition(partition_index=partition.partition_index, timestamp=timestamp)
                by_leader.setdefault(partition.leader_id, {}).setdefault(topic.name, []).append(asked)
    found: dict[Place, int] = {}
    for leader, asked_topics in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in asked_topics.items()],
        )
        for answer in cluster.broker(leader).ask(request).topics:
            found.update({(answer.name, e.partition_index): e.offset for e in answer.partitions if not e.error_code})
    return found


# Seeking


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go: a fixed offset, a step from where it is, or what a time says (EARLIEST and LATEST among them)."""

    offset: int | None = None
    step: int | None = None
    timestamp: int | None = None


def parse_target(text: str) -> Target:
    """A target as a person writes it; ValueError says how to."""
    if text in ("earliest", "latest"):
        return Target(timestamp=EARLIEST if text == "earliest" else LATEST)
    if re.fullmatch(r"[+-]\d+", text):
        return Target(step=int(text))
    if text.isdecimal():
        return Target(offset=int(text))
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no place: write earliest, latest, an offset, +N, -N or a time such as 2026-05-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return Target(timestamp=int(moment.timestamp() * 1000))


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """TOPIC or TOPIC:0,1; ValueError says how to."""
    name, colon, listed = text.partition(":")
    if not colon:
        return name, None
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        raise ValueError(f"{text!r} names no partitions: write TOPIC:0,1,2")
    return name, [int(each) for each in listed.split(",")]


def seek_group(
    cluster: BlockingCluster,
    name: str,
    target: Target,
    topics: Sequence[tuple[str, list[int] | None]],
    *,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """Move a group's offsets, within what each partition holds; returns what was moved from where to where.

    Without `topics`, in all partitions of those it has offsets in. `wanted` of a row is what was asked for, where the
    partition does not hold it.
    """
    coordinator = cluster.coordinator(GROUP, name)
    committed = committed_offsets(coordinator, name)
    places = _partitions(cluster, topics) if topics else sorted(_sibling_partitions(cluster, committed))
    earliest, latest = list_offsets(cluster, places, EARLIEST), list_offsets(cluster, places, LATEST)
    timed = {} if target.timestamp is None else list_offsets(cluster, places, target.timestamp)
    rows = []
    for place in places:
        if place not in latest:
            raise KlammError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {place[0]}-{place[1]}; nothing was changed")
        before = committed[place][0] if place in committed else None
        if target.step is not None:
            wanted = (earliest[place] if before is None else before) + target.step
        elif target.offset is not None:
            wanted = target.offset
        else:
            wanted = timed[place] if timed.get(place, -1) >= 0 else latest[place]
        to = min(max(wanted, earliest[place]), latest[place])
        row = {"topic": place[0], "partition": place[1], "before": before, "offset": to}
        rows.append(row if to == wanted else {**row, "wanted": wanted})
    if rows and not dry_run:
        _commit(coordinator, name, rows)
    return rows


def _partitions(cluster: BlockingCluster, topics: Sequence[tuple[str, list[int] | None]]) -> list[Place]:
    names = [MetadataRequestTopic(name=name) for name, _ in topics]
    answers = cluster.ask(MetadataRequest(topics=names, allow_auto_topic_creation=False)).topics
    counts = {topic.name: len(topic.partitions) for topic in answers if not topic.error_code}
    places: set[Place] = set()
    for name, partitions in topics:
        if name not in counts:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        for partition in range(counts[name]) if partitions is None else partitions:
            if partition >= counts[name]:
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has {counts[name]} partitions")
            places.add((name, partition))
    return sorted(places)


def _commit(coordinator: BlockingConnection, name: str, rows: list[dict[str, Any]]) -> None:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for row in rows:
        topic = topics.setdefault(row["topic"], OffsetCommitRequestTopic(name=row["topic"]))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=row["partition"], committed_offset=row["offset"], committed_metadata=""
            )
        )
    request = OffsetCommitRequest(group_id=name, topics=list(topics.values()))
    answer = coordinator.ask(request, OFFSET_COMMIT_VERSION)
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise KlammError(ErrorCode.NON_EMPTY_GROUP, f"{name} has members; stop them first")
            if partition.error_code:
                raise KlammError(
                    ErrorCode(partition.error_code),
                    f"the offset of {topic.name}-{partition.partition_index} was not moved",
                )


def delete_groups(cluster: BlockingCluster, names: Iterable[str]) -> dict[str, ErrorCode]:
    """Delete groups; what became of each."""
    codes = {}
    for name in dict.fromkeys(names):
        answer = cluster.coordinator(GROUP, name).ask(DeleteGroupsRequest(groups_names=[name]))
        codes[name] = ErrorCode(answer.results[0].error_code)
    return codes
