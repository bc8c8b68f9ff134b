"""Replicas: leader elections, log dirs, reassignments."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes, by_topic
from klamm.client.admin.replica_types import ElectionType, LogDirDescription, Reassignment, ReplicaInfo
from klamm.client.core.arguments import by_place, place, places, several, texts
from klamm.client.errors import raise_for
from klamm.client.types import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from klamm.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


class ReplicasAdmin(AdminBase):
    """Requests about replicas."""

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        election: ElectionType = ElectionType.PREFERRED,
    ) -> dict[TopicPartition, bool]:
        """Elect the preferred (or any living) replica; True where the leader changed, False where it need not."""
        wanted = (
            None
            if partitions is None
            else [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(places(partitions, "elect_leaders")).items()
            ]
        )
        request = ElectLeadersRequest(
            election_type=int(election), topic_partitions=wanted, timeout_ms=self._request_timeout_ms
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            raise_for(response.error_code)
            for topic in response.replica_election_results:
                for partition in topic.partition_result:
                    # Not a failure: the requested state holds already.
                    not_needed = partition.error_code == ErrorCode.ELECTION_NOT_NEEDED
                    outcomes.add(
                        TopicPartition(topic.topic, partition.partition_id),
                        0 if not_needed else partition.error_code,
                        partition.error_message,
                        not not_needed,
                    )

        return await self._send_for_items(request, read)

    async def alter_partition_reassignments(
        self, moves: Mapping[TopicPartition, Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Start to move partitions to these replicas, preferred leader first; None cancels a reassignment."""
        wanted = by_place(moves, "alter_partition_reassignments")
        topics = []
        for topic, indexes in by_topic(wanted).items():
            parts = []
            for index in indexes:
                replicas = wanted[TopicPartition(topic, index)]
                parts.append(
                    ReassignablePartition(partition_index=index, replicas=None if replicas is None else list(replicas))
                )
            topics.append(ReassignableTopic(name=topic, partitions=parts))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._request_timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=topics,
        )

        def read(response: Any, outcomes: Outcomes) -> None:
            raise_for(response.error_code, response.error_message)
            for topic in response.responses:
                for partition in topic.partitions:
                    outcomes.add(
                        TopicPartition(topic.name, partition.partition_index),
                        partition.error_code,
                        partition.error_message,
                    )

        await self._send_for_items(request, read)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves under way, all or those of some partitions."""
        wanted = (
            None
            if partitions is None
            else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(places(partitions, "list_partition_reassignments")).items()
            ]
        )
        request = ListPartitionReassignmentsRequest(timeout_ms=self._request_timeout_ms, topics=wanted)
        response = await self._send(request)
        return {
            TopicPartition(topic.name, partition.partition_index): Reassignment(
                tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
            )
            for topic in response.topics
            for partition in topic.partitions
        }

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, topics: Iterable[str] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """The log dirs of brokers (all without) and the replicas in them."""
        chosen = None if brokers is None else several(brokers, int, "describe_log_dirs, brokers")
        wanted = None
        if topics is not None:
            names = texts(topics, "describe_log_dirs, topics")
            await self._retrying(functools.partial(self.cluster.refresh, names))
            wanted = [
                DescribableLogDirTopic(topic=name, partitions=sorted(self.cluster.table.topics[name].partitions))
                for name in names
                if name in self.cluster.table.topics
            ]
        request = DescribeLogDirsRequest(topics=wanted)
        ids = await self._broker_ids() if chosen is None else chosen
        responses = await self._send_to_brokers(ids, request)
        return {
            broker: [
                LogDirDescription(
                    result.log_dir,
                    result.error_code,
                    result.total_bytes,
                    result.usable_bytes,
                    {
                        TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                            partition.partition_size, partition.offset_lag, partition.is_future_key
                        )
                        for topic in result.topics
                        for partition in topic.partitions
                    },
                    result.is_cordoned,
                )
                for result in response.results
            ]
            for broker, response in responses.items()
        }

    async def alter_replica_log_dirs(self, moves: Mapping[tuple[TopicPartition, int], str]) -> None:
        """Move replicas, by (partition, broker), to other log dirs of their broker."""
        brokers: dict[int, dict[str, list[TopicPartition]]] = {}
        for (where, broker), path in moves.items():
            brokers.setdefault(broker, {}).setdefault(path, []).append(place(where, "alter_replica_log_dirs"))
        outcomes = Outcomes()
        for broker, paths in brokers.items():
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path=path,
                        topics=[
                            AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                            for topic, indexes in by_topic(places).items()
                        ],
                    )
                    for path, places in paths.items()
                ]
            )
            response = await self._send(request, broker=broker)
            for topic in response.results:
                for partition in topic.partitions:
                    outcomes.add(
                        (TopicPartition(topic.topic_name, partition.partition_index), broker), partition.error_code
                    )
        outcomes.results_or_raise()
