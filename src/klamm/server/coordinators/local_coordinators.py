"""The group and transaction coordinators of this node, and the internal topics that hold their state.

The leader of a partition of an internal topic coordinates the groups or transactional ids that hash to it. When the
metadata changes a leader, replicas follow first, then shards are loaded and unloaded here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.groups import GroupConfig, GroupShard
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import BrokerImage, MetadataImage
from klamm.model.config import SettingValue
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
from klamm.server.settings.group_settings import read_consumer_group_config
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("coordinator")

GROUP_METADATA_TOPIC = "__consumer_offsets"
BATCH_OVERHEAD = 512
"""An upper bound of what a batch adds to the records in it."""
GROUP = 0
"""The coordinator type of groups in FindCoordinator."""
RETRY_CREATION_MS = 1000
"""How long the creation of an internal topic is not retried after a refusal, unless the brokers change."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why an internal topic was not created: most often there are too few brokers for its replication factor."""

    reason: str
    brokers: Mapping[int, BrokerImage]
    retry_at_ms: int

    def is_over(self, services: "Services") -> bool:
        # Images share unchanged parts: another object means that a broker has changed.
        changed = services.image.cluster.brokers is not self.brokers
        return changed or services.clock.monotonic_ms() >= self.retry_at_ms


class LocalCoordinators:
    """Loads and unloads the shards of this node, and creates the internal topics."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        config = services.config
        self._group_config = read_group_config(config)
        self._layers: tuple[Mapping[str, SettingValue], ...] = ()
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUP_METADATA_TOPIC,
            self._make_group_shard,
            partial(self._open_log, GROUP_METADATA_TOPIC),
            loop=services.loop,
            clock=services.clock,
            write_timeout_ms=config.integer("offsets.commit.timeout.ms"),
            codec=config.integer("offsets.topic.compression.codec"),
        )
        self.transactions = TransactionCoordinator(services, partial(self._open_log, TRANSACTION_STATE_TOPIC))
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
        """Why an internal topic could not be created at the last attempt, by topic."""

    def find_runtime(self, key_type: int) -> CoordinatorRuntime[Any] | None:
        """Return the runtime of a coordinator type of FindCoordinator; None for an unknown type."""
        return self._runtimes.get(key_type)

    async def find(self, key_type: int, key: str) -> BrokerImage:
        """Return the broker that coordinates a key; the first request creates the internal topic."""
        runtime = self._runtimes[key_type]
        # As in Kafka, internal topics are created on first use, when enough brokers are registered for their replicas.
        if not runtime.partitions:
            await self._create(runtime.topic)
        partition = self._services.image.topics.partition(runtime.topic, runtime.partition_for(key))
        leader = self._services.image.cluster.get(partition.leader) if partition is not None else None
        # Clients retry COORDINATOR_NOT_AVAILABLE; with the address of a dead broker they would wait for a connection.
        if leader is None or leader.fenced:
            raise KlammError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{runtime.topic} has no leader for the partition of {key!r}"
            )
        return leader

    async def _create(self, topic: str) -> None:
        """Create an internal topic; concurrent callers share one request to the controller."""
        refusal = self._refusals.get(topic)
        if refusal is not None and not refusal.is_over(self._services):
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)
        task = self._creating.get(topic)
        if task is None:
            task = self._creating[topic] = self._services.loop.create_task(self._create_now(topic))
            task.add_done_callback(partial(self._on_creation_done, topic))
        # Shielded: other callers wait for the same task.
        await asyncio.shield(task)

    def _on_creation_done(self, topic: str, _task: "asyncio.Task[None]") -> None:
        self._creating.pop(topic, None)

    async def _create_now(self, topic: str) -> None:
        response = await self._services.controller.ask(CreateTopicsRequest(topics=[self._topics[topic]]))
        result = response.topics[0]
        previous = self._refusals.pop(topic, None)
        if result.error_code == ErrorCode.NONE:
            log.info("internal topic created", topic=topic, partitions=self._topics[topic].num_partitions)
        elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            refusal = _Refusal(
                f"{topic} was not created: {result.error_message}",
                self._services.image.cluster.brokers,
                self._services.clock.monotonic_ms() + RETRY_CREATION_MS,
            )
            self._refusals[topic] = refusal
            # Clients retry: the same reason is logged once.
            if previous is None or previous.reason != refusal.reason:
                log.warning("internal topic not created", topic=topic, reason=result.error_message)
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)

    def _make_group_shard(self, _partition: int, _epoch: int) -> GroupShard:
        return GroupShard(self._group_config, self._new_member_id)

    def _new_member_id(self) -> str:
        return str(self._services.new_uuid())

    def _open_log(self, topic: str, partition: int) -> ReplicaLog | None:
        replica = self._services.replicas.find(topic, partition)
        return ReplicaLog(self._services.replicas, replica) if replica is not None and replica.leads else None

    # Following the metadata log

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Let shards decide by the new image at once, though replicas may take a while to follow it."""
        for runtime in self._runtimes.values():
            runtime.on_metadata(delta, image)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply configs and leadership; called once the replicas have followed the image."""
        self._apply_configs(image)
        for runtime in self._runtimes.values():
            self._load_shards(runtime, delta, image)

    def _apply_configs(self, image: MetadataImage) -> None:
        """Apply the dynamic configs of this broker and those of the offsets topic, if one of them has changed."""
        settings = self._services.settings
        layers = (image.topic_values(GROUP_METADATA_TOPIC), settings.values(image))
        if layers == self._layers:
            return
        self._layers = layers
        # The topic's own limit, else the broker's: a record that does not fit could never be written.
        bytes_max = layers[0].get("max.message.bytes", settings.value(image, "message.max.bytes"))
        assert isinstance(bytes_max, int)
        self._group_config = replace(self._group_config, record_bytes_max=bytes_max - BATCH_OVERHEAD)
        # Shards that are loaded later get the new config when they are made.
        for partition in self.groups.active:
            self.groups.shard(partition).set_config(self._group_config)
        verifies = settings.value(image, "transaction.partition.verification.enable")
        self.transactions.gate.verifies = verifies is True
        logs = self._services.replicas.logs
        expiration_ms = settings.integer(image, "producer.id.expiration.ms")
        logs.config = replace(logs.config, producer_id_expiration_ms=expiration_ms)

    def _load_shards(self, runtime: CoordinatorRuntime[Any], delta: MetadataDelta, image: MetadataImage) -> None:
        # An internal topic that is deleted and created again has new partitions: no state of the old ones may remain.
        if any(topic.name == runtime.topic for topic in delta.topics_deleted.values()):
            runtime.stop()
        topic = image.topics.by_name.get(runtime.topic)
        # Before the shards: a key is mapped to a partition by this count.
        runtime.partitions = len(topic.partitions) if topic is not None else 0
        for change in delta.topics_changed.values():
            if topic is not None and change.after.id == topic.id:
                for index, partition in change.partitions.items():
                    if partition.leader == self._services.node_id:
                        runtime.load(index, partition.leader_epoch)
                    else:
                        # Only the leader decides: waiting members get NOT_COORDINATOR and find the new one.
                        runtime.unload(index)

    def stop(self) -> None:
        """Unload all shards; waiting requests get NOT_COORDINATOR."""
        for runtime in self._runtimes.values():
            runtime.stop()
        self.transactions.stop()


def read_group_config(config: NodeConfig) -> GroupConfig:
    """Return the configs of group coordinators."""
    return GroupConfig(
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        # Kafka has this one in minutes only.
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        max_size=config.integer("group.max.size"),
        record_bytes_max=config.integer("message.max.bytes") - BATCH_OVERHEAD,
        consumer=read_consumer_group_config(config),
    )


def _group_topic(config: NodeConfig) -> CreatableTopic:
    return internal_topic(
        GROUP_METADATA_TOPIC,
        config.integer("offsets.topic.num.partitions"),
        config.integer("offsets.topic.replication.factor"),
        {"segment.bytes": str(config.integer("offsets.topic.segment.bytes"))},
    )


def internal_topic(name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> CreatableTopic:
    """Return a compacted internal topic that stores batches as they are written."""
    settings = {"cleanup.policy": "compact", "compression.type": "producer", **configs}
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
