"""A cluster that is looked at: no question of a command makes the broker create the topic it is about."""

from __future__ import annotations

from typing import Any

from klamm.cli.queries.topics import find_topics
from klamm.client.blocking_cluster import BlockingCluster, BlockingConnection
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.metadata import MetadataRequest


class LookingCluster(BlockingCluster):
    """All brokers, asked about topics as Java's admin client asks: a topic that is not there stays away."""

    def ask(self, request: Any) -> Any:
        """Ask whoever was reached first."""
        if isinstance(request, MetadataRequest):
            request.allow_auto_topic_creation = False
        return super().ask(request)

    def leader(self, topic: str, partition: int) -> BlockingConnection:
        """The broker that leads a partition."""
        found = next((each for each in find_topics(self, [topic])[0].partitions if each.index == partition), None)
        if found is None:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no partition {partition}")
        if found.leader < 0:
            raise KlammError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {topic}-{partition}")
        return self.broker(found.leader)
