"""The settings of topics and of the broker as far as replicas act on them."""

from dataclasses import dataclass, field

from klamm.net.outbound import OutboundSecurity
from klamm.storage import LogConfig
from klamm.storage.config import MAX_LONG


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a log obeys, how many replicas an acks=all write needs, and which replicas are copied slowly."""

    log: LogConfig = field(default_factory=LogConfig)
    min_insync_replicas: int = 1
    throttled_leaders: frozenset[str] = frozenset()
    """leader.replication.throttled.replicas: `partition:broker` each, or `*`."""
    throttled_followers: frozenset[str] = frozenset()
    """follower.replication.throttled.replicas, in the same form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """How this broker copies from leaders and serves followers: Kafka's replica.* settings."""

    lag_time_max_ms: int = 30_000
    fetch_max_bytes: int = 1_048_576
    fetch_wait_max_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_response_max_bytes: int = 10_485_760
    fetch_backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    socket_receive_buffer_bytes: int = -1
    fetchers: int = 1
    """Fetchers per leader; partitions are spread over them."""
    checkpoint_interval_ms: int = 5000
    leader_throttled_rate: int = MAX_LONG
    follower_throttled_rate: int = MAX_LONG
    security: OutboundSecurity | None = None
    """How other brokers are connected to; None for a PLAINTEXT listener."""


def is_throttled(names: frozenset[str], partition: int, broker: int) -> bool:
    """Whether a list of throttled replicas names this one."""
    return bool(names) and ("*" in names or f"{partition}:{broker}" in names)
