"""Input and output of assignors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_EMPTY: Mapping[Any, Any] = MappingProxyType({})

MemberAssignment = Mapping[bytes, frozenset[int]]
"""The partitions of one member, by topic id; a topic without partitions is left out."""


def _no_partitions() -> MemberAssignment:
    return _EMPTY


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member: its subscription and its last target assignment."""

    topics: frozenset[bytes]
    """The ids of the topics it subscribes to."""
    current: MemberAssignment = field(default_factory=_no_partitions)
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic: its number of partitions and the racks that hold each of them, () when racks are not known."""

    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def has(self, partition: int, rack: str | None) -> bool:
        """Whether a replica of the partition is in `rack`."""
        return rack is not None and partition < len(self.racks) and rack in self.racks[partition]


AssignPartitions = Callable[[Mapping[str, MemberSpec], Mapping[bytes, TopicSpec]], dict[str, MemberAssignment]]
"""An assignor: every member gets an entry; every partition of a subscribed topic gets one owner."""


def by_identity(members: Mapping[str, MemberSpec]) -> list[str]:
    """Return member ids in an order that survives restarts: static members by instance, then the others by id."""
    static = sorted((spec.instance_id, member) for member, spec in members.items() if spec.instance_id is not None)
    dynamic = sorted(member for member, spec in members.items() if spec.instance_id is None)
    return [*(member for _, member in static), *dynamic]


def subscribers(members: Mapping[str, MemberSpec], topics: Mapping[bytes, TopicSpec]) -> dict[bytes, tuple[str, ...]]:
    """Return the subscribers of each topic in the order of `by_identity`; topics without subscribers are left out."""
    ordered = by_identity(members)
    # The usual group: one subscription, so one tuple serves all topics and pools stay few.
    if ordered and all(members[member].topics == members[ordered[0]].topics for member in ordered):
        ordered_members = tuple(ordered)
        return dict.fromkeys(sorted(topics.keys() & members[ordered[0]].topics), ordered_members)
    by_topic: dict[bytes, list[str]] = {topic: [] for topic in sorted(topics)}
    for member in ordered:
        for topic in members[member].topics:
            if topic in by_topic:
                by_topic[topic].append(member)
    return {topic: tuple(member_ids) for topic, member_ids in by_topic.items() if member_ids}
