"""How old the oldest unread record of a group is: the record's own timestamp, read from the log.

A record at an offset keeps its timestamp, so a group that stands still is read once, and its lag grows by the clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import KafkaError
from klamm.console.core.samples import GroupSample, TopicSample
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.records.batch import HEADER_SIZE, BatchView

_FETCH_BY_NAME: Final = 12
"""The newest version that names topics; later ones have topic ids."""
_PARTITION_BYTES: Final = (4 << 10, 64 << 10, 1 << 20)
"""Of each round. Apache Kafka cuts a batch short, and its header is enough; Klamm sends whole batches, or none."""
_RESPONSE_BYTES: Final = 4 << 20
_UNPACKED_BYTES_MAX: Final = 1 << 20
PARTITIONS_PER_COLLECTION: Final = 500
_GROUPS_PER_COLLECTION: Final = 2000
TIMES_MAX: Final = 30_000
"""Offsets whose timestamps are kept, about 6 MB."""


async def read_unread_times(
    admin: AsyncAdmin, offsets: Mapping[TopicPartition, int], find_leader: Callable[[TopicPartition], int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after an offset of each partition that has one."""
    times: dict[TopicPartition, int] = {}
    left = {where: offset for where, offset in offsets.items() if find_leader(where) >= 0}
    for size_bytes in _PARTITION_BYTES:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for where, offset in left.items():
            by_leader.setdefault(find_leader(where), {})[where] = offset
        for answer in await asyncio.gather(
            *(_fetch(admin, leader, part, size_bytes) for leader, part in by_leader.items())
        ):
            times |= answer
        left = {where: offset for where, offset in left.items() if where not in times}
        if not left:
            break
    return times


async def _fetch(
    admin: AsyncAdmin, leader: int, offsets: Mapping[TopicPartition, int], size_bytes: int
) -> dict[TopicPartition, int]:
    topics: dict[str, list[FetchPartition]] = {}
    for where, offset in offsets.items():
        topics.setdefault(where.topic, []).append(
            FetchPartition(partition=where.partition, fetch_offset=offset, partition_max_bytes=size_bytes)
        )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_RESPONSE_BYTES,
        # Without a session: the next reading is about other partitions.
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        forgotten_topics_data=[],
    )
    try:
        response = await admin.request(request, broker=leader, version=_FETCH_BY_NAME)
    except KafkaError:
        # Without the right to read, or from a broker that is gone, the age stays unknown.
        return {}
    times = {}
    for topic in response.responses:
        for partition in topic.partitions:
            where = TopicPartition(topic.topic, partition.partition_index)
            timestamp = None if partition.error_code else _first_timestamp(partition.records, offsets[where])
            if timestamp is not None:
                times[where] = timestamp
    return times


def _first_timestamp(records: Any, offset: int) -> int | None:
    """Return the timestamp of the first record at or after `offset`; that of its batch where it cannot be unpacked."""
    data, position = bytes(records or b""), 0
    # Compaction may have removed the last records of a batch: the first unread one is in a later batch then.
    while len(data) - position >= HEADER_SIZE:
        try:
            view = BatchView(data, position)
        except KlammError:
            return None
        # A batch that is larger than what was requested may be cut short: its header is enough.
        if view.end > len(data):
            return view.base_timestamp
        try:
            rows = view.decode(_UNPACKED_BYTES_MAX)
        except KlammError:
            return view.base_timestamp
        for record in rows:
            if record.offset >= offset:
                return record.timestamp
        position = view.end
    return None


def find_unread(group: GroupSample, topics: Mapping[str, TopicSample]) -> dict[TopicPartition, int]:
    """Return the offset of the first unread record of each partition that has one."""
    offsets = {}
    for where, offset in (group.committed or {}).items():
        topic = topics.get(where.topic)
        partition = None if topic is None else topic.partition(where.partition)
        if partition is not None and offset < (partition.end or 0):
            offsets[where] = max(offset, partition.start or 0)
    return offsets


class UnreadTimes:
    """The ages of unread records of all groups of a cluster, some of them read anew with each collection."""

    def __init__(self) -> None:
        self._times: dict[tuple[TopicPartition, int], int] = {}
        """By partition and offset, the newest last."""

    async def add_to_groups(
        self,
        admin: AsyncAdmin,
        groups: Mapping[str, GroupSample],
        topics: Mapping[str, TopicSample],
        now_ms: int,
    ) -> dict[str, GroupSample]:
        """Return the groups with the timestamps of their oldest unread records, those first that were read longest ago.

        Limited in partitions and groups: the others keep what is known of them until their turn comes.
        """
        unread: dict[str, dict[TopicPartition, int]] = {}
        wanted: dict[TopicPartition, int] = {}
        for group in sorted(groups.values(), key=attrgetter("timed_ms")):
            offsets = find_unread(group, topics)
            if not offsets:
                continue
            missing = {
                where: offset
                for where, offset in offsets.items()
                # A second group that stands elsewhere in the same partition has its turn in the next collection.
                if (where, offset) not in self._times and wanted.get(where, offset) == offset
            }
            if wanted and len(wanted) + len(missing) > PARTITIONS_PER_COLLECTION:
                break
            wanted |= dict(list(missing.items())[:PARTITIONS_PER_COLLECTION])
            unread[group.name] = offsets
            if len(unread) == _GROUPS_PER_COLLECTION:
                break

        def find_leader(where: TopicPartition) -> int:
            partition = topics[where.topic].partition(where.partition)
            return -1 if partition is None else partition.leader

        for where, timestamp in (await read_unread_times(admin, wanted, find_leader)).items():
            self._times[where, wanted[where]] = timestamp
        timed = {
            name: dataclasses.replace(groups[name], oldest_unread_ms=self._find_oldest(offsets), timed_ms=now_ms)
            for name, offsets in unread.items()
        }
        for place in list(self._times)[: max(len(self._times) - TIMES_MAX, 0)]:
            del self._times[place]
        return {**groups, **timed}

    def _find_oldest(self, offsets: Mapping[TopicPartition, int]) -> int | None:
        return min((self._times[place] for place in offsets.items() if place in self._times), default=None)
