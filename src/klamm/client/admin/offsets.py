"""Offsets of partitions by time, and records deleted up to an offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes
from klamm.client.arguments import by_place
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
                timeout_ms=self._request_timeout_ms,
            )

        def read(answer: Any, outcomes: Outcomes) -> None:
            for topic in answer.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    found = OffsetAndTimestamp(partition.offset, partition.timestamp, partition.leader_epoch)
                    outcomes.add(where, partition.error_code, None, found)

        return await self._settle_by_leader(places, request, read)
