"""The configs of consumer groups, from those of the node."""

from typing import Final

from klamm.coordinator.groups.assignors import ASSIGNORS
from klamm.coordinator.groups.consumer.config import ConsumerGroupConfig, MigrationPolicy
from klamm.model.errors import ConfigError
from klamm.server.boot.config import NodeConfig

_CLASSES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""Class names that Kafka's configuration files use for its own assignors."""


def read_consumer_group_config(config: NodeConfig) -> ConsumerGroupConfig:
    """Return the configs of consumer groups."""

    def integer(name: str) -> int:
        return config.integer(f"group.consumer.{name}")

    return ConsumerGroupConfig(
        session_timeout_ms=integer("session.timeout.ms"),
        min_session_timeout_ms=integer("min.session.timeout.ms"),
        max_session_timeout_ms=integer("max.session.timeout.ms"),
        heartbeat_interval_ms=integer("heartbeat.interval.ms"),
        min_heartbeat_interval_ms=integer("min.heartbeat.interval.ms"),
        max_heartbeat_interval_ms=integer("max.heartbeat.interval.ms"),
        max_size=integer("max.size"),
        assignors=_read_assignors(config),
        migration_policy=MigrationPolicy(str(config.text("group.consumer.migration.policy")).lower()),
        assignment_interval_ms=integer("assignment.interval.ms"),
        min_assignment_interval_ms=integer("min.assignment.interval.ms"),
        max_assignment_interval_ms=integer("max.assignment.interval.ms"),
    )


def _read_assignors(config: NodeConfig) -> tuple[str, ...]:
    listed = config.value("group.consumer.assignors")
    assert isinstance(listed, tuple)
    names = tuple(_CLASSES.get(str(name), str(name)) for name in listed)
    for name in names:
        if name not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise ConfigError(f"group.consumer.assignors: there is no assignor {name}; write some of {known}")
    # The first one is the default assignor of a group, so the order is kept.
    return tuple(dict.fromkeys(names))
