"""Values about groups and their members."""

from dataclasses import dataclass

from klamm.client.admin.cluster_types import Node
from klamm.client.types import TopicPartition
from klamm.model.acls import AclOperation


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by name."""

    group_id: str
    type: str
    """classic, consumer, share ...; empty when the broker does not report it."""
    protocol_type: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class StreamsTasks:
    """Tasks of a member of a streams group, by their names: subtopology, underscore, partition."""

    active: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    warmup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a streams application that runs as tasks, with its topics."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    changelog_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamsTopology:
    """What a streams application computes."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """Where a share group begins in a partition; `lag` is None where the broker does not report it."""

    start_offset: int
    lag: int | None = None

    def unread_from(self, end: int | None) -> int:
        """The offset that is the lag before the end; the start offset where one of them is not known.

        Brokers move the start offset late: records after it may be acknowledged, all of them when the lag is 0.
        """
        if end is None or self.lag is None:
            return self.start_offset
        return max(end - self.lag, self.start_offset)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member, what it has and (new protocol) what it should have."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    rack: str | None = None
    member_epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] = ()
    upgraded: bool | None = None
    """Whether it uses the consumer protocol in a group that is being upgraded; None where unknown."""
    tasks: StreamsTasks | None = None
    """Of a member of a streams group; its assignment has the input partitions of the active ones."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None
    authorized_operations: frozenset[AclOperation] | None = None
    topology: StreamsTopology | None = None
    """Of a streams group."""
