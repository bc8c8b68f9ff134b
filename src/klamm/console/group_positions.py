"""Groups of every type, each with the requests of its type: consumers, share groups and streams groups."""

from __future__ import annotations

from collections.abc import Mapping

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.group_types import GroupDescription, ShareGroupOffset
from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.errors import GroupNotFoundError, UnsupportedVersionError
from klamm.model.ids import TopicPartition


async def describe_any_group(admin: AsyncAdmin, name: str, kind: str) -> GroupDescription:
    """Return a group; `kind` is its type as ListGroups reports it, empty when that is not known."""
    if kind == "share":
        return (await admin.describe_share_groups([name]))[name]
    if kind == "streams":
        return (await admin.describe_streams_groups([name]))[name]
    try:
        return (await admin.describe_groups([name]))[name]
    except GroupNotFoundError as error:
        if kind:
            raise
        missing = error
    # A group that is younger than the last sample may be of any type.
    for describe in (admin.describe_share_groups, admin.describe_streams_groups):
        try:
            return (await describe([name]))[name]
        except (GroupNotFoundError, UnsupportedVersionError):
            continue
    raise missing


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
