"""Topics created, deleted and given more partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.topic_types import CreatedTopic
from klamm.client.core.arguments import config_texts, several, texts
from klamm.client.types import NewPartitions, NewTopic
from klamm.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from klamm.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

if TYPE_CHECKING:
    from klamm.client.config import ConfigValue


class TopicChangesAdmin(AdminBase):
    """Requests that change which topics there are."""

    async def create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, ConfigValue] | None = None,
        replica_assignment: Mapping[int, Iterable[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """One topic; counts of -1 are the broker's defaults; `configs` are text, numbers, booleans or lists of text."""
        placed = (
            None
            if replica_assignment is None
            else {key: list(replicas) for key, replicas in replica_assignment.items()}
        )
        values: Mapping[str, Any] = configs or {}
        new = NewTopic(name, num_partitions, replication_factor, values, placed)
        return (await self.create_topics([new], validate_only=validate_only))[name]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> dict[str, CreatedTopic]:
        """Create topics; they can be used when this returns."""
        wanted = [
            CreatableTopic(
                name=topic.name,
                # An assignment fixes both counts, and brokers refuse a request with both.
                num_partitions=-1 if topic.replica_assignment else topic.num_partitions,
                replication_factor=-1 if topic.replica_assignment else topic.replication_factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                    for index, replicas in sorted((topic.replica_assignment or {}).items())
                ],
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in config_texts(topic.configs, f"topic {topic.name}")
                ],
            )
            for topic in several(topics, NewTopic, "create_topics", 'NewTopic("orders")')
        ]
        if not wanted:
            return {}
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        request = CreateTopicsRequest(topics=wanted, timeout_ms=int(limit_s * 1000), validate_only=validate_only)

        def read(response: Any, outcomes: Outcomes) -> None:
            for topic in response.topics:
                made = CreatedTopic(
                    topic.name,
                    topic.topic_id,
                    topic.num_partitions,
                    topic.replication_factor,
                    {entry.name: entry.value for entry in topic.configs or ()},
                )
                outcomes.add(topic.name, topic.error_code, topic.error_message, made)

        return await self._send_for_items(request, read, timeout_s=limit_s)

    async def delete_topics(self, names: Iterable[str], *, timeout_s: float | None = None) -> None:
        """Remove topics and their records."""
        wanted = texts(names, "delete_topics")
        if not wanted:
            return
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted], topic_names=wanted, timeout_ms=int(limit_s * 1000)
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            for result in response.responses:
                outcomes.add(result.name, result.error_code, result.error_message)

        await self._send_for_items(request, read, timeout_s=limit_s)

    async def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> None:
        """Give topics more partitions; the numbers are totals."""
        topics = []
        for name, wanted in counts.items():
            if isinstance(wanted, bool) or not isinstance(wanted, int | NewPartitions):
                raise TypeError(f"create_partitions takes {{topic: total}}; {wanted!r} is no number of partitions")
            new = wanted if isinstance(wanted, NewPartitions) else NewPartitions(wanted)
            placed = new.assignments
            topics.append(
                CreatePartitionsTopic(
                    name=name,
                    count=new.total_count,
                    assignments=None
                    if placed is None
                    else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in placed],
                )
            )
        request = CreatePartitionsRequest(
            topics=topics, timeout_ms=int(self._timeout_s * 1000), validate_only=validate_only
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            for result in response.results:
                outcomes.add(result.name, result.error_code, result.error_message)

        await self._send_for_items(request, read)
