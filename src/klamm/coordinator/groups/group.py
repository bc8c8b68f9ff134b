"""The interface that classic and consumer groups share."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from klamm.coordinator.core.shard import CoordinatorRecord, ReplyTo
from klamm.coordinator.groups.offsets import CommittedOffset
from klamm.model.errors import ErrorCode


class Caller(NamedTuple):
    """The client that sent a request, and the version of the request."""

    client_id: str
    client_host: str
    version: int
    may_describe: Callable[[str], bool] | None = None
    """Whether the client may describe a topic, for subscriptions by pattern; None means any topic."""


CheckPartition = Callable[[bytes, int], ErrorCode]
"""Whether an offset of a partition (topic id, number) may be committed: NONE, or why not."""


class Group(Protocol):
    """A group as offsets, listings and deletions see it."""

    group_id: str

    @property
    def kind(self) -> str:
        """The type ListGroups shows: "classic" or "consumer"."""

    @property
    def state_name(self) -> str:
        """The state ListGroups and DescribeGroups show."""

    @property
    def protocol_type_name(self) -> str:
        """The protocol type of the members, "consumer" for consumers; empty when no member ever joined."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, *, transactional: bool, version: int
    ) -> CheckPartition | None:
        """Raise KlammError unless this member may commit now; the returned function decides about single partitions."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """KlammError unless this member may read offsets now."""

    def check_offset_delete(self) -> None:
        """KlammError unless single offsets may be removed now."""

    def check_delete(self) -> None:
        """KlammError unless the whole group may be removed now."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic; true when subscriptions are unknown."""

    def expiration_base(self) -> Callable[[CommittedOffset], int] | None:
        """From when an offset's retention is counted; None while none may expire."""

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that remove the group, offsets aside."""

    def waiting(self) -> Iterable[ReplyTo]:
        """Return where waiting joins and syncs are to be answered."""
