"""The values that cross the client's border: what users hand in and what they get back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:  # defaults are for type checkers alone, so nothing else need be installed for them
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
"""Headers as users write them: pairs, or a mapping when no name comes twice."""


class Record(NamedTuple, Generic[K, V]):
    """One record as a consumer sees it; `key` and `value` are bytes unless deserializers made something of them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; `timestamp_type` says whose clock."""
    key: K
    value: V
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0
    """0 the producer's time (CreateTime), 1 the broker's (LogAppendTime)."""
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it came from."""
        return TopicPartition(self.topic, self.partition)


class RecordMetadata(NamedTuple):
    """Where a produced record landed; `offset` is -1 without a response (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it lies."""
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """A committed position: the next offset to read, a note, and the epoch of the record before it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def as_offsets(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets as users write them: a mapping to numbers or tuples, or a record that was dealt with.

    What is committed is the next offset to read, so that of a record is the one behind it.
    """
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
    """What a search by time found."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a count to the broker, an assignment (partition to replicas) replaces both."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, Any] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """How many partitions a topic shall have in all, and where the new ones go."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None
