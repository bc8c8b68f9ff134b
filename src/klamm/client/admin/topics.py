"""Topics, their partitions, records and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.admin.types import CreatedTopic, PartitionDescription, TopicDescription, TopicListing, operations
from klamm.client.arguments import by_place, config_texts, several, texts
from klamm.client.config import ConfigValue
from klamm.client.errors import UnsupportedVersionError, raise_for
from klamm.client.types import NewPartitions, NewTopic, OffsetAndTimestamp, TopicPartition
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
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

_PAGE = 2000


class TopicsAdmin(AdminBase):
    """Questions and orders about topics."""

    async def list_topics(self, *, internal: bool = False) -> list[TopicListing]:
        """Every topic, by name; those the brokers keep for themselves only when asked for."""
        answer = await self._ask(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        found = [
            TopicListing(topic.name, topic.topic_id, topic.is_internal)
            for topic in answer.topics
            if topic.name and (internal or not topic.is_internal)
        ]
        return sorted(found)

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, authorized_operations: bool = False
    ) -> dict[str, TopicDescription]:
        """Topics and their partitions, all of them without names; an unknown one is UnknownTopicOrPartitionError."""
        wanted = None if names is None else texts(names, "describe_topics")
        if wanted == []:
            return {}
        try:
            return await self._describe_by_pages(wanted)
        except UnsupportedVersionError:
            return await self._describe_by_metadata(wanted, authorized_operations)

    async def _describe_by_pages(self, names: list[str] | None) -> dict[str, TopicDescription]:
        outcomes = Outcomes()
        cursor = None
        collected: dict[str, TopicDescription] = {}
        while True:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in sorted(names or ())],
                response_partition_limit=_PAGE,
                cursor=cursor,
            )
            answer = await self._ask(request)
            for topic in answer.topics:
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
            if answer.next_cursor is None:
                break
            cursor = answer.next_cursor
        return outcomes.settled()

    async def _describe_by_metadata(self, names: list[str] | None, authorized: bool) -> dict[str, TopicDescription]:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = await self._ask(
            MetadataRequest(
                topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=authorized
            )
        )
        outcomes = Outcomes()
        for topic in answer.topics:
            parts = tuple(
                PartitionDescription(
                    partition.partition_index,
                    partition.leader_id,
                    partition.leader_epoch,
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                    tuple(partition.offline_replicas),
                )
                for partition in sorted(topic.partitions, key=lambda part: part.partition_index)
            )
            found = TopicDescription(
                topic.name, topic.topic_id, topic.is_internal, parts, operations(topic.topic_authorized_operations)
            )
            outcomes.add(topic.name, topic.error_code, None, found)
        return outcomes.settled()

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
        placed = None if replica_assignment is None else {key: list(each) for key, each in replica_assignment.items()}
        values: Mapping[str, Any] = configs or {}
        new = NewTopic(name, num_partitions, replication_factor, values, placed)
        return (await self.create_topics([new], validate_only=validate_only))[name]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> dict[str, CreatedTopic]:
        """Create topics; they can be used when this returns."""
        wanted = [
            CreatableTopic(
                name=each.name,
                num_partitions=-1 if each.replica_assignment else each.num_partitions,
                replication_factor=-1 if each.replica_assignment else each.replication_factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                    for index, replicas in sorted((each.replica_assignment or {}).items())
                ],
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in config_texts(each.configs, f"topic {each.name}")
                ],
            )
            for each in several(topics, NewTopic, "create_topics", 'NewTopic("orders")')
        ]
        if not wanted:
            return {}
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        request = CreateTopicsRequest(topics=wanted, timeout_ms=int(limit_s * 1000), validate_only=validate_only)

        def read(answer: Any, outcomes: Outcomes) -> None:
            for topic in answer.topics:
                made = CreatedTopic(
                    topic.name,
                    topic.topic_id,
                    topic.num_partitions,
                    topic.replication_factor,
                    {entry.name: entry.value for entry in topic.configs or ()},
                )
                outcomes.add(topic.name, topic.error_code, topic.error_message, made)

        return await self._settle(request, read, timeout_s=limit_s)

    async def delete_topics(self, names: Iterable[str], *, timeout_s: float | None = None) -> None:
        """Remove topics and their records."""
        wanted = texts(names, "delete_topics")
        if not wanted:
            return
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=each) for each in wanted], topic_names=wanted, timeout_ms=int(limit_s * 1000)
        )

        def read(answer: Any, outcomes: Outcomes) -> None:
            for response in answer.responses:
                outcomes.add(response.name, response.error_code, response.error_message)

        await self._settle(request, read, timeout_s=limit_s)

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
                    else [CreatePartitionsAssignment(broker_ids=list(each)) for each in placed],
                )
            )
        request = CreatePartitionsRequest(
            topics=topics, timeout_ms=int(self._timeout_s * 1000), validate_only=validate_only
        )

        def read(answer: Any, outcomes: Outcomes) -> None:
            for result in answer.results:
                outcomes.add(result.name, result.error_code, result.error_message)

        await self._settle(request, read)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop all records before these offsets (-1: all there are); returns where each partition now begins."""
        places = by_place(before, "delete_records")

        def request(mine: dict[str, list[int]]) -> DeleteRecordsRequest:
            topics = [
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=partition, offset=places[TopicPartition(topic, partition)]
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in mine.items()
            ]
            return DeleteRecordsRequest(topics=topics, timeout_ms=self._settings.number("request.timeout.ms"))

        def read(answer: Any, outcomes: Outcomes) -> None:
            for topic in answer.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    outcomes.add(where, partition.error_code, None, partition.low_watermark)

        return await self._settle_by_leader(places, request, read)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by `OffsetSpec` or timestamp (ms); offset -1 when there is nothing at or after the time."""
        places = {where: int(spec) for where, spec in by_place(specs, "list_offsets").items()}
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation={isolation}: write read_uncommitted or read_committed")
        if not places:
            return {}

        def request(mine: dict[str, list[int]]) -> ListOffsetsRequest:
            topics = [
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=partition, timestamp=places[TopicPartition(topic, partition)]
                        )
                        for partition in partitions
                    ],
                )
                for topic, partitions in mine.items()
            ]
            return ListOffsetsRequest(
                replica_id=-1,
                isolation_level=1 if isolation == "read_committed" else 0,
                topics=topics,
                timeout_ms=self._settings.number("request.timeout.ms"),
            )

        def read(answer: Any, outcomes: Outcomes) -> None:
            for topic in answer.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    found = OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch)
                    outcomes.add(where, partition.error_code, None, found)

        return await self._settle_by_leader(places, request, read)

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic."""

        async def once() -> list[TopicPartition]:
            await self.cluster.refresh([topic])
            found = self.cluster.table.topics.get(topic)
            raise_for(3 if found is None else found.error_code, f"topic {topic}")
            assert found is not None
            return [TopicPartition(topic, partition) for partition in found.partitions]

        return await self._retrying(once)
