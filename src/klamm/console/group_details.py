"""One group: members, offsets, lag in records and in seconds; and moving its offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.any_group import describe_any_group
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.group_types import GroupDescription, ShareGroupOffset
from klamm.client.admin.offset_types import OffsetSpec
from klamm.console.clusters import ClusterLink
from klamm.console.core.group_rows import GroupLimits, TopicLag, describe_limits, list_lags
from klamm.console.core.offset_plans import OffsetMove, ResetTarget, plan_reset
from klamm.console.group_positions import read_positions
from klamm.console.unread_times import read_unread_times
from klamm.model.ids import TopicPartition

_AGES_MAX: Final = 200
"""Partitions whose oldest unread record is read for its time."""


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group as its page shows it."""

    group: GroupDescription
    topics: list[TopicLag]
    committed: dict[TopicPartition, int]
    limits: GroupLimits
    hidden_topics: int = 0
    """Topics of the group that the visitor may not see."""

    def keep_topics(self, names: Collection[str]) -> GroupDetails:
        """Return the details without other topics than these."""
        kept = [topic for topic in self.topics if topic.topic in names]
        committed = {where: offset for where, offset in self.committed.items() if where.topic in names}
        return dataclasses.replace(self, topics=kept, committed=committed, hidden_topics=len(self.topics) - len(kept))

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
    # A group that is younger than the last sample may be of any type.
    group = await describe_any_group(admin, name, _listed_type(link, name))
    offsets: dict[TopicPartition, ShareGroupOffset] = {}
    if group.type == "share":
        offsets = await admin.list_share_group_offsets(name)
        committed = {where: entry.start_offset for where, entry in offsets.items()}
    else:
        committed = await read_positions(admin, name, group.type)
    assigned = {where for member in group.members for where in member.assignment}
    partitions = await _siblings(admin, {*committed, *assigned})
    starts, ends = await _limits(admin, partitions)
    positions = committed | {where: entry.unread_from(ends.get(where)) for where, entry in offsets.items()}
    unread = {
        where: max(offset, starts.get(where, 0)) for where, offset in positions.items() if offset < ends.get(where, 0)
    }
    unread = dict(sorted(unread.items())[:_AGES_MAX])
    times = await read_unread_times(admin, unread, admin.cluster.table.leader)
    ages = {where: max(now_ms - timestamp, 0) for where, timestamp in times.items()}
    if group.type == "share":
        # Where it has not begun, it does not begin at the start of the log, unless share.auto.offset.reset says so.
        starts = {where: offset for where, offset in starts.items() if where in committed}
    reported = {where: entry.lag for where, entry in offsets.items() if entry.lag is not None}
    lags = list_lags(group, committed, starts, ends, ages, reported)
    return GroupDetails(group, lags, committed, describe_limits(group))


def _listed_type(link: ClusterLink, name: str) -> str:
    listed = None if link.sample is None else link.sample.groups.get(name)
    return "" if listed is None else listed.type.lower()


async def plan_group_reset(
    link: ClusterLink,
    name: str,
    target: ResetTarget,
    topics: Iterable[str],
    choose_allowed: Callable[[Iterable[str]], Iterable[str]] = set,
) -> list[OffsetMove]:
    """Return what a reset would do; ValueError when it cannot be done.

    Without `topics` it is about those of the group that `choose_allowed` returns.
    """
    admin = await link.admin()
    committed = {where: position.offset for where, position in (await admin.list_group_offsets(name)).items()}
    chosen = set(topics) or set(choose_allowed({where.topic for where in committed}))
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
