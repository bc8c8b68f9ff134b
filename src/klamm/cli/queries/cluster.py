"""The cluster itself: its nodes, its quorum, its log dirs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from klamm.cli.queries.topics import check
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, at the address it tells clients."""

    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """Who is there; `controller` is the broker that answers for the controller, -1 when it is unknown."""

    cluster_id: str
    controller: int
    brokers: list[Broker]


def overview(cluster: BlockingCluster) -> Overview:
    """The cluster's id and its brokers, fenced ones too where the broker tells."""
    answer = cluster.ask(DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True))
    check(answer.error_code, answer.error_message)
    brokers = [
        Broker(each.broker_id, each.host, each.port, each.rack, getattr(each, "is_fenced", False))
        for each in answer.brokers
    ]
    return Overview(answer.cluster_id, answer.controller_id, sorted(brokers, key=lambda broker: broker.id))


def unregister(cluster: BlockingCluster, broker_id: int) -> None:
    """Forget a broker that will not come back; KlammError when it is not registered."""
    from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest

    answer = cluster.ask(UnregisterBrokerRequest(broker_id=broker_id))
    check(answer.error_code, answer.error_message)


@dataclass(frozen=True, slots=True)
class QuorumNode:
    """How far one member of the quorum has come."""

    id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """The metadata quorum as its leader sees it."""

    leader: int
    epoch: int
    high_watermark: int
    voters: list[QuorumNode]
    observers: list[QuorumNode]
    endpoints: dict[int, list[tuple[str, str, int]]]


def quorum(cluster: BlockingCluster) -> Quorum:
    """The state of the quorum."""
    from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData

    topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    answer = cluster.ask(DescribeQuorumRequest(topics=[topic]))
    check(answer.error_code, answer.error_message)
    found = answer.topics[0].partitions[0]
    check(found.error_code, getattr(found, "error_message", None))

    def members(states: list[Any]) -> list[QuorumNode]:
        return [
            QuorumNode(
                state.replica_id,
                state.replica_directory_id,
                state.log_end_offset,
                state.last_fetch_timestamp,
                state.last_caught_up_timestamp,
            )
            for state in states
        ]

    endpoints = {node.node_id: [(e.name, e.host, e.port) for e in node.listeners] for node in answer.nodes}
    return Quorum(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        members(found.current_voters),
        members(found.observers),
        endpoints,
    )


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica in a log dir."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log dir of a broker; `error` is NONE when it is well, byte counts are -1 where they are not told."""

    broker: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: list[Replica]
    cordoned: bool = False


def log_dirs(cluster: BlockingCluster, brokers: Iterable[int] | None = None) -> list[LogDir]:
    """Every log dir of every broker (or of some)."""
    from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    found = []
    for broker_id in cluster.broker_ids if brokers is None else brokers:
        answer = cluster.broker(broker_id).ask(DescribeLogDirsRequest(topics=None))
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            raise KlammError(code, f"broker {broker_id} does not tell its log dirs: {code.text}")
        for result in answer.results:
            replicas = [
                Replica(topic.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
                for topic in result.topics
                for p in topic.partitions
            ]
            found.append(
                LogDir(
                    broker_id,
                    result.log_dir,
                    ErrorCode(result.error_code),
                    result.total_bytes,
                    result.usable_bytes,
                    replicas,
                    result.is_cordoned,
                )
            )
    return found
