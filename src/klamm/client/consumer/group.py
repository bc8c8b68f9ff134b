"""What a consumer expects of its group, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from klamm.client.metrics import CoordinatorWork
from klamm.client.producer.coordinator import GroupMetadata
from klamm.model.ids import TopicPartition


class Host(Protocol):
    """What a group asks of the consumer: its wishes, and to give and take partitions, callbacks included."""

    work: CoordinatorWork
    """Where rebalances are counted."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics wanted."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now."""

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Have these added; tell the user."""

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Have these taken away after their offsets are committed; tell the user before."""

    async def lose(self) -> None:
        """Have all taken away: others may have them already."""

    def wake(self) -> None:
        """Something is to be done at the next poll."""


class GroupMembership(Protocol):
    """Membership in a group; everything that calls the user's callbacks happens in `poll`."""

    async def poll(self, deadline: float) -> bool:
        """Do what membership asks for, until `deadline`; True when partitions are assigned and may be read."""

    def metadata(self) -> GroupMetadata:
        """Who this member is now."""

    def changed(self) -> None:
        """The topics wanted, or their partitions, have changed."""

    def rejoin(self) -> None:
        """The subscription has changed: send it to the coordinator."""

    async def leave(self) -> None:
        """Leave the group; static members stay, for their session."""


Callback = Callable[[list[TopicPartition]], Awaitable[Any] | Any]
