"""The node's coordinators: which internal topics exist, which of their partitions are served here.

Leadership of a partition of an internal topic is leadership of the groups or transactions it keeps. The metadata log
says who leads; replicas follow it first, then shards are loaded and unloaded here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.groups import GroupConfig, GroupShard
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import BrokerImage, MetadataImage
from klamm.model.config import Value
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from klamm.server.boot.config import NodeConfig
from klamm.server.coordinators.replica_log import ReplicaLog
from klamm.server.coordinators.transaction_coordinator import (
    TRANSACTION,
    TRANSACTION_STATE_TOPIC,
    TransactionCoordinator,
    transaction_topic,
)
from klamm.server.settings.group_settings import consumer_group_config_of
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("coordinator")

GROUP_METADATA_TOPIC = "__consumer_offsets"
BATCH_OVERHEAD = 512
"""What a batch adds to the records in it, generously."""
GROUP = 0
"""What FindCoordinator calls the coordinator of a group."""


RETRY_CREATION_MS = 1000
"""How long a refused creation of an internal topic is not tried again, unless a broker comes or goes."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An internal topic cannot be created: most often because too few brokers are there for its replicas."""

    reason: str
    brokers: Mapping[int, BrokerImage]
    retry_at_ms: int

    def is_over(self, services: "Services") -> bool:
        changed = services.image.cluster.brokers is not self.brokers
        return changed or services.clock.monotonic_ms() >= self.retry_at_ms


class LocalCoordinators:
    """Every coordinator of this node, and the internal topics they live in."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        config = services.config
        self._group_config = group_config_of(config)
        self._layers: tuple[Mapping[str, Value], ...] = ()
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUP_METADATA_TOPIC,
            lambda _partition, _epoch: GroupShard(self._group_config, lambda: str(services.new_uuid())),
            lambda partition: self._open_log(GROUP_METADATA_TOPIC, partition),
            loop=services.loop,
            clock=services.clock,
            write_timeout_ms=config.integer("offsets.commit.timeout.ms"),
            codec=config.integer("offsets.topic.compression.codec"),
        )
        self.transactions = TransactionCoordinator(
            services, lambda partition: self._open_log(TRANSACTION_STATE_TOPIC, partition)
        )
        self._topics: dict[str, CreatableTopic] = {
            GROUP_METADATA_TOPIC: _group_topic(config),
            TRANSACTION_STATE_TOPIC: transaction_topic(config),
        }
        self._runtimes: dict[int, CoordinatorRuntime[Any]] = {
            GROUP: self.groups,
            TRANSACTION: self.transactions.runtime,
        }
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._refusals: dict[str, _Refusal] = {}
        """Why an internal topic could not be created when it was last tried."""

    def runtime_of(self, key_type: int) -> CoordinatorRuntime[Any] | None:
        """The runtime behind one of FindCoordinator's kinds; None when this node has no such coordinator."""
        return self._runtimes.get(key_type)

    async def find(self, key_type: int, key: str) -> BrokerImage:
        """The broker that looks after a key; the internal topic is created when this is the first question."""
        runtime = self._runtimes[key_type]
        if not runtime.partitions:
            await self._create(runtime.topic)
        partition = self._services.image.topics.partition(runtime.topic, runtime.partition_for(key))
        leader = self._services.image.cluster.get(partition.leader) if partition is not None else None
        if leader is None or leader.fenced:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the partition of the coordinator has no leader")
        return leader

    async def _create(self, topic: str) -> None:
        """Create an internal topic once, however many ask for it at the same time."""
        refusal = self._refusals.get(topic)
        if refusal is not None and not refusal.is_over(self._services):
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)
        task = self._creating.get(topic)
        if task is None:
            task = self._creating[topic] = self._services.loop.create_task(self._create_now(topic))
            task.add_done_callback(lambda _: self._creating.pop(topic, None))
        await asyncio.shield(task)

    async def _create_now(self, topic: str) -> None:
        response = await self._services.controller.ask(CreateTopicsRequest(topics=[self._topics[topic]]))
        result = response.topics[0]
        before = self._refusals.pop(topic, None)
        if result.error_code == ErrorCode.NONE:
            log.info("internal topic created", topic=topic, partitions=self._topics[topic].num_partitions)
        elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            refusal = _Refusal(
                f"{topic} was not created: {result.error_message}",
                self._services.image.cluster.brokers,
                self._services.clock.monotonic_ms() + RETRY_CREATION_MS,
            )
            self._refusals[topic] = refusal
            if before is None or before.reason != refusal.reason:
                log.warning("internal topic not created", topic=topic, reason=result.error_message)
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)

    def _open_log(self, topic: str, partition: int) -> ReplicaLog | None:
        replica = self._services.replicas.find(topic, partition)
        return ReplicaLog(self._services.replicas, replica) if replica is not None and replica.leads else None

    # Following the metadata log

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The image has moved: shards decide by it at once, though replicas may take a while to follow."""
        for runtime in self._runtimes.values():
            runtime.on_metadata(delta, image)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The image has moved and the replicas have followed."""
        self._obey(image)
        for runtime in self._runtimes.values():
            self._follow(runtime, delta, image)

    def _obey(self, image: MetadataImage) -> None:
        """Settings may change at work: those of brokers that Kafka calls dynamic, and those of the offsets topic."""
        settings = self._services.settings
        layers = (image.topic_values(GROUP_METADATA_TOPIC), settings.values(image))
        if layers == self._layers:
            return
        self._layers = layers
        bytes_max = layers[0].get("max.message.bytes", settings.value(image, "message.max.bytes"))
        assert isinstance(bytes_max, int)
        self._group_config = replace(self._group_config, record_bytes_max=bytes_max - BATCH_OVERHEAD)
        for partition in self.groups.active:
            self.groups.shard(partition).set_config(self._group_config)
        verifies = settings.value(image, "transaction.partition.verification.enable")
        self.transactions.gate.verifies = verifies is True
        logs = self._services.replicas.logs
        expiration_ms = settings.integer(image, "producer.id.expiration.ms")
        logs.config = replace(logs.config, producer_id_expiration_ms=expiration_ms)

    def _follow(self, runtime: CoordinatorRuntime[Any], delta: MetadataDelta, image: MetadataImage) -> None:
        if any(topic.name == runtime.topic for topic in delta.topics_deleted.values()):
            runtime.stop()
        topic = image.topics.by_name.get(runtime.topic)
        runtime.partitions = len(topic.partitions) if topic is not None else 0
        for change in delta.topics_changed.values():
            if topic is not None and change.after.id == topic.id:
                for index, partition in change.partitions.items():
                    if partition.leader == self._services.node_id:
                        runtime.load(index, partition.leader_epoch)
                    else:
                        runtime.unload(index)

    def stop(self) -> None:
        """Stop all shards; waiting requests are answered with NOT_COORDINATOR."""
        for runtime in self._runtimes.values():
            runtime.stop()
        self.transactions.stop()


def group_config_of(config: NodeConfig) -> GroupConfig:
    """The settings of groups."""
    return GroupConfig(
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        max_size=config.integer("group.max.size"),
        record_bytes_max=config.integer("message.max.bytes") - BATCH_OVERHEAD,
        consumer=consumer_group_config_of(config),
    )


def _group_topic(config: NodeConfig) -> CreatableTopic:
    return internal_topic(
        GROUP_METADATA_TOPIC,
        config.integer("offsets.topic.num.partitions"),
        config.integer("offsets.topic.replication.factor"),
        {"segment.bytes": str(config.integer("offsets.topic.segment.bytes"))},
    )


def internal_topic(name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> CreatableTopic:
    """A compacted topic that keeps batches as they are written, like all internal ones."""
    settings = {"cleanup.policy": "compact", "compression.type": "producer", **configs}
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
