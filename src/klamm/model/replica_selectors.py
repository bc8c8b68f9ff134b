"""The values of replica.selector.class: which replica a consumer reads from (KIP-392)."""

from typing import Final

LEADER: Final = "org.apache.kafka.common.replica.LeaderSelector"
"""Consumers read from leaders, as without a selector."""
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Consumers are sent to the nearest replica."""
