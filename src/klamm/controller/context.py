"""The input of a decision (ControllerContext) and its result (ControllerDecision)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NoReturn, Protocol, TypeVar

from klamm.controller.config_validation import ConfigValidator, Layers
from klamm.metadata.image import UNASSIGNED_DIR, FeatureRange, MetadataImage
from klamm.model.config import SettingValue
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages.metadata_records import MetadataRecord
from klamm.security.core.client_quotas import MutationCharge
from klamm.security.core.delegation_tokens import TokenSettings
from klamm.security.core.quota_windows import WindowConfig

R = TypeVar("R")

KRAFT_VERSION = "kraft.version"
METADATA_VERSION = "metadata.version"
ELR_VERSION = "eligible.leader.replicas.version"
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"

# metadata.version 30 is Kafka 4.3's, whose record formats this build writes.
_FINALIZED_FEATURES = {METADATA_VERSION: 30, ELR_VERSION: 1, GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
_SUPPORTED_FEATURES = {
    METADATA_VERSION: FeatureRange(30, 30),
    ELR_VERSION: FeatureRange(0, 1),
    GROUP_VERSION: FeatureRange(0, 1),
    TRANSACTION_VERSION: FeatureRange(0, 2),
}


@dataclass(frozen=True, slots=True)
class ControllerDecision(Generic[R]):
    """Records to write atomically, and the response to send once they are committed."""

    records: tuple[MetadataRecord, ...]
    response: R
    divisible: bool = False
    """Whether the records may be written in several batches, so that their number is not limited by the batch size."""


def refuse(code: ErrorCode, message: str = "") -> NoReturn:
    """Reject one part of a request; the other parts are handled."""
    raise KlammError(code, message)


class RandomSource(Protocol):
    """A source of randomness; `random.Random(seed)` is one."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to, not including, `stop`."""

    def randbytes(self, n: int, /) -> bytes:
        """`n` bytes."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The configs of the controller; names are Kafka's."""

    node_id: int
    cluster_id: str
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    broker_session_timeout_ms: int = 9_000
    max_partitions_per_request: int = 10_000
    finalized_features: Mapping[str, int] = field(default_factory=partial(dict, _FINALIZED_FEATURES))
    """The feature levels of a new cluster: only features that this build supports completely."""
    supported_features: Mapping[str, FeatureRange] = field(default_factory=partial(dict, _SUPPORTED_FEATURES))
    mutation_window: WindowConfig = field(default_factory=WindowConfig)
    """controller.quota.window.num, controller.quota.window.size.seconds"""
    tokens: TokenSettings = field(default_factory=TokenSettings)
    first_records: tuple[MetadataRecord, ...] = ()
    """What else a new cluster begins with: credentials that were given when the folders were formatted."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """The state and helpers that a decision reads; immutable."""

    image: MetadataImage
    config: ControllerConfig
    validator: ConfigValidator
    random: RandomSource
    mutations: MutationCharge | None = None
    """The quota of changes of the client that sent the request; None without one."""

    def charge(self, partitions: int) -> None:
        """Count partitions that are created or deleted; KlammError THROTTLING_QUOTA_EXCEEDED above the quota."""
        if self.mutations is not None:
            self.mutations.charge(partitions)

    @property
    def throttle_ms(self) -> int:
        """How long the client of the request has to wait for its quota of changes."""
        return self.mutations.throttle_ms if self.mutations is not None else 0

    @property
    def elr_enabled(self) -> bool:
        """Whether replicas that left the ISR below its minimum may still be elected (KIP-966)."""
        return self.image.features.get(ELR_VERSION, 0) >= 1

    def topic_value(self, topic: str, name: str) -> SettingValue:
        """The value of a topic config in force: the topic's own, or what the brokers' settings imply."""
        own = self.image.topic_values(topic).get(name)
        return own if own is not None else self.validator.inherited_by_topics(name, self.broker_values())

    def broker_configs(self) -> Layers[str]:
        """Dynamic broker configs that topics inherit: those of this node, then those of all brokers."""
        return self.image.broker_configs(self.config.node_id), self.image.broker_configs(None)

    def broker_values(self) -> Layers[SettingValue]:
        """The values of the same configs."""
        return self.image.broker_values(self.config.node_id), self.image.broker_values(None)

    def default_directory(self, broker_id: int) -> Uuid:
        """The directory of a new replica: the broker's only one, or UNASSIGNED until the broker has chosen."""
        broker = self.image.cluster.get(broker_id)
        online = broker.directories if broker is not None else ()
        # With several directories the broker chooses, and reports with AssignReplicasToDirs.
        return online[0] if len(online) == 1 else UNASSIGNED_DIR

    def min_insync_replicas(self, topic: str, replicas: int) -> int:
        """min.insync.replicas of a topic, at most the number of replicas."""
        needed = self.topic_value(topic, "min.insync.replicas")
        assert isinstance(needed, int)
        return min(needed, replicas)

    def unclean_election_allowed(self, topic: str) -> bool:
        """Whether unclean.leader.election.enable is true for the topic."""
        return self.topic_value(topic, "unclean.leader.election.enable") is True
