"""Positions of groups of every type: committed offsets, and where the unread records of share groups begin."""

from __future__ import annotations

from collections.abc import Mapping

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.group_types import ShareGroupOffset
from klamm.client.admin.offset_types import OffsetSpec
from klamm.model.ids import TopicPartition


async def read_positions(admin: AsyncAdmin, name: str, kind: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group, or the offsets from which the lag of a share group counts."""
    if kind == "share":
        return await read_share_positions(admin, await admin.list_share_group_offsets(name))
    return {where: entry.offset for where, entry in (await admin.list_group_offsets(name)).items()}


async def read_share_positions(
    admin: AsyncAdmin, offsets: Mapping[TopicPartition, ShareGroupOffset]
) -> dict[TopicPartition, int]:
    """Return for each partition the offset that is the reported lag before its end; the start offset without a lag.

    Brokers move the start offset late: records after it may be acknowledged, all of them when the lag is 0.
    """
    reported = {where: entry.lag for where, entry in offsets.items() if entry.lag is not None}
    ends = await admin.list_available_offsets(dict.fromkeys(reported, OffsetSpec.LATEST)) if reported else {}
    return {
        where: max(ends[where].offset - reported[where], entry.start_offset) if where in ends else entry.start_offset
        for where, entry in offsets.items()
    }
