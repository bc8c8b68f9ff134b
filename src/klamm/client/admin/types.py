"""What an admin is asked with and answers with: plain values, named as Kafka names them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from klamm.client.types import TopicPartition
from klamm.model.acls import AclOperation as AclOperation  # noqa: PLC0414 - one of these types
from klamm.model.acls import AclPermission as AclPermission  # noqa: PLC0414 - one of these types
from klamm.model.acls import AclResourceType as AclResourceType  # noqa: PLC0414 - one of these types
from klamm.model.acls import PatternType as PatternType  # noqa: PLC0414 - one of these types
from klamm.model.config_sources import ConfigSource, ConfigSynonym


class Node(NamedTuple):
    """A broker and its address."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False

    def __str__(self) -> str:
        return f"{self.id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """Who is in the cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]
    authorized_operations: frozenset[AclOperation] | None = None


# Topics


class TopicListing(NamedTuple):
    """A topic by name."""

    name: str
    topic_id: bytes
    internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: leader (-1 when nobody leads), replicas, those in sync, those that could lead."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic and its partitions, by index."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What the broker made; counts are -1 where it does not say."""

    name: str
    topic_id: bytes
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)


class OffsetSpec(IntEnum):
    """Places to look an offset up by; any other whole number is a timestamp in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# Configs


class ResourceType(IntEnum):
    """What has settings."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """One thing that has settings; a broker's name is its id, and empty for the default of all brokers."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> "ConfigResource":
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | str = "") -> "ConfigResource":
        """A broker, or the default of all."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def group(cls, name: str) -> "ConfigResource":
        """A group."""
        return cls(ResourceType.GROUP, name)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: int = 0
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterOp(IntEnum):
    """What to do with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# Groups


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by name."""

    group_id: str
    type: str
    """classic, consumer, share ...; empty when the broker does not say."""
    protocol_type: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member, what it has and (new protocol) what it should have."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    rack: str | None = None
    member_epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None
    authorized_operations: frozenset[AclOperation] | None = None


# Access rules


class AclBinding(NamedTuple):
    """One access rule."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL


class AclFilter(NamedTuple):
    """Which access rules; None and ANY match all."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY


# Replicas


class ElectionType(IntEnum):
    """Whom to elect."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move under way."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a log dir."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log dir of a broker; `error_code` is not 0 when it has failed."""

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaInfo]
    cordoned: bool = False


# Transactions


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in brief."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What a transactional id is doing; `start_time_ms` is None outside of a transaction."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer as a partition remembers it; `transaction_start_offset` is None outside of a transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None


# Quorum and features


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """How far one node of the quorum has come."""

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The controller quorum as its leader sees it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    nodes: Mapping[int, tuple[tuple[str, str, int], ...]]
    """Listeners of the voters: name, host, port."""


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The levels the cluster runs at, and those the asked broker could run at."""

    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]
    epoch: int


class UpgradeType(Enum):
    """How bold a change of level may be."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


# Quotas and credentials


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Parts of an entity, (user | client-id | ip, name); None is the default of that kind."""


class ScramMechanism(IntEnum):
    """How a password is kept."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class ScramCredential(NamedTuple):
    """A mechanism a user has, never the secret."""

    mechanism: ScramMechanism
    iterations: int


def operations(bits: int) -> frozenset[AclOperation] | None:
    """Authorized operations as the wire packs them; None when they were not asked for."""
    if bits == -(2**31):
        return None
    return frozenset(each for each in AclOperation if each > 2 and bits & (1 << each))
