"""A cluster on paper: a controller, its brokers, and a log that is only a counter."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

from klamm.controller import CatalogValidator, Controller, ControllerConfig, ControllerDecision
from klamm.metadata import EMPTY_IMAGE, MetadataImage, PartitionImage
from klamm.metadata.records import decode_record, encode_record
from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from klamm.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)

CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAQ"
R = TypeVar("R")


class Cluster:
    """Drives a controller as a server would: records are encoded, decoded, replayed; time moves by hand."""

    def __init__(self, brokers: int = 0, *, seed: int = 7, static: dict[str, str] | None = None, **config: Any) -> None:
        self.now_ms = 1_000_000
        self.next_offset = 0
        self.log: list[Any] = []
        self.epochs: dict[int, int] = {}
        settings = ControllerConfig(node_id=1, cluster_id=CLUSTER_ID, **config)
        self.controller = Controller(settings, CatalogValidator(static), Random(seed))
        self.commit(self.controller.take_over(EMPTY_IMAGE, self.now_ms))
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def commit(self, decision: ControllerDecision[R]) -> R:
        """Make a decision count, as its encoded records would, and check that the cluster still makes sense."""
        before = self.image
        records = [decode_record(encode_record(record)) for record in decision.records]
        self.controller.replay(records, self.next_offset + len(records) - 1, 1)
        self.next_offset += len(records)
        self.log += records
        self.check(before)
        return decision.response

    def check(self, before: MetadataImage) -> None:
        self.image.check()
        for topic, index, partition in self.image.topics.partitions():
            known = before.topics.by_id.get(topic.id)
            old = known.partitions.get(index) if known is not None else None
            if old is not None:
                assert partition.leader_epoch >= old.leader_epoch
                assert partition.partition_epoch >= old.partition_epoch
                assert (partition == old) == (partition.partition_epoch == old.partition_epoch)
                if partition.leader != old.leader:
                    assert partition.leader_epoch > old.leader_epoch
            if partition.has_leader:
                assert self.image.cluster.is_active(partition.leader), f"{topic.name}-{index} led by a dead broker"

    def register(self, broker_id: int, **fields: Any) -> BrokerRegistrationResponse:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=bytes([broker_id]) * 15 + b"\1",
            listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=9000 + broker_id)],
            features=[
                Feature(name="metadata.version", min_supported_version=7, max_supported_version=30),
                Feature(name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1),
                Feature(name="group.version", min_supported_version=0, max_supported_version=1),
                Feature(name="transaction.version", min_supported_version=0, max_supported_version=2),
            ],
            rack=None,
            log_dirs=[bytes([broker_id]) * 16],
        )
        for name, value in fields.items():
            setattr(request, name, value)
        decision = self.controller.register_broker(request, next_offset=self.next_offset, now_ms=self.now_ms)
        response = self.commit(decision)
        if not response.error_code:
            self.epochs[broker_id] = response.broker_epoch
        return response

    def heartbeat(self, broker_id: int, **fields: Any) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.epochs[broker_id],
            current_metadata_offset=self.next_offset - 1,
        )
        for name, value in fields.items():
            setattr(request, name, value)
        decision = self.controller.broker_heartbeat(request, next_offset=self.next_offset, now_ms=self.now_ms)
        return self.commit(decision)

    def start(self, broker_id: int, **fields: Any) -> None:
        assert self.register(broker_id, **fields).error_code == 0
        assert not self.heartbeat(broker_id).is_fenced

    def silence(self, *broker_ids: int) -> None:
        """Let a session pass in which all other brokers send heartbeats."""
        for _ in range(2):
            self.now_ms += 5_000
            for broker in self.image.cluster.alive():
                if broker.id not in broker_ids:
                    self.heartbeat(broker.id)
        while self.commit(self.controller.tick(self.now_ms)):
            pass

    def create(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        assignments: Sequence[Sequence[int]] = (),
        configs: dict[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> CreatableTopicResult:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index, replicas in enumerate(assignments)
            ],
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
        return self.commit(self.controller.create_topics(request)).topics[0]

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        partition = self.image.topics.partition(topic, index)
        assert partition is not None
        return partition


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    return Cluster
