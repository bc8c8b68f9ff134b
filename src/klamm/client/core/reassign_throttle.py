"""The settings that slow down the copies of a reassignment (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.client.core.reassign_plan import ReplicaMove
from klamm.model.config_resources import ConfigResource

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Of brokers, in bytes per second."""
REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Of topics: PARTITION:BROKER,... to which the rates apply."""


def list_throttled_replicas(moves: Iterable[ReplicaMove]) -> dict[str, dict[str, str]]:
    """Return the settings of each topic whose replicas move."""
    by_topic: dict[str, tuple[list[str], list[str]]] = {}
    for move in moves:
        leaders, followers = by_topic.setdefault(move.topic, ([], []))
        # Every current replica may be the leader while the move lasts; only new ones fetch out of sync.
        leaders += [f"{move.partition}:{broker}" for broker in move.before]
        followers += [f"{move.partition}:{broker}" for broker in move.after if broker not in move.before]
    return {
        topic: {name: ",".join(words) for name, words in zip(REPLICAS, listed, strict=True) if words}
        for topic, listed in by_topic.items()
    }


def set_throttle(
    moves: Iterable[ReplicaMove], brokers: Iterable[int], rate: int
) -> dict[ConfigResource, Mapping[str, str | None]]:
    """Return the changes that throttle moves; they are made before the moves, whose fetchers start at full speed."""
    changes: dict[ConfigResource, Mapping[str, str | None]] = {
        ConfigResource.topic(topic): dict(settings) for topic, settings in list_throttled_replicas(moves).items()
    }
    # The rate alone throttles nothing: it applies to the replicas listed by the topics.
    for broker in brokers:
        changes[ConfigResource.broker(broker)] = dict.fromkeys(RATES, str(rate))
    return changes


def clear_throttle(topics: Iterable[str], brokers: Iterable[int]) -> dict[ConfigResource, Mapping[str, str | None]]:
    """Return the changes that remove a throttle."""
    changes: dict[ConfigResource, Mapping[str, str | None]] = {
        ConfigResource.topic(topic): dict.fromkeys(REPLICAS) for topic in topics
    }
    for broker in brokers:
        changes[ConfigResource.broker(broker)] = dict.fromkeys(RATES)
    return changes
