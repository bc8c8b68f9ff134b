"""How far a group is behind, by partition and as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from klamm.client.admin.group_types import GroupDescription
from klamm.client.types import OffsetAndMetadata
from klamm.model.ids import TopicPartition


class GroupLag(NamedTuple):
    """The committed offset of a partition beside its end, and the member that has the partition."""

    partition: TopicPartition
    current_offset: int
    log_end_offset: int
    consumer_id: str = ""
    instance_id: str | None = None
    client_id: str = ""

    @property
    def lag(self) -> int:
        """Offsets between the two; 0 where records behind a committed offset were deleted."""
        return max(self.log_end_offset - self.current_offset, 0)


class LagSummary(NamedTuple):
    """The partition with the largest lag, and the sum over all."""

    largest: GroupLag
    total: int


def list_lags(
    group: GroupDescription, committed: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[TopicPartition, int]
) -> list[GroupLag]:
    """Return the lag of every partition with a committed offset and a known end, by topic and partition."""
    members = {partition: member for member in group.members for partition in member.assignment}
    lags = []
    for partition in sorted(committed):
        if partition not in ends:
            continue  # deleted since, or without a leader
        member = members.get(partition)
        offset, end = committed[partition].offset, ends[partition]
        if member is None:
            lags.append(GroupLag(partition, offset, end))
        else:
            lags.append(GroupLag(partition, offset, end, member.member_id, member.instance_id, member.client_id))
    return lags


def summarize_lags(lags: Sequence[GroupLag]) -> LagSummary | None:
    """Return the summary; None without a committed offset."""
    if not lags:
        return None
    largest = lags[0]
    for lag in lags:
        if lag.lag > largest.lag:
            largest = lag
    return LagSummary(largest, sum(lag.lag for lag in lags))
