"""Topics and their partitions, listed and described."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from klamm.client.admin.authorized_operations import operations
from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.topic_types import PartitionDescription, TopicDescription, TopicListing
from klamm.client.core.arguments import texts
from klamm.client.errors import UnsupportedVersionError, raise_for
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

PARTITION_LIMIT = 2000
"""Partitions of one DescribeTopicPartitions response, Kafka's own limit."""


class TopicsAdmin(AdminBase):
    """Requests about topics."""

    async def list_topics(self, *, internal: bool = False) -> list[TopicListing]:
        """All topics by name; internal ones only with `internal`."""
        response = await self._send(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        topics = [
            TopicListing(topic.name, topic.topic_id, topic.is_internal)
            for topic in response.topics
            if topic.name and (internal or not topic.is_internal)
        ]
        return sorted(topics)

    async def describe_topics(
        self,
        names: Iterable[str] | None = None,
        *,
        authorized_operations: bool = False,
        response_partition_limit: int = PARTITION_LIMIT,
    ) -> dict[str, TopicDescription]:
        """Topics and their partitions, all of them without names; an unknown one is UnknownTopicOrPartitionError.

        Brokers describe at most `response_partition_limit` partitions in a response; the rest needs more requests.
        """
        wanted = None if names is None else texts(names, "describe_topics")
        if wanted == []:
            return {}
        try:
            return await self._describe_by_pages(wanted, response_partition_limit)
        except UnsupportedVersionError:
            return await self.describe_topics_by_metadata(wanted, authorized_operations=authorized_operations)

    async def _describe_by_pages(self, names: list[str] | None, limit: int) -> dict[str, TopicDescription]:
        from klamm.protocol.messages.describe_topic_partitions import (  # noqa: PLC0415 - listing topics needs none
            DescribeTopicPartitionsRequest,
            TopicRequest,
        )

        outcomes = Outcomes()
        cursor = None
        collected: dict[str, TopicDescription] = {}
        while True:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in sorted(names or ())],
                response_partition_limit=limit,
                cursor=cursor,
            )
            response = await self._send(request)
            for topic in response.topics:
                parts = tuple(
                    PartitionDescription(
                        partition.partition_index,
                        partition.leader_id,
                        partition.leader_epoch,
                        tuple(partition.replica_nodes),
                        tuple(partition.isr_nodes),
                        tuple(partition.offline_replicas),
                        None
                        if partition.eligible_leader_replicas is None
                        else tuple(partition.eligible_leader_replicas),
                        None if partition.last_known_elr is None else tuple(partition.last_known_elr),
                    )
                    for partition in topic.partitions
                )
                before = collected.get(topic.name)
                collected[topic.name] = TopicDescription(
                    topic.name,
                    topic.topic_id,
                    topic.is_internal,
                    (before.partitions if before else ()) + parts,
                    operations(topic.topic_authorized_operations),
                )
                outcomes.add(topic.name, topic.error_code, None, collected[topic.name])
            if response.next_cursor is None:
                break
            cursor = response.next_cursor
        return outcomes.results_or_raise()

    async def describe_topics_by_metadata(
        self, names: Iterable[str] | None = None, *, authorized_operations: bool = False
    ) -> dict[str, TopicDescription]:
        """As `describe_topics`, in one response that every broker version gives; eligible leader replicas are None."""
        wanted = None if names is None else texts(names, "describe_topics_by_metadata")
        topics = None if wanted is None else [MetadataRequestTopic(name=name) for name in wanted]
        response = await self._send(
            MetadataRequest(
                topics=topics,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=authorized_operations,
            )
        )
        outcomes = Outcomes()
        for topic in response.topics:
            parts = tuple(
                PartitionDescription(
                    partition.partition_index,
                    partition.leader_id,
                    partition.leader_epoch,
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                    tuple(partition.offline_replicas),
                )
                for partition in sorted(topic.partitions, key=attrgetter("partition_index"))
            )
            description = TopicDescription(
                topic.name, topic.topic_id, topic.is_internal, parts, operations(topic.topic_authorized_operations)
            )
            # A topic that is just being created has no leaders yet; its partitions are described all the same.
            code = 0 if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE else topic.error_code
            outcomes.add(topic.name, code, None, description)
        return outcomes.results_or_raise()

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic."""

        async def once() -> list[TopicPartition]:
            await self.cluster.refresh([topic])
            metadata = self.cluster.table.topics.get(topic)
            raise_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if metadata is None else metadata.error_code, f"topic {topic}"
            )
            assert metadata is not None
            return [TopicPartition(topic, partition) for partition in metadata.partitions]

        return await self._retrying(once)
