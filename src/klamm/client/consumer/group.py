"""The interface between a consumer and its membership in a group, the same for both group protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from klamm.client.metrics import CoordinatorWork
from klamm.client.producer.coordinator import GroupMetadata
from klamm.model.ids import TopicPartition


class Host(Protocol):
    """What a membership uses of the consumer: the subscribed topics, and partitions assigned and revoked by it."""

    work: CoordinatorWork
    """Where rebalances are counted."""

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now."""

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions, then call the user's on_assign."""

    async def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit offsets (with enable.auto.commit), call the user's on_revoke, then remove partitions."""

    async def lose(self) -> None:
        """Remove all partitions without a commit: other members may own them already."""

    def wake(self) -> None:
        """Wake a waiting poll: `GroupMembership.poll` has work."""


class GroupMembership(Protocol):
    """Membership in a group; everything that calls the user's callbacks happens in `poll`."""

    async def poll(self, deadline: float) -> bool:
        """Join, rebalance and heartbeat until `deadline`; True when partitions are assigned and may be read."""

    def metadata(self) -> GroupMetadata:
        """Generation, member id and instance id as of now."""

    def on_metadata_changed(self) -> None:
        """Metadata of topics has changed: names, ids or partition counts."""

    def rejoin(self) -> None:
        """The subscription has changed: send it to the coordinator."""

    async def leave(self) -> None:
        """Leave the group; a static member stays in it until its session times out."""


RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[Any] | Any]
