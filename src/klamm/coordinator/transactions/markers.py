"""Which markers are owed to which partitions, until every one of them is written.

A decided transaction owes each of its partitions a marker. Leaders change, brokers are away, disks fail: what could not
be written stays owed. Only two things end a debt otherwise: the topic is gone, or a newer coordinator has taken over.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from klamm.coordinator.transactions.state import PREPARE_COMMIT, TransactionMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition


class Fate(enum.Enum):
    """What became of one marker."""

    WRITTEN = "written"
    RETRY = "retry"
    ABANDONED = "abandoned"
    """A newer coordinator looks after the transaction: everything still owed is its business."""


SETTLING_ERRORS = frozenset(
    {
        ErrorCode.NONE,
        # The partition has seen a newer epoch of the producer, so nothing of this transaction is open there.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


def fate_of(error: int) -> Fate:
    """What an answer to a marker means."""
    if error in SETTLING_ERRORS:
        return Fate.WRITTEN
    if error == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
        return Fate.ABANDONED
    return Fate.RETRY


@dataclass(frozen=True, slots=True)
class OwedMarkers:
    """The markers of one decided transaction: the same one for each of its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)

    @classmethod
    def of(cls, metadata: TransactionMetadata, coordinator_epoch: int) -> "OwedMarkers":
        """What a transaction in PrepareCommit or PrepareAbort owes."""
        return cls(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            committed=metadata.state is PREPARE_COMMIT,
            coordinator_epoch=coordinator_epoch,
            transaction_version=metadata.client_version,
            partitions=metadata.partitions,
        )

    def only(self, partitions: Iterable[TopicPartition]) -> "OwedMarkers":
        """The same markers for fewer partitions."""
        return replace(self, partitions=frozenset(partitions))


class MarkerLedger:
    """The debts of one shard, by transactional id."""

    def __init__(self) -> None:
        self._owed: dict[str, OwedMarkers] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def __iter__(self) -> Iterator[OwedMarkers]:
        return iter(list(self._owed.values()))

    def owe(self, markers: OwedMarkers) -> None:
        """Write a debt down; it replaces an older one of the same id."""
        self._owed[markers.transactional_id] = markers

    def owed(self, transactional_id: str) -> OwedMarkers | None:
        """What is still owed."""
        return self._owed.get(transactional_id)

    def knows(self, markers: OwedMarkers) -> bool:
        """Whether this very debt is written down."""
        current = self._owed.get(markers.transactional_id)
        return current is not None and _same(current, markers)

    def by_leader(
        self, markers: OwedMarkers, leader_of: Callable[[TopicPartition], int | None]
    ) -> dict[int, OwedMarkers]:
        """Whom to send the markers: broker id -> its share. -1 stands for partitions that have no leader right now.

        `leader_of` says None of a partition that exists no longer; it is owed nothing any more.
        """
        shares: dict[int, list[TopicPartition]] = {}
        for partition in sorted(markers.partitions):
            leader = leader_of(partition)
            if leader is None:
                self.settle(markers, partition, ErrorCode.NONE)
            else:
                shares.setdefault(leader, []).append(partition)
        return {leader: markers.only(partitions) for leader, partitions in shares.items()}

    def settle(self, markers: OwedMarkers, partition: TopicPartition, error: int) -> Fate:
        """A partition has answered. Answers to an older debt of the same id change nothing."""
        fate = fate_of(error)
        current = self._owed.get(markers.transactional_id)
        if current is None or not _same(current, markers):
            return Fate.ABANDONED
        if fate is Fate.ABANDONED:
            del self._owed[markers.transactional_id]
        elif fate is Fate.WRITTEN:
            self._owed[markers.transactional_id] = current.only(current.partitions - {partition})
        return fate

    def paid(self, markers: OwedMarkers) -> bool:
        """Whether nothing is owed any more: the transaction may be completed."""
        return self.knows(markers) and not self._owed[markers.transactional_id].partitions

    def forget(self, markers: OwedMarkers) -> None:
        """The debt is paid and noted, or no longer ours."""
        if self.knows(markers):
            del self._owed[markers.transactional_id]


def _same(one: OwedMarkers, other: OwedMarkers) -> bool:
    return (one.producer_id, one.producer_epoch, one.coordinator_epoch) == (
        other.producer_id,
        other.producer_epoch,
        other.coordinator_epoch,
    )
