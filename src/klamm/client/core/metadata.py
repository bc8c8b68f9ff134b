"""Metadata of a cluster: brokers, topics, leaders. A leader epoch never goes back. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from klamm.model.ids import ZERO_UUID, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address at which a broker is reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Leader, replicas and ISR of a partition."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; `error_code` is the reason why it cannot be used."""

    name: str
    topic_id: bytes = ZERO_UUID
    internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)
    error_code: int = 0


class ClusterTable:
    """The newest known state; `update` takes a Metadata response, `hint` the leader that an error named."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.names: dict[bytes, str] = {}
        self.version = 0
        """Counts changes, so that derived values can be cached."""

    def leader(self, where: TopicPartition) -> int:
        """The broker to write to, -1 for none."""
        partition = self.partition(where)
        return -1 if partition is None else partition.leader

    def partition(self, where: TopicPartition) -> PartitionMetadata | None:
        """The metadata of a partition; None when unknown."""
        topic = self.topics.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has, 0 when it is not known."""
        metadata = self.topics.get(topic)
        return 0 if metadata is None else len(metadata.partitions)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic, zeros when it is not known."""
        metadata = self.topics.get(topic)
        return ZERO_UUID if metadata is None else metadata.topic_id

    def update(self, response: Any, requested: Iterable[str] | None) -> None:
        """Take a Metadata response; `requested` are the topics of the request, None for all."""
        self.version += 1
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        topics = {topic.name: self._topic(topic) for topic in response.topics if topic.name}
        if requested is None:
            self.topics = topics
        else:
            # A topic that was requested and is not in the response is gone; those not requested stay.
            for name in requested:
                self.topics.pop(name, None)
            self.topics.update(topics)
        self.names = {topic.topic_id: topic.name for topic in self.topics.values() if topic.topic_id != ZERO_UUID}

    def _topic(self, response: Any) -> TopicMetadata:
        known = self.topics.get(response.name)
        # Epochs compare within one topic id only: a topic created again begins at epoch 0.
        same = known is not None and known.topic_id == response.topic_id
        partitions = {}
        for partition in sorted(response.partitions, key=attrgetter("partition_index")):
            fresh = PartitionMetadata(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
                partition.error_code,
            )
            old = known.partitions.get(partition.partition_index) if same and known is not None else None
            # A broker that lags behind answers with an older leader (KIP-320); -1 is an error without an epoch.
            stale = old is not None and 0 <= fresh.leader_epoch < old.leader_epoch
            partitions[partition.partition_index] = old if stale and old is not None else fresh
        return TopicMetadata(response.name, response.topic_id, response.is_internal, partitions, response.error_code)

    def hint(self, where: TopicPartition, leader: int, leader_epoch: int, endpoints: Iterable[Any]) -> bool:
        """Take the leader that an error response named (KIP-951); True when it is newer and can be used at once."""
        topic = self.topics.get(where.topic)
        old = None if topic is None else topic.partitions.get(where.partition)
        if topic is None or old is None or leader < 0 or leader_epoch <= old.leader_epoch:
            return False
        for endpoint in endpoints:
            # A new dictionary: readers may iterate over the old one.
            if endpoint.node_id not in self.brokers:
                self.brokers = {
                    **self.brokers,
                    endpoint.node_id: BrokerAddress(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack),
                }
        if leader not in self.brokers:
            return False
        self.version += 1
        new = PartitionMetadata(where.partition, leader, leader_epoch, old.replicas, old.isr, old.offline)
        self.topics[where.topic] = TopicMetadata(
            topic.name, topic.topic_id, topic.internal, {**topic.partitions, where.partition: new}, topic.error_code
        )
        return True
