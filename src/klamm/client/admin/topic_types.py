"""Values about topics and their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from klamm.model.acls import AclOperation


class TopicListing(NamedTuple):
    """A topic by name."""

    name: str
    topic_id: bytes
    internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: leader (-1 for none), replicas, those in sync, those that could lead."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic and its partitions, by index."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[AclOperation] | None = None

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic; counts are -1 where the broker does not report them."""

    name: str
    topic_id: bytes
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
