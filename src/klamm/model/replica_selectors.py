"""The values of replica.selector.class: which replica a consumer reads from (KIP-392)."""

from typing import Final

LEADER: Final = "org.apache.kafka.common.replica.LeaderSelector"
"""Consumers read from the leader, as without a selector."""
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Consumers read from a replica in their rack."""
