"""Describes a group of any type: each type of Kafka 4 has a request of its own, and a name does not tell the type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from klamm.client.admin.group_types import GroupDescription
from klamm.client.errors import GroupNotFoundError, UnsupportedVersionError


class GroupDescriber(Protocol):
    """The methods of an admin that are used."""

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return groups of consumers."""

    async def describe_share_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return share groups."""

    async def describe_streams_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return streams groups."""


async def describe_any_group(admin: GroupDescriber, name: str, kind: str = "") -> GroupDescription:
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
    for describe in (admin.describe_share_groups, admin.describe_streams_groups):
        try:
            return (await describe([name]))[name]
        except (GroupNotFoundError, UnsupportedVersionError):
            # Brokers before Kafka 4, and Klamm's, have no groups of this type.
            continue
    raise missing
