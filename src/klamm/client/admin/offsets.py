"""Offsets of partitions by time, and records deleted up to an offset."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes, by_topic
from klamm.client.core.arguments import by_place
from klamm.client.types import OffsetAndTimestamp, TopicPartition
from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic


class OffsetsAdmin(AdminBase):
    """Requests about offsets."""

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
            return DeleteRecordsRequest(topics=topics, timeout_ms=self._request_timeout_ms)

        def read(response: Any, outcomes: Outcomes) -> None:
            for topic in response.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    outcomes.add(where, partition.error_code, None, partition.low_watermark)

        return await self._send_to_leaders(places, request, read)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by `OffsetSpec` or timestamp (ms); offset -1 when there is nothing at or after the time."""
        places = {where: int(spec) for where, spec in by_place(specs, "list_offsets").items()}
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation={isolation}: write read_uncommitted or read_committed")
        if not places:
            return {}

        def read(response: Any, outcomes: Outcomes) -> None:
            for where, code, position in _offsets_of(response):
                outcomes.add(where, code, None, position)

        request = functools.partial(_list_offsets_request, places, isolation, self._request_timeout_ms)
        return await self._send_to_leaders(places, request, read)

    async def list_available_offsets(
        self, specs: Mapping[TopicPartition, int], *, isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """As `list_offsets`, leaving out partitions that do not exist, have no leader, or whose leader refuses."""
        places = {where: int(spec) for where, spec in by_place(specs, "list_available_offsets").items()}
        if not places:
            return {}
        await self.cluster.refresh({where.topic for where in places})
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in places:
            by_leader.setdefault(self.cluster.table.leader(where), []).append(where)
        # No leader: left out, not an error.
        by_leader.pop(-1, None)
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}
        for leader, mine in by_leader.items():
            request = _list_offsets_request(places, isolation, self._request_timeout_ms, by_topic(mine))
            response = await self.request(request, broker=leader)
            offsets.update({where: position for where, code, position in _offsets_of(response) if not code})
        return offsets


def _list_offsets_request(
    specs: Mapping[TopicPartition, int], isolation: str, timeout_ms: int, partitions: Mapping[str, list[int]]
) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if isolation == "read_committed" else 0,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=specs[TopicPartition(topic, index)])
                    for index in indexes
                ],
            )
            for topic, indexes in partitions.items()
        ],
        timeout_ms=timeout_ms,
    )


def _offsets_of(response: Any) -> Iterator[tuple[TopicPartition, int, OffsetAndTimestamp]]:
    """Each partition of a response with its error code and offset."""
    for topic in response.topics:
        for partition in topic.partitions:
            yield (
                TopicPartition(topic.name, partition.partition_index),
                partition.error_code,
                OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch),
            )
