"""The effect of metadata records on an image: what changes, and the image after them.

`replay` is the only code that interprets records; nodes and the controller share it. A delta copies a
dictionary before its first write and a topic before its first change, and shares the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from klamm.metadata.config_values import with_value
from klamm.metadata.image import (
    MIGRATING_DIR,
    BrokerImage,
    ClientQuotaEntity,
    ClusterImage,
    Endpoint,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    Provenance,
    TopicImage,
    TopicsImage,
)
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.ids import TopicPartition, Uuid
from klamm.protocol.messages import metadata_records as r


class _CopyOnWrite:
    """A dictionary that is shared with the image until it is first written."""

    __slots__ = ("_copied", "_data")

    def __init__(self, shared: Mapping[Any, Any]) -> None:
        self._data = shared
        self._copied = False

    def read(self) -> Mapping[Any, Any]:
        return self._data

    def write(self) -> dict[Any, Any]:
        if not self._copied:
            self._data = dict(self._data)
            self._copied = True
        return self._data  # type: ignore[return-value]


@dataclass(slots=True)
class TopicChange:
    """A topic that was created or whose partitions changed."""

    before: TopicImage | None
    after: TopicImage
    partitions: dict[int, PartitionImage] = field(default_factory=dict)
    """The new state of the partitions that changed."""

    @property
    def created(self) -> bool:
        """Whether the topic did not exist before."""
        return self.before is None


@dataclass(frozen=True, slots=True)
class LocalChanges:
    """The effect of a delta on one broker: the partitions it now leads, follows, or no longer holds."""

    leaders: dict[TopicPartition, tuple[Uuid, PartitionImage]]
    followers: dict[TopicPartition, tuple[Uuid, PartitionImage]]
    removed: dict[TopicPartition, tuple[Uuid, bool]]
    """Replicas to remove, each with its topic id and whether the topic was deleted."""


class MetadataDelta:
    """Replays records on an image, and tracks what they change."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """The image before the first record."""
        self.features_changed: dict[str, int | None] = {}
        self.brokers_changed: dict[int, BrokerImage | None] = {}
        self.topics_changed: dict[Uuid, TopicChange] = {}
        self.topics_deleted: dict[Uuid, TopicImage] = {}
        self.configs_changed: dict[ConfigResource, dict[str, str | None]] = {}
        self.producer_ids_changed = False
        self.acls_changed: dict[Uuid, r.AccessControlEntryRecord | None] = {}
        self.quotas_changed: set[ClientQuotaEntity] = set()
        self.scram_changed: set[tuple[int, str]] = set()
        self.tokens_changed: set[str] = set()
        self._features = _CopyOnWrite(image.features)
        self._brokers = _CopyOnWrite(image.cluster.brokers)
        self._controllers = _CopyOnWrite(image.cluster.controllers)
        self._by_name = _CopyOnWrite(image.topics.by_name)
        self._by_id = _CopyOnWrite(image.topics.by_id)
        self._configs = _CopyOnWrite(image.configs)
        self._values = _CopyOnWrite(image.values)
        self._next_producer_id = image.next_producer_id
        self._acls = _CopyOnWrite(image.acls)
        self._quotas = _CopyOnWrite(image.client_quotas)
        self._scram = _CopyOnWrite(image.scram)
        self._tokens = _CopyOnWrite(image.delegation_tokens)

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> "MetadataDelta":
        """The delta between two images, by comparison; for snapshots, which have no records of changes."""
        # Built on the new image, so that `apply` returns it: there is nothing to replay.
        delta = cls(new)
        delta.image = old
        delta.features_changed = _difference(old.features, new.features)
        delta.brokers_changed = _difference(old.cluster.brokers, new.cluster.brokers)
        for topic_id, topic in new.topics.by_id.items():
            before = old.topics.by_id.get(topic_id)
            former = before.partitions if before is not None else {}
            changed = {
                index: partition for index, partition in topic.partitions.items() if former.get(index) != partition
            }
            if changed or before is None:
                delta.topics_changed[topic_id] = TopicChange(before, topic, changed)
        delta.topics_deleted = {
            topic_id: topic for topic_id, topic in old.topics.by_id.items() if topic_id not in new.topics.by_id
        }
        for resource in old.configs.keys() | new.configs.keys():
            configs = _difference(old.configs.get(resource, {}), new.configs.get(resource, {}))
            if configs:
                delta.configs_changed[resource] = configs
        delta.producer_ids_changed = old.next_producer_id != new.next_producer_id
        delta.acls_changed = _difference(old.acls, new.acls)
        delta.quotas_changed = set(_difference(old.client_quotas, new.client_quotas))
        delta.scram_changed = set(_difference(old.scram, new.scram))
        delta.tokens_changed = set(_difference(old.delegation_tokens, new.delegation_tokens))
        return delta

    def replay(self, record: r.MetadataRecord) -> None:
        """Apply a record; LookupError when it contradicts the state before it, which means that the log is damaged."""
        self._HANDLERS[type(record)](self, record)

    def replay_all(self, records: Iterable[r.MetadataRecord]) -> None:
        """Apply records in order."""
        handlers = self._HANDLERS
        for record in records:
            handlers[type(record)](self, record)

    def apply(self, offset: int, epoch: int) -> MetadataImage:
        """The image after all replayed records, the last of which has `offset`."""
        return MetadataImage(
            provenance=Provenance(offset, epoch),
            features=self._features.read(),
            cluster=ClusterImage(self._brokers.read(), self._controllers.read()),
            topics=TopicsImage(self._by_name.read(), self._by_id.read()),
            configs=self._configs.read(),
            values=self._values.read(),
            next_producer_id=self._next_producer_id,
            acls=self._acls.read(),
            client_quotas=self._quotas.read(),
            scram=self._scram.read(),
            delegation_tokens=self._tokens.read(),
        )

    def local_changes(self, broker_id: int) -> LocalChanges:
        """The effect of the changed topics on `broker_id`."""
        leaders: dict[TopicPartition, tuple[Uuid, PartitionImage]] = {}
        followers: dict[TopicPartition, tuple[Uuid, PartitionImage]] = {}
        removed: dict[TopicPartition, tuple[Uuid, bool]] = {}
        for topic in self.topics_deleted.values():
            for index, partition in topic.partitions.items():
                if broker_id in partition.replicas:
                    removed[TopicPartition(topic.name, index)] = (topic.id, True)
        for change in self.topics_changed.values():
            for index, partition in change.partitions.items():
                key = TopicPartition(change.after.name, index)
                if broker_id not in partition.replicas:
                    before = change.before.partitions.get(index) if change.before else None
                    if before is not None and broker_id in before.replicas:
                        removed[key] = (change.after.id, False)
                elif partition.leader == broker_id:
                    leaders[key] = (change.after.id, partition)
                else:
                    followers[key] = (change.after.id, partition)
        return LocalChanges(leaders, followers, removed)

    # Features

    def _set_feature_level(self, record: r.FeatureLevelRecord) -> None:
        # Level 0 is a disabled feature, which an image does not list.
        level = record.feature_level or None
        if level is None:
            self._features.write().pop(record.name, None)
        else:
            self._features.write()[record.name] = level
        self.features_changed[record.name] = level

    # Brokers and controllers

    def _put_broker(self, broker: BrokerImage) -> None:
        self._brokers.write()[broker.id] = broker
        self.brokers_changed[broker.id] = broker

    def _register_broker(self, record: r.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._put_broker(
            BrokerImage(
                id=record.broker_id,
                epoch=record.broker_epoch,
                incarnation_id=Uuid(record.incarnation_id),
                endpoints={
                    endpoint.name: Endpoint(endpoint.host, endpoint.port, endpoint.security_protocol)
                    for endpoint in record.end_points
                },
                features={
                    feature.name: FeatureRange(feature.min_supported_version, feature.max_supported_version)
                    for feature in record.features
                },
                rack=record.rack,
                fenced=record.fenced,
                in_controlled_shutdown=record.in_controlled_shutdown,
                directories=_uuids(record.log_dirs),
                cordoned_directories=None if cordoned is None else _uuids(cordoned),
            )
        )

    def _find_registered(self, broker_id: int, epoch: int) -> BrokerImage:
        broker: BrokerImage = self._brokers.read()[broker_id]
        if broker.epoch != epoch:
            raise LookupError(f"broker {broker_id} has epoch {broker.epoch}, the record is for epoch {epoch}")
        return broker

    def _unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._find_registered(record.broker_id, record.broker_epoch)
        del self._brokers.write()[record.broker_id]
        self.brokers_changed[record.broker_id] = None

    def _fence_broker(self, record: r.FenceBrokerRecord) -> None:
        self._put_broker(replace(self._find_registered(record.id, record.epoch), fenced=True))

    def _unfence_broker(self, record: r.UnfenceBrokerRecord) -> None:
        self._put_broker(replace(self._find_registered(record.id, record.epoch), fenced=False))

    def _change_broker(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._find_registered(record.broker_id, record.broker_epoch)
        self._put_broker(
            replace(
                broker,
                # 0 means unchanged; a controlled shutdown ends only with a new registration.
                fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
                in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
                # An empty list means unchanged: a broker without directories stops.
                directories=_uuids(record.log_dirs) if record.log_dirs else broker.directories,
                cordoned_directories=(
                    broker.cordoned_directories
                    if record.cordoned_log_dirs is None
                    else _uuids(record.cordoned_log_dirs)
                ),
            )
        )

    def _register_controller(self, record: r.RegisterControllerRecord) -> None:
        self._controllers.write()[record.controller_id] = record

    # Topics

    def _touch(self, topic_id: Uuid) -> TopicChange:
        """The change of a topic; its partitions are copied at the first call, so that they can be written."""
        change = self.topics_changed.get(topic_id)
        if change is None:
            before: TopicImage = self._by_id.read()[topic_id]
            change = TopicChange(before, before)
            self._put_topic(change, TopicImage(before.name, before.id, dict(before.partitions)))
        return change

    def _put_topic(self, change: TopicChange, after: TopicImage) -> None:
        change.after = after
        self.topics_changed[after.id] = change
        self._by_id.write()[after.id] = after
        self._by_name.write()[after.name] = after

    def _put_partition(self, change: TopicChange, index: int, partition: PartitionImage) -> None:
        change.after.partitions[index] = partition  # type: ignore[index]  # not shared before `apply`
        change.partitions[index] = partition

    def _create_topic(self, record: r.TopicRecord) -> None:
        topic = TopicImage(record.name, Uuid(record.topic_id), {})
        if record.name in self._by_name.read():
            raise LookupError(f"topic {record.name} exists already")
        if topic.id in self._by_id.read():
            raise LookupError(f"topic {record.name} has the id of topic {self._by_id.read()[topic.id].name}")
        self._put_topic(TopicChange(None, topic), topic)

    def _create_partition(self, record: r.PartitionRecord) -> None:
        change = self._touch(Uuid(record.topic_id))
        self._put_partition(change, record.partition_id, _partition_image(record))

    def _change_partition(self, record: r.PartitionChangeRecord) -> None:
        change = self._touch(Uuid(record.topic_id))
        partition = merge_partition(change.after.partitions[record.partition_id], record)
        self._put_partition(change, record.partition_id, partition)

    def _remove_topic(self, record: r.RemoveTopicRecord) -> None:
        topic_id = Uuid(record.topic_id)
        topic: TopicImage = self._by_id.write().pop(topic_id)
        del self._by_name.write()[topic.name]
        self.topics_changed.pop(topic_id, None)
        before = self.image.topics.by_id.get(topic_id)
        # A topic that was also created within this delta has never existed for publishers.
        if before is not None:
            self.topics_deleted[topic_id] = before
        # There are no records for the configs of a deleted topic: they go with it.
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        if resource in self._configs.read():
            removed = self._configs.write().pop(resource)
            self._values.write().pop(resource, None)
            self.configs_changed.setdefault(resource, {}).update(dict.fromkeys(removed))

    def _clear_elr(self, record: r.ClearElrRecord) -> None:
        # Lists, because `_touch` replaces topics in these dictionaries.
        topics = [self._by_name.read()[record.topic_name]] if record.topic_name else list(self._by_id.read().values())
        for topic in topics:
            for index, partition in list(topic.partitions.items()):
                if partition.elr or partition.last_known_elr:
                    cleared = replace(partition, elr=(), last_known_elr=())
                    self._put_partition(self._touch(topic.id), index, cleared)

    # Configs and producer ids

    def _set_config(self, record: r.ConfigRecord) -> None:
        resource = ConfigResource.from_wire(record.resource_type, record.resource_name)
        configs = self._configs.write()
        # A copy: the mapping may belong to the image, which never changes.
        merged = dict(configs.get(resource, {}))
        if record.value is None:
            merged.pop(record.name, None)
        else:
            merged[record.name] = record.value
        values = self._values.write()
        if merged:
            configs[resource] = merged
            values[resource] = with_value(resource, values.get(resource, {}), record.name, record.value)
        else:
            configs.pop(resource, None)
            values.pop(resource, None)
        self.configs_changed.setdefault(resource, {})[record.name] = record.value

    def _set_producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id
        self.producer_ids_changed = True

    # Security and quotas: kept as they are, so that snapshots preserve them

    def _put_acl(self, record: r.AccessControlEntryRecord) -> None:
        self._acls.write()[Uuid(record.id)] = record
        self.acls_changed[Uuid(record.id)] = record

    def _remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        del self._acls.write()[Uuid(record.id)]
        self.acls_changed[Uuid(record.id)] = None

    def _set_quota(self, record: r.ClientQuotaRecord) -> None:
        parts = ((part.entity_type, part.entity_name) for part in record.entity)
        # Records list the parts in any order; sorted, the same entity is the same key.
        entity = ClientQuotaEntity(tuple(sorted(parts, key=_entity_order)))
        quotas = self._quotas.write()
        merged = dict(quotas.get(entity, {}))
        if record.remove:
            merged.pop(record.key, None)
        else:
            merged[record.key] = record.value
        if merged:
            quotas[entity] = merged
        else:
            quotas.pop(entity, None)
        self.quotas_changed.add(entity)

    def _put_scram(self, record: r.UserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        self._scram.write()[key] = record
        self.scram_changed.add(key)

    def _remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        self._scram.write().pop(key, None)
        self.scram_changed.add(key)

    def _put_token(self, record: r.DelegationTokenRecord) -> None:
        self._tokens.write()[record.token_id] = record
        self.tokens_changed.add(record.token_id)

    def _remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self._tokens.write().pop(record.token_id, None)
        self.tokens_changed.add(record.token_id)

    def _ignore(self, record: Any) -> None:
        """Ignore records without effect on the image; the loader resolves transactions."""

    _HANDLERS: ClassVar[dict[type[Any], Callable[["MetadataDelta", Any], None]]] = {
        r.RegisterBrokerRecord: _register_broker,
        r.UnregisterBrokerRecord: _unregister_broker,
        r.TopicRecord: _create_topic,
        r.PartitionRecord: _create_partition,
        r.ConfigRecord: _set_config,
        r.PartitionChangeRecord: _change_partition,
        r.FenceBrokerRecord: _fence_broker,
        r.UnfenceBrokerRecord: _unfence_broker,
        r.RemoveTopicRecord: _remove_topic,
        r.DelegationTokenRecord: _put_token,
        r.UserScramCredentialRecord: _put_scram,
        r.FeatureLevelRecord: _set_feature_level,
        r.ClientQuotaRecord: _set_quota,
        r.ProducerIdsRecord: _set_producer_ids,
        r.BrokerRegistrationChangeRecord: _change_broker,
        r.AccessControlEntryRecord: _put_acl,
        r.RemoveAccessControlEntryRecord: _remove_acl,
        r.NoOpRecord: _ignore,
        r.ZkMigrationStateRecord: _ignore,
        r.RemoveUserScramCredentialRecord: _remove_scram,
        r.BeginTransactionRecord: _ignore,
        r.EndTransactionRecord: _ignore,
        r.AbortTransactionRecord: _ignore,
        r.RemoveDelegationTokenRecord: _remove_token,
        r.RegisterControllerRecord: _register_controller,
        r.ClearElrRecord: _clear_elr,
    }


def merge_partition(partition: PartitionImage, record: r.PartitionChangeRecord) -> PartitionImage:
    """The partition after a change record: every change raises the partition epoch, a leader also the leader epoch."""
    replicas = partition.replicas if record.replicas is None else tuple(record.replicas)
    # An empty list is none, as in a PartitionRecord from before directory ids.
    if record.directories:
        directories = _uuids(record.directories)
    # A change of replicas without directories: those that stay keep theirs.
    elif record.replicas is not None:
        directories = tuple(partition.directory(replica) for replica in replicas)
    else:
        directories = partition.directories
    # -2 means unchanged. The same leader again still raises the epoch, which fences replicas that were removed.
    new_leader = record.leader != -2
    return PartitionImage(
        replicas=replicas,
        isr=partition.isr if record.isr is None else tuple(record.isr),
        leader=record.leader if new_leader else partition.leader,
        leader_epoch=partition.leader_epoch + new_leader,
        partition_epoch=partition.partition_epoch + 1,
        directories=directories,
        removing_replicas=_merge(record.removing_replicas, partition.removing_replicas),
        adding_replicas=_merge(record.adding_replicas, partition.adding_replicas),
        elr=_merge(record.eligible_leader_replicas, partition.elr),
        last_known_elr=_merge(record.last_known_elr, partition.last_known_elr),
        leader_recovery_state=(
            partition.leader_recovery_state if record.leader_recovery_state == -1 else record.leader_recovery_state
        ),
    )


def _partition_image(record: r.PartitionRecord) -> PartitionImage:
    replicas = tuple(record.replicas)
    return PartitionImage(
        replicas=replicas,
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        # Records from before directory ids (KIP-858) have none.
        directories=_uuids(record.directories) or (MIGRATING_DIR,) * len(replicas),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        leader_recovery_state=record.leader_recovery_state,
    )


def _difference(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    """The changed entries from `old` to `new`: their new values, or None for removed ones."""
    changed: dict[Any, Any] = {key: value for key, value in new.items() if key not in old or old[key] != value}
    changed.update(dict.fromkeys(key for key in old if key not in new))
    return changed


def _merge(new: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _uuids(values: Iterable[bytes]) -> tuple[Uuid, ...]:
    return tuple(Uuid(value) for value in values)


def _entity_order(part: tuple[str, str | None]) -> tuple[str, str]:
    return part[0], part[1] or ""
