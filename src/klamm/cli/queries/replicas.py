"""Replicas: which are moving, moving them, and electing leaders among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from klamm.cli.queries.topics import check
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.groups import Place
from klamm.model.errors import ErrorCode

_TIMEOUT_MS = 30_000
PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Move:
    """A partition on its way: all replicas of now, those that come, those that go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


def list_moves(cluster: BlockingCluster, places: Iterable[Place] | None = None) -> dict[Place, Move]:
    """Partitions that are moving, of all or of some."""
    from klamm.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsTopics,
    )

    asked = None
    if places is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        asked = [ListPartitionReassignmentsTopics(name=name, partition_indexes=p) for name, p in by_topic.items()]
    answer = cluster.ask(ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=asked))
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, each.partition_index): Move(each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in answer.topics
        for each in topic.partitions
    }


def move(
    cluster: BlockingCluster, goals: Mapping[Place, Sequence[int] | None]
) -> dict[Place, tuple[ErrorCode, str | None]]:
    """Give partitions new replicas, or (None) take a move back; what became of each."""
    from klamm.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics: dict[str, ReassignableTopic] = {}
    for (name, partition), replicas in goals.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        topic.partitions.append(
            ReassignablePartition(partition_index=partition, replicas=None if replicas is None else list(replicas))
        )
    request = AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=list(topics.values()))
    answer = cluster.ask(request)
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, each.partition_index): (ErrorCode(each.error_code), each.error_message)
        for topic in answer.responses
        for each in topic.partitions
    }


def elect(
    cluster: BlockingCluster, kind: int, places: Iterable[Place] | None
) -> dict[Place, tuple[ErrorCode, str | None]]:
    """Elect leaders of some partitions, or (None) of all that need it; what became of each."""
    from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    asked = None
    if places is not None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        asked = [TopicPartitions(topic=name, partitions=p) for name, p in by_topic.items()]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=_TIMEOUT_MS)
    answer = cluster.ask(request)
    check(answer.error_code)
    return {
        (topic.topic, each.partition_id): (ErrorCode(each.error_code), each.error_message)
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }
