"""Rows of the table of groups, and the lag of one group by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from klamm.client.admin.group_types import GroupDescription, MemberDescription
from klamm.console.core.samples import ClusterSample
from klamm.console.core.tables import SortKey
from klamm.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group in the table."""

    name: str
    type: str
    state: str
    topics: int | None
    lag: int | None
    lag_change: float | None
    """Records per second by which the lag grows; negative while the group catches up."""
    coordinator: int
    lag_ms: int | None = None
    """Age of the oldest unread record; 0 when there is none."""


GROUP_COLUMNS: Final[dict[str, SortKey]] = {
    "name": attrgetter("name"),
    "type": attrgetter("type"),
    "state": attrgetter("state"),
    "topics": attrgetter("topics"),
    "lag": attrgetter("lag"),
    "behind": attrgetter("lag_ms"),
    "change": attrgetter("lag_change"),
}


def list_group_rows(sample: ClusterSample, before: ClusterSample | None = None) -> list[GroupRow]:
    """Return the rows of all groups."""
    rows = []
    for group in sample.groups.values():
        topics = None if group.committed is None else len({partition.topic for partition in group.committed})
        lag = sample.lags[group.name]
        rows.append(
            GroupRow(
                group.name,
                group.type or group.protocol_type,
                group.state,
                topics,
                lag,
                _lag_change(sample, before, group.name, lag),
                group.coordinator,
                sample.lags_ms[group.name],
            )
        )
    return rows


def _lag_change(sample: ClusterSample, before: ClusterSample | None, name: str, lag: int | None) -> float | None:
    old = None if before is None else before.lags.get(name)
    if before is None or old is None or lag is None or sample.time_ms <= before.time_ms:
        return None
    return (lag - old) * 1000 / (sample.time_ms - before.time_ms)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What the console can do with a group of some type; `notes` say what it cannot."""

    can_reset: bool
    can_remove: bool
    notes: tuple[str, ...] = ()


def describe_limits(group: GroupDescription) -> GroupLimits:
    """Return what can be done with a group.

    Brokers take LeaveGroup from members of the classic protocol only; those of other protocols leave with a heartbeat
    of their own, which only they can send.
    """
    if group.type == "share":
        return GroupLimits(
            False,
            False,
            (
                "Offsets of a share group cannot be reset here: kafka-share-groups.sh --reset-offsets does it.",
                "Brokers report how many records are unread, not which: the age is that of the last so many records.",
                "Members of a share group cannot be removed; they leave when their client stops.",
            ),
        )
    if group.type == "streams":
        return GroupLimits(
            True,
            False,
            (
                "A reset moves the input topics only; state stores and their changelogs stay.",
                "Members of a streams group cannot be removed; they leave when their client stops.",
            ),
        )
    if group.type == "consumer" and not any(member.upgraded is False for member in group.members):
        note = "Members with the consumer protocol cannot be removed; they leave when their client stops."
        return GroupLimits(True, False, (note,) if group.members else ())
    return GroupLimits(True, True)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    lag_ms: int | None
    """Age of the oldest unread record; 0 when there is none, None when it could not be read."""
    member: str
    client: str


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The partitions of a group in one topic."""

    topic: str
    lag: int
    lag_ms: int | None
    partitions: tuple[PartitionLag, ...]


def list_lags(
    group: GroupDescription,
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ages_ms: Mapping[TopicPartition, int],
    reported: Mapping[TopicPartition, int] | None = None,
) -> list[TopicLag]:
    """Return the lag of a group, by topic and partition.

    A partition without a committed offset lags by all its records: a member that begins there reads them, unless its
    auto.offset.reset is latest, which only the member has. `reported` has lags as brokers count them.
    """
    owners: dict[TopicPartition, list[MemberDescription]] = {}
    for member in group.members:
        for partition in member.assignment:
            # Tasks of streams name partitions that a topic with fewer of them does not have.
            if partition in ends or group.type != "streams":
                owners.setdefault(partition, []).append(member)
    topics: dict[str, list[PartitionLag]] = {}
    for partition in sorted({*committed, *owners, *starts}):
        position, end = committed.get(partition), ends.get(partition)
        begin = starts.get(partition) if position is None else position
        lag = None if end is None or begin is None else max(end - begin, 0)
        lag = (reported or {}).get(partition, lag)
        # Several members of a share group read one partition.
        members = owners.get(partition, [])
        topics.setdefault(partition.topic, []).append(
            PartitionLag(
                partition.topic,
                partition.partition,
                position,
                end,
                lag,
                0 if lag == 0 else ages_ms.get(partition),
                ", ".join(member.member_id for member in members),
                ", ".join(member.client_id for member in members),
            )
        )
    return [
        TopicLag(
            topic,
            sum(row.lag or 0 for row in rows),
            max((row.lag_ms for row in rows if row.lag_ms is not None), default=None),
            tuple(rows),
        )
        for topic, rows in topics.items()
    ]
