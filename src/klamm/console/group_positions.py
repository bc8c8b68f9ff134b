"""Positions of groups of every type: committed offsets, and where the unread records of share groups begin."""

from __future__ import annotations

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.offset_types import OffsetSpec
from klamm.model.ids import TopicPartition


async def read_positions(admin: AsyncAdmin, name: str, kind: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group, or the offsets from which the lag of a share group counts."""
    if kind != "share":
        return {where: entry.offset for where, entry in (await admin.list_group_offsets(name)).items()}
    offsets = await admin.list_share_group_offsets(name)
    reported = [where for where, entry in offsets.items() if entry.lag is not None]
    ends = await admin.list_available_offsets(dict.fromkeys(reported, OffsetSpec.LATEST)) if reported else {}
    return {where: entry.unread_from(ends[where].offset if where in ends else None) for where, entry in offsets.items()}
