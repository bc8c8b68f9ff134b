"""The settings of a topic as far as its replicas act on them."""

from dataclasses import dataclass, field

from klamm.storage import LogConfig


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a log obeys, and how many replicas an acks=all write needs."""

    log: LogConfig = field(default_factory=LogConfig)
    min_insync_replicas: int = 1
