"""Settings of consumer groups: those of the broker, and those a group overrides."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from klamm.model.config import SettingValue

MAX_INT = 2**31 - 1


class MigrationPolicy(Enum):
    """Whether groups may change their protocol while they are in use (`group.consumer.migration.policy`)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """Names follow Kafka's settings without `group.consumer`; times in milliseconds."""

    session_timeout_ms: int = 45_000
    min_session_timeout_ms: int = 45_000
    max_session_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 5000
    min_heartbeat_interval_ms: int = 5000
    max_heartbeat_interval_ms: int = 15_000
    max_size: int = MAX_INT
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first one is the default."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    assignment_interval_ms: int = 1000
    min_assignment_interval_ms: int = 0
    max_assignment_interval_ms: int = 15_000

    def session_timeout_of(self, own: Mapping[str, SettingValue]) -> int:
        """The session timeout of a group with these settings of its own, within the broker's limits."""
        value = _milliseconds(own, "consumer.session.timeout.ms", self.session_timeout_ms)
        return min(max(value, self.min_session_timeout_ms), self.max_session_timeout_ms)

    def heartbeat_interval_of(self, own: Mapping[str, SettingValue]) -> int:
        """The heartbeat interval of a group, likewise."""
        value = _milliseconds(own, "consumer.heartbeat.interval.ms", self.heartbeat_interval_ms)
        return min(max(value, self.min_heartbeat_interval_ms), self.max_heartbeat_interval_ms)

    def assignment_interval_of(self, own: Mapping[str, SettingValue], cluster: Mapping[str, SettingValue]) -> int:
        """The shortest time between two targets of a group, likewise; its default is the cluster's dynamic setting."""
        cluster_default = _milliseconds(cluster, "group.consumer.assignment.interval.ms", self.assignment_interval_ms)
        value = _milliseconds(own, "consumer.assignment.interval.ms", cluster_default)
        return min(max(value, self.min_assignment_interval_ms), self.max_assignment_interval_ms)


def _milliseconds(values: Mapping[str, SettingValue], name: str, default: int) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else default
