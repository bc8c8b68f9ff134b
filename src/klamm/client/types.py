"""The value types of the client's public interface."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:  # defaults (PEP 696) are for type checkers only, so that typing_extensions need not be installed
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

__all__ = [
    "Headers",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "RecordMetadata",
    "TopicPartition",
]

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers: pairs, or a mapping when no name occurs twice."""


class Record(NamedTuple, Generic[K, V]):
    """One consumed record; `key` and `value` are bytes, or what the deserializers returned."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch, by the clock of `timestamp_type`."""
    key: K
    value: V
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0
    """0 the producer's time (CreateTime), 1 the broker's (LogAppendTime)."""
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(NamedTuple):
    """Partition and offset of a produced record; `offset` is -1 without a response (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, a note, and the epoch of the record before it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def as_offsets(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets of a mapping to numbers or tuples, or of a record that was processed."""
    # A committed offset is the next one to read, not the last one that was read.
    if isinstance(given, Record):
        return {given.topic_partition: OffsetAndMetadata(given.offset + 1, "", given.leader_epoch)}
    if not isinstance(given, Mapping):
        raise TypeError(f'offsets are a record or a mapping, e.g. {{("orders", 0): 42}}, not {given!r}')
    return {_as_place(where): _as_offset(_as_place(where), offset) for where, offset in given.items()}


def _as_place(given: Any) -> TopicPartition:
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _whole(given[1])):
        raise TypeError(f'offsets are for partitions as (topic, partition), e.g. ("orders", 0), not {given!r}')
    return TopicPartition(*given)


def _as_offset(where: TopicPartition, given: Any) -> OffsetAndMetadata:
    position = (
        OffsetAndMetadata(*given) if isinstance(given, tuple) and 0 < len(given) < 4 else OffsetAndMetadata(given)
    )
    offset, metadata, epoch = position
    if not (_whole(offset) and (metadata is None or isinstance(metadata, str)) and _whole(epoch)):
        raise TypeError(f"the offset of {where} is a number or an OffsetAndMetadata, not {given!r}")
    if offset < 0:
        raise ValueError(f"the offset of {where} is {offset}: offsets begin at 0")
    return position if metadata is not None else position._replace(metadata="")


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


class OffsetAndTimestamp(NamedTuple):
    """The result of a lookup by time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 uses the broker's default, an assignment (partition to replicas) replaces both counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, Any] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The total partition count that a topic is to have, and the replicas of the new partitions."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None
