"""Settings of groups."""

from dataclasses import dataclass, field

from klamm.coordinator.groups.consumer.config import ConsumerGroupConfig

MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Names follow Kafka's settings; times in milliseconds."""

    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3000
    max_size: int = MAX_INT
    # Kafka's default max.message.bytes is 1,048,588; the difference covers batch header and record overhead.
    record_bytes_max: int = 1_048_000
    """The most one decision may write to the internal topic; larger requests are refused."""
    new_member_join_timeout_ms: int = 300_000
    """How long a new member, which sends no heartbeats yet, may wait in a join; Kafka's constant."""
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
