"""The markers of ended transactions that partitions have not written yet.

Each partition of a transaction needs a marker once its end is decided. A marker that could not be written (the leader
changed, a broker is down, a disk failed) stays pending and is sent again, unless its topic was deleted or a newer
coordinator has taken the transaction over.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from klamm.coordinator.transactions.state import PREPARE_COMMIT, TransactionMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition


class MarkerOutcome(enum.Enum):
    """The result of sending one marker."""

    WRITTEN = "written"
    RETRY = "retry"
    ABANDONED = "abandoned"
    """A newer coordinator owns the transaction: it writes what is still pending."""


FINAL_ERRORS = frozenset(
    {
        ErrorCode.NONE,
        # The partition has seen a newer epoch of the producer, so nothing of this transaction is open there.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        # A topic in an old format has no transactional batches that would need a marker.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


def outcome_of(error: int) -> MarkerOutcome:
    """Return the outcome that an error code of WriteTxnMarkers stands for."""
    if error in FINAL_ERRORS:
        return MarkerOutcome.WRITTEN
    if error == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
        return MarkerOutcome.ABANDONED
    return MarkerOutcome.RETRY


@dataclass(frozen=True, slots=True)
class PendingMarkers:
    """The marker of one ended transaction, and the partitions that have not written it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)

    @classmethod
    def of(cls, metadata: TransactionMetadata, coordinator_epoch: int) -> "PendingMarkers":
        """Return the markers of a transaction in PrepareCommit or PrepareAbort."""
        return cls(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            committed=metadata.state is PREPARE_COMMIT,
            coordinator_epoch=coordinator_epoch,
            transaction_version=metadata.client_version,
            partitions=metadata.partitions,
        )

    def for_partitions(self, partitions: Iterable[TopicPartition]) -> "PendingMarkers":
        """Return the same marker for fewer partitions."""
        return replace(self, partitions=frozenset(partitions))


class MarkerTracker:
    """Pending markers of one shard, by transactional id."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingMarkers] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingMarkers]:
        return iter(list(self._pending.values()))

    def add(self, markers: PendingMarkers) -> None:
        """Track the markers of a transaction, in place of an older one of the same id."""
        self._pending[markers.transactional_id] = markers

    def find(self, transactional_id: str) -> PendingMarkers | None:
        """Return what is still pending of a transactional id, or None."""
        return self._pending.get(transactional_id)

    def tracks(self, markers: PendingMarkers) -> bool:
        """Return whether markers of this very transaction are tracked."""
        current = self._pending.get(markers.transactional_id)
        return current is not None and _same(current, markers)

    def by_leader(
        self, markers: PendingMarkers, leader_of: Callable[[TopicPartition], int | None]
    ) -> dict[int, PendingMarkers]:
        """Split markers by the broker to send them to; -1 stands for partitions without a leader.

        `leader_of` returns None for a partition that no longer exists: it needs no marker.
        """
        shares: dict[int, list[TopicPartition]] = {}
        for partition in sorted(markers.partitions):
            leader = leader_of(partition)
            if leader is None:
                self.record_response(markers, partition, ErrorCode.NONE)
            else:
                shares.setdefault(leader, []).append(partition)
        return {leader: markers.for_partitions(partitions) for leader, partitions in shares.items()}

    def record_response(self, markers: PendingMarkers, partition: TopicPartition, error: int) -> MarkerOutcome:
        """Record the response of a partition. Responses about an older transaction of the same id change nothing."""
        outcome = outcome_of(error)
        current = self._pending.get(markers.transactional_id)
        # A late response must not touch the markers of a newer transaction.
        if current is None or not _same(current, markers):
            return MarkerOutcome.ABANDONED
        if outcome is MarkerOutcome.ABANDONED:
            del self._pending[markers.transactional_id]
        elif outcome is MarkerOutcome.WRITTEN:
            self._pending[markers.transactional_id] = current.for_partitions(current.partitions - {partition})
        return outcome

    def all_written(self, markers: PendingMarkers) -> bool:
        """Return whether every partition has its marker, so that the transaction can be completed."""
        return self.tracks(markers) and not self._pending[markers.transactional_id].partitions

    def discard(self, markers: PendingMarkers) -> None:
        """Stop tracking markers that are written, or that another coordinator writes."""
        if self.tracks(markers):
            del self._pending[markers.transactional_id]


def _same(markers: PendingMarkers, other: PendingMarkers) -> bool:
    return (markers.producer_id, markers.producer_epoch, markers.coordinator_epoch) == (
        other.producer_id,
        other.producer_epoch,
        other.coordinator_epoch,
    )
