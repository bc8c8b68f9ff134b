"""Requests about offsets: by time, committed, and where the epoch of a position ended in the leader's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.client.cluster import ClusterClient
from klamm.client.connection import Connection
from klamm.client.core.metadata import BrokerAddress
from klamm.client.core.routing import ADMIN, GROUP, GROUP_COORDINATOR
from klamm.client.errors import CommitFailedError, KafkaError, error_for, raise_for
from klamm.client.types import OffsetAndMetadata, OffsetAndTimestamp
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from klamm.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST = -1, -2
_BY_NAME = 9
"""The newest version of OffsetCommit and OffsetFetch that names topics; v10 has topic ids instead."""

_NOT_A_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)
_ANOTHER_HAS_IT = (
    "the group has rebalanced and given the partition to another member, most likely because polls were more than "
    "max.poll.interval.ms apart; poll more often, raise max.poll.interval.ms or lower max.poll.records"
)
_NO_MEMBER = "the group has members and this consumer is none of them; subscribe, or use a group.id of its own"


class GroupCoordinator:
    """The broker that coordinates a group; looked up again when it moved."""

    def __init__(self, cluster: ClusterClient, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self._broker: BrokerAddress | None = None

    async def connection(self, purpose: str = GROUP) -> Connection:
        """A connection to the coordinator, apart from those that fetch.

        A broker answers the requests of a connection in order, and JoinGroup only when all members have joined:
        requests that must not wait for that use ADMIN.
        """
        if self._broker is None:
            self._broker = await self.cluster.find_coordinator(GROUP_COORDINATOR, self.group_id)
        try:
            return await self.cluster.connect(self._broker.host, self._broker.port, purpose)
        except KafkaError:
            self._broker = None
            raise

    def forget(self) -> None:
        """Look the coordinator up again before the next request."""
        self._broker = None

    def check_moved(self, error: KafkaError) -> None:
        """Look the coordinator up again if an error shows that it moved or died."""
        moved = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)
        if error.code in moved or error.code is ErrorCode.REQUEST_TIMED_OUT:
            self._broker = None


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], timeout_s: float, *, committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Offsets at times (ms), LATEST or EARLIEST, from the leaders; retried until all have answered, in given order."""
    offsets: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def once() -> None:
        # A retry asks only for the partitions that failed.
        left = {where: time for where, time in wanted.items() if where not in offsets}
        by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        refusal = None
        unknown = {where.topic for where in left} - set(cluster.table.topics)
        if unknown:
            await cluster.refresh(unknown)
        for where, time in left.items():
            known = cluster.table.partition(where)
            if known is None or known.leader < 0:
                refusal = error_for(ErrorCode.LEADER_NOT_AVAILABLE if known else 3, f"{where} has no leader")
                continue
            requested = ListOffsetsPartition(
                partition_index=where.partition, current_leader_epoch=known.leader_epoch, timestamp=time
            )
            by_leader.setdefault(known.leader, {}).setdefault(where.topic, []).append(requested)
        for leader, topics in by_leader.items():
            connection = await cluster.connection(leader, ADMIN)
            request = ListOffsetsRequest(
                replica_id=-1,
                # read_committed: LATEST is the last stable offset.
                isolation_level=1 if committed else 0,
                topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
                timeout_ms=cluster.settings.number("request.timeout.ms"),
            )
            for topic in (await connection.request(request)).topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code:
                        refusal = error_for(partition.error_code, str(where))
                    else:
                        offsets[where] = OffsetAndTimestamp(
                            partition.offset, partition.timestamp, partition.leader_epoch
                        )
        # Only after all leaders were asked: one that fails does not hold up the others.
        if refusal is not None:
            raise refusal

    await cluster.retrying(once, timeout_s, lambda _: cluster.request_update())
    return {where: offsets[where] for where in wanted if where in offsets}


async def epoch_ends(
    cluster: ClusterClient, leader: int, wanted: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Where epochs ended in the leader's log: (current epoch, epoch of the position) -> (epoch, end offset).

    Partitions whose leader answered an error are left out.
    """
    connection = await cluster.connection(leader, ADMIN)
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for where, (current, requested) in wanted.items():
        topics.setdefault(where.topic, []).append(
            OffsetForLeaderPartition(partition=where.partition, current_leader_epoch=current, leader_epoch=requested)
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=parts) for name, parts in topics.items()]
    )
    response = await connection.request(request)
    return {
        TopicPartition(topic.topic, partition.partition): (partition.leader_epoch, partition.end_offset)
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


async def fetch_committed(
    coordinator: GroupCoordinator, partitions: Iterable[TopicPartition], timeout_s: float, *, stable: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed offsets of the group; partitions without are left out."""
    by_topic: dict[str, list[int]] = {}
    for where in partitions:
        by_topic.setdefault(where.topic, []).append(where.partition)
    request = OffsetFetchRequest(
        group_id=coordinator.group_id,
        # Both forms: `topics` up to v7, `groups` from v8 on (KIP-709). The encoder writes what the version has.
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=coordinator.group_id,
                topics=[
                    OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()
                ],
            )
        ],
        # KIP-447: UNSTABLE_OFFSET_COMMIT, which is retried, while a transaction that commits these offsets is open.
        require_stable=stable,
    )

    async def once() -> dict[TopicPartition, OffsetAndMetadata]:
        connection = await coordinator.connection(ADMIN)
        response = await connection.request(request, connection.version_of("OffsetFetch", _BY_NAME))
        group = response.groups[0] if response.groups else response
        raise_for(group.error_code, coordinator.group_id)
        offsets = {}
        for topic in group.topics:
            for partition in topic.partitions:
                raise_for(partition.error_code, f"{topic.name}-{partition.partition_index}")
                if partition.committed_offset >= 0:
                    offsets[TopicPartition(topic.name, partition.partition_index)] = OffsetAndMetadata(
                        partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                    )
        return offsets

    return await coordinator.cluster.retrying(once, timeout_s, coordinator.check_moved)


async def commit(
    coordinator: GroupCoordinator,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    member: Any,
    timeout_s: float,
) -> None:
    """Commit offsets as a member of the group; `member` returns generation and member id, called for every attempt."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for where, position in offsets.items():
        by_topic.setdefault(where.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=where.partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )

    async def once() -> None:
        connection = await coordinator.connection(ADMIN)
        metadata = member()
        request = OffsetCommitRequest(
            group_id=coordinator.group_id,
            generation_id_or_member_epoch=metadata.generation_id,
            member_id=metadata.member_id,
            group_instance_id=metadata.group_instance_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
        )
        response = await connection.request(request, connection.version_of("OffsetCommit", _BY_NAME))
        for topic in response.topics:
            for partition in topic.partitions:
                # KIP-848: a heartbeat raised the member epoch while the commit was under way. The member is still in
                # the group, so a retriable error makes `retrying` send it again with the new epoch.
                if partition.error_code == ErrorCode.STALE_MEMBER_EPOCH and member() != metadata:
                    raise error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the member epoch changed meanwhile")
                if partition.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                    raise CommitFailedError(
                        ErrorCode.REBALANCE_IN_PROGRESS,
                        "the group rebalances; poll, then commit offsets of partitions that are still assigned",
                    )
                where = f"{topic.name}-{partition.partition_index}"
                if partition.error_code in _NOT_A_MEMBER:
                    raise error_for(
                        partition.error_code, f"{where}: {_ANOTHER_HAS_IT if metadata.member_id else _NO_MEMBER}"
                    )
                raise_for(partition.error_code, where)

    await coordinator.cluster.retrying(once, timeout_s, coordinator.check_moved)
