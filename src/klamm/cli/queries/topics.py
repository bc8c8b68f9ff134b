"""Topics: which there are, how they are placed, making and unmaking them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import uuid_to_str
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

PAGE = 2000
_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; `leader` is -1 when nobody leads it, `elr` None where the broker does not tell."""

    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    elr: list[int] | None = None
    last_known_elr: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, its partitions by index."""

    name: str
    id: str
    internal: bool
    partitions: list[Partition]

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


def list_topics(cluster: BlockingCluster) -> list[Topic]:
    """All topics, by name."""
    answer = cluster.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return sorted((_from_metadata(each) for each in answer.topics if each.name), key=lambda topic: topic.name)


def find_topics(cluster: BlockingCluster, names: Sequence[str]) -> list[Topic]:
    """Topics by name, in that order; KlammError names the first that is not there."""
    if not names:
        return []
    asked = [MetadataRequestTopic(name=name) for name in dict.fromkeys(names)]
    answer = cluster.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    found = {}
    for topic in answer.topics:
        code = ErrorCode(topic.error_code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise missing_topic(cluster, topic.name)
        if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
            raise KlammError(code, f"{topic.name}: {code.text}")
        found[topic.name] = _from_metadata(topic)
    return [found[name] for name in names]


def missing_topic(cluster: BlockingCluster, name: str) -> KlammError:
    """That there is no such topic, and one of nearly that name where there is one."""
    import difflib

    near = difflib.get_close_matches(name, [topic.name for topic in list_topics(cluster)], 1)
    hint = f"; did you mean topic {near[0]}?" if near else ""
    return KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}{hint}")


def _from_metadata(answer: Any) -> Topic:
    partitions = [
        Partition(
            index=p.partition_index,
            leader=p.leader_id,
            leader_epoch=p.leader_epoch,
            replicas=list(p.replica_nodes),
            isr=list(p.isr_nodes),
            offline=list(p.offline_replicas),
        )
        for p in answer.partitions
    ]
    return Topic(
        name=answer.name,
        id=uuid_to_str(answer.topic_id),
        internal=answer.is_internal,
        partitions=sorted(partitions, key=lambda partition: partition.index),
    )


def describe_topics(cluster: BlockingCluster, names: Sequence[str], page: int = PAGE) -> list[Topic]:
    """Topics by name with their eligible leaders; a broker without that question is asked the older one."""
    from klamm.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest

    found: dict[str, Topic] = {}
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in sorted(set(names))], response_partition_limit=page
    )
    while names:
        try:
            answer = cluster.ask(request)
        except KlammError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return find_topics(cluster, names)
        for each in answer.topics:
            code = ErrorCode(each.error_code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise missing_topic(cluster, each.name)
            check(code)
            topic = found.setdefault(each.name, Topic(each.name, uuid_to_str(each.topic_id), each.is_internal, []))
            topic.partitions.extend(
                Partition(
                    index=p.partition_index,
                    leader=p.leader_id,
                    leader_epoch=p.leader_epoch,
                    replicas=list(p.replica_nodes),
                    isr=list(p.isr_nodes),
                    offline=list(p.offline_replicas),
                    elr=p.eligible_leader_replicas,
                    last_known_elr=p.last_known_elr,
                )
                for p in each.partitions
            )
        if answer.next_cursor is None:
            break
        request.cursor = answer.next_cursor
    for topic in found.values():
        topic.partitions.sort(key=lambda partition: partition.index)
    return [found[name] for name in names]


def create_topic(
    cluster: BlockingCluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> tuple[int, int]:
    """Make a topic; -1 leaves a number to the cluster. Returns how many partitions and replicas it has."""
    from klamm.protocol.messages.create_topics import (
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if assignment else partitions,
        replication_factor=-1 if assignment else replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (assignment or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=validate_only)
    result = cluster.ask(request).topics[0]
    check(result.error_code, result.error_message)
    return result.num_partitions, result.replication_factor


def delete_topics(cluster: BlockingCluster, names: Iterable[str]) -> dict[str, tuple[ErrorCode, str | None]]:
    """Unmake topics; what became of each."""
    from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    wanted = list(dict.fromkeys(names))
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in wanted], topic_names=wanted, timeout_ms=_TIMEOUT_MS
    )
    answer = cluster.ask(request)
    return {response.name: (ErrorCode(response.error_code), response.error_message) for response in answer.responses}


def add_partitions(
    cluster: BlockingCluster,
    name: str,
    count: int,
    assignment: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> None:
    """Let a topic have `count` partitions from now on."""
    from klamm.protocol.messages.create_partitions import (
        CreatePartitionsAssignment,
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )

    given = None if assignment is None else [CreatePartitionsAssignment(broker_ids=list(b)) for b in assignment]
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=given)],
        timeout_ms=_TIMEOUT_MS,
        validate_only=validate_only,
    )
    result = cluster.ask(request).results[0]
    check(result.error_code, result.error_message)


def check(error_code: int, message: str | None = None) -> None:
    """KlammError for anything but success."""
    code = ErrorCode(error_code)
    if code:
        raise KlammError(code, message or code.text)
