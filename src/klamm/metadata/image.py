"""The state of the cluster at an offset of the metadata log, immutable.

A reader may keep an image as long as it needs. The next image shares everything that did not change; dictionaries are
never written after the image that holds them was created.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from klamm.model.config import SettingValue
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.ids import ZERO_UUID, TopicPartition, Uuid
from klamm.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)

NO_LEADER = -1

MIGRATING_DIR = ZERO_UUID
"""The directory of a replica placed before directories had ids."""
UNASSIGNED_DIR = Uuid(bytes(15) + b"\x01")
"""The directory of a replica whose broker has not reported it yet."""
LOST_DIR = Uuid(bytes(15) + b"\x02")
"""The directory of a replica whose disk has failed; it cannot lead."""

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


def _empty() -> Mapping[Any, Any]:
    # A dataclass rejects the mapping itself as default, because it is not hashable in Python 3.11.
    return _EMPTY


class Provenance(NamedTuple):
    """The last record an image contains."""

    offset: int = -1
    epoch: int = -1


BEFORE_FIRST_RECORD = Provenance()


class Endpoint(NamedTuple):
    """The address of a listener."""

    host: str
    port: int
    security_protocol: int


class FeatureRange(NamedTuple):
    """The levels of a feature that a node supports."""

    min_level: int
    max_level: int


class ClientQuotaEntity(NamedTuple):
    """The entity of a client quota: (type, name) pairs; a name of None is the default of its type."""

    parts: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition: its replicas, its leader, its ISR."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[Uuid, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    @property
    def has_leader(self) -> bool:
        """Whether the partition has a leader."""
        return self.leader != NO_LEADER

    @property
    def preferred_replica(self) -> int:
        """The replica that should lead: the first one."""
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.removing_replicas or self.adding_replicas)

    def directory(self, broker_id: int) -> Uuid:
        """The log directory that holds `broker_id`'s replica."""
        # Replicas are few: a scan costs less than a dictionary in every partition.
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return UNASSIGNED_DIR

    def check(self) -> None:
        """Raise AssertionError unless leader, ISR and ELR agree with each other."""
        replicas = set(self.replicas)
        assert len(replicas) == len(self.replicas), f"replicas repeat: {self}"
        assert set(self.isr) <= replicas, f"isr outside replicas: {self}"
        assert len(set(self.isr)) == len(self.isr), f"isr repeats: {self}"
        assert set(self.elr) <= replicas, f"elr outside replicas: {self}"
        assert not set(self.elr) & set(self.isr), f"elr overlaps isr: {self}"
        assert self.leader == NO_LEADER or self.leader in self.isr, f"leader outside isr: {self}"
        assert not self.directories or len(self.directories) == len(self.replicas), f"directories: {self}"
        assert self.leader_epoch >= 0, f"leader epoch: {self}"
        assert self.partition_epoch >= 0, f"partition epoch: {self}"


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic and its partitions by index."""

    name: str
    id: Uuid
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics, by name and by id; the two always hold the same topics."""

    by_name: Mapping[str, TopicImage] = field(default_factory=_empty)
    by_id: Mapping[Uuid, TopicImage] = field(default_factory=_empty)

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, name: str) -> TopicImage | None:
        """Return the topic with this name, or None."""
        return self.by_name.get(name)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """Return partition `index` of a topic, or None."""
        topic = self.by_name.get(name)
        return topic.partitions.get(index) if topic is not None else None

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Every partition of every topic."""
        for topic in self.by_id.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition

    def partitions_of(self, broker_id: int) -> Iterator[tuple[TopicPartition, Uuid, PartitionImage]]:
        """Every partition with a replica on `broker_id`."""
        for topic, index, partition in self.partitions():
            if broker_id in partition.replicas:
                yield TopicPartition(topic.name, index), topic.id, partition


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker, and whether it is fenced."""

    id: int
    epoch: int
    incarnation_id: Uuid
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, FeatureRange] = field(default_factory=_empty)
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    directories: tuple[Uuid, ...] = ()
    cordoned_directories: tuple[Uuid, ...] | None = None

    @property
    def active(self) -> bool:
        """Whether the broker may hold leaders and enter ISRs."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_directory(self, directory: Uuid) -> bool:
        """Whether a replica in `directory` is online here; reserved ids other than LOST count as online."""
        if directory == LOST_DIR:
            return False
        # A broker from before KIP-858 reports no directories: all its replicas count as online.
        return directory in (UNASSIGNED_DIR, MIGRATING_DIR) or not self.directories or directory in self.directories


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The registered brokers and controllers."""

    brokers: Mapping[int, BrokerImage] = field(default_factory=_empty)
    controllers: Mapping[int, RegisterControllerRecord] = field(default_factory=_empty)

    def get(self, broker_id: int) -> BrokerImage | None:
        """Return the broker with this id, or None."""
        return self.brokers.get(broker_id)

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker is registered and may hold leaders."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    def alive(self) -> list[BrokerImage]:
        """The unfenced brokers, which clients may connect to."""
        return [broker for broker in self.brokers.values() if not broker.fenced]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The state after all records of the metadata log up to `provenance`."""

    provenance: Provenance = BEFORE_FIRST_RECORD
    features: Mapping[str, int] = field(default_factory=_empty)
    cluster: ClusterImage = field(default_factory=ClusterImage)
    topics: TopicsImage = field(default_factory=TopicsImage)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=_empty)
    """The texts of configs, as they were set."""
    values: Mapping[ConfigResource, Mapping[str, SettingValue]] = field(default_factory=_empty)
    """The values of the same configs, parsed once by `metadata/config_values`."""
    next_producer_id: int = 0
    acls: Mapping[Uuid, AccessControlEntryRecord] = field(default_factory=_empty)
    client_quotas: Mapping[ClientQuotaEntity, Mapping[str, float]] = field(default_factory=_empty)
    scram: Mapping[tuple[int, str], UserScramCredentialRecord] = field(default_factory=_empty)
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=_empty)

    @property
    def is_empty(self) -> bool:
        """Whether this image has no content besides its offset."""
        return same_content(self, EMPTY_IMAGE)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The configs set on `topic` itself."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, topic), _EMPTY)

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """The dynamic configs set on one broker, or with None those of all brokers."""
        name = "" if broker_id is None else str(broker_id)
        return self.configs.get(ConfigResource(ResourceType.BROKER, name), _EMPTY)

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """The configs set on a group."""
        return self.configs.get(ConfigResource(ResourceType.GROUP, group_id), _EMPTY)

    def topic_values(self, topic: str) -> Mapping[str, SettingValue]:
        """The values of the configs set on `topic` itself."""
        return self.values.get(ConfigResource(ResourceType.TOPIC, topic), _EMPTY)

    def broker_values(self, broker_id: int | None) -> Mapping[str, SettingValue]:
        """The values of the dynamic configs set on one broker, or with None of those of all brokers."""
        name = "" if broker_id is None else str(broker_id)
        return self.values.get(ConfigResource(ResourceType.BROKER, name), _EMPTY)

    def group_values(self, group_id: str) -> Mapping[str, SettingValue]:
        """The values of the configs set on a group."""
        return self.values.get(ConfigResource(ResourceType.GROUP, group_id), _EMPTY)

    def to_records(self) -> Iterator[Any]:
        """The records that, replayed on the empty image, give this one; the content of a snapshot."""
        from klamm.metadata.image_records import image_records  # noqa: PLC0415 - it imports this module

        return image_records(self)

    def check(self) -> None:
        """Raise AssertionError when the parts of the image contradict each other."""
        assert len(self.topics.by_name) == len(self.topics.by_id), "by_name and by_id differ"
        for name, topic in self.topics.by_name.items():
            assert topic.name == name
            assert self.topics.by_id[topic.id] is topic
            assert sorted(topic.partitions) == list(range(len(topic.partitions))), f"gap in {name}"
            for partition in topic.partitions.values():
                partition.check()
        for resource in self.configs:
            if resource.type == ResourceType.TOPIC:
                assert resource.name in self.topics.by_name, f"configs of a topic that does not exist: {resource}"
        for resource, values in self.values.items():
            assert values.keys() <= self.configs.get(resource, _EMPTY).keys(), f"values without configs: {resource}"


def same_content(one: MetadataImage, other: MetadataImage) -> bool:
    """Whether two images have the same content, at whatever offsets."""
    # `values` follow from `configs` and need no comparison.
    return (
        one.features == other.features
        and one.cluster == other.cluster
        and one.topics == other.topics
        and one.configs == other.configs
        and one.next_producer_id == other.next_producer_id
        and one.acls == other.acls
        and one.client_quotas == other.client_quotas
        and one.scram == other.scram
        and one.delegation_tokens == other.delegation_tokens
    )


EMPTY_IMAGE = MetadataImage()
