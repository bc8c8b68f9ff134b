"""One group: members, offsets, lag in records and in seconds; and moving its offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.group_types import GroupDescription
from klamm.client.admin.offset_types import OffsetSpec
from klamm.console.clusters import ClusterLink
from klamm.console.core.group_rows import TopicLag, list_lags
from klamm.console.core.offset_plans import OffsetMove, ResetTarget, plan_reset
from klamm.model.ids import TopicPartition

_AGES_MAX: Final = 200
"""Partitions whose oldest unread record is read for its time."""
_AGES_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group as its page shows it."""

    group: GroupDescription
    topics: list[TopicLag]
    committed: dict[TopicPartition, int]

    @property
    def lag(self) -> int:
        """Unread records."""
        return sum(topic.lag for topic in self.topics)

    @property
    def lag_ms(self) -> int | None:
        """Age of the oldest unread record of all partitions."""
        return max((topic.lag_ms for topic in self.topics if topic.lag_ms is not None), default=None)


async def describe_group(link: ClusterLink, name: str, now_ms: int) -> GroupDetails:
    """Return the members and lags of a group; GroupNotFoundError when it does not exist."""
    admin = await link.admin()
    described, positions = await asyncio.gather(admin.describe_groups([name]), admin.list_group_offsets(name))
    group = described[name]
    committed = {where: position.offset for where, position in positions.items()}
    assigned = {where for member in group.members for where in member.assignment}
    partitions = await _siblings(admin, {*committed, *assigned})
    starts, ends = await _limits(admin, partitions)
    lagging = {
        where: max(offset, starts.get(where, 0)) for where, offset in committed.items() if offset < ends.get(where, 0)
    }
    ages = await _read_ages(link, lagging, now_ms)
    return GroupDetails(group, list_lags(group, committed, starts, ends, ages), committed)


async def plan_group_reset(
    link: ClusterLink, name: str, target: ResetTarget, topics: Iterable[str]
) -> list[OffsetMove]:
    """Return what a reset would do; ValueError when it cannot be done."""
    admin = await link.admin()
    committed = {where: position.offset for where, position in (await admin.list_group_offsets(name)).items()}
    chosen = set(topics) or {where.topic for where in committed}
    if not chosen:
        raise ValueError(f"{name} has no committed offsets; choose a topic")
    partitions = await _siblings(admin, {TopicPartition(topic, 0) for topic in chosen})
    starts, ends = await _limits(admin, partitions)
    timed: Mapping[TopicPartition, int] = {}
    if target.kind == "time":
        answers = await admin.list_offsets(dict.fromkeys(partitions, target.value))
        timed = {where: answer.offset for where, answer in answers.items()}
    return plan_reset(target, partitions, committed, starts, ends, timed)


async def _siblings(admin: AsyncAdmin, partitions: set[TopicPartition]) -> list[TopicPartition]:
    """Return all partitions of the topics of these; none of a topic that was deleted."""
    topics = {where.topic for where in partitions}
    if not topics:
        return []
    await admin.cluster.refresh(topics)
    known = admin.cluster.table.topics
    return [TopicPartition(topic, index) for topic in topics if topic in known for index in known[topic].partitions]


async def _limits(
    admin: AsyncAdmin, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts = await admin.list_available_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = await admin.list_available_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return (
        {where: answer.offset for where, answer in starts.items()},
        {where: answer.offset for where, answer in ends.items()},
    )


async def _read_ages(
    link: ClusterLink, lagging: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, int]:
    """Return how old the first unread record of each partition is: its own timestamp, read from the log."""
    wanted = dict(sorted(lagging.items())[:_AGES_MAX])
    ages: dict[TopicPartition, int] = {}
    if not wanted:
        return ages
    # One small batch per partition is enough: brokers send at least the first one whatever its size.
    settings = {"max.partition.fetch.bytes": 1, "fetch.max.wait.ms": 50}
    async with link.consumer(**settings) as consumer:
        consumer.assign(wanted)
        for where, offset in wanted.items():
            consumer.seek(where, offset)
        deadline_s = time.monotonic() + _AGES_S
        while len(ages) < len(wanted) and (left_s := deadline_s - time.monotonic()) > 0:
            for record in await consumer.poll(min(left_s, 0.2)):
                where = record.topic_partition
                if where not in ages:
                    ages[where] = max(now_ms - record.timestamp, 0)
                    consumer.pause(where)
    return ages
