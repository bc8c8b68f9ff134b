"""The life of one transactional id: its states, the steps between them, and what each step changes.

    Empty              nothing open: a producer was given its epoch
    Ongoing            partitions belong to the open transaction
    PrepareCommit      decided, markers are being written
    PrepareAbort       decided, markers are being written
    CompleteCommit     every partition has its marker
    CompleteAbort      every partition has its marker
    PrepareEpochFence  an open transaction is taken from its producer; passed through on the way to PrepareAbort
    Dead               idle for too long, about to be forgotten

Everything here is a value: a step returns the metadata that follows, and what is written to the log is all of it.
Version 2 of the protocol (KIP-890) gives every transaction its own producer epoch: its end bumps the epoch, so a
late batch of it cannot become part of the next transaction.
"""

import enum
from dataclasses import dataclass, field, replace
from typing import Any

from klamm.model.ids import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
EPOCH_MAX = 2**15 - 1  # an int16 in batch headers
EPOCH_BUMP_VERSION = 2
"""The first transaction version whose transactions end with an epoch bump."""


class TransactionState(enum.IntEnum):
    """The states, numbered as they lie on disk."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """The name tools print."""
        return STATE_NAMES[self]


STATE_NAMES = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in TransactionState}
STATES_BY_NAME = {name: state for state, name in STATE_NAMES.items()}

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD
PREPARE_EPOCH_FENCE = TransactionState.PREPARE_EPOCH_FENCE

PREVIOUS_STATES = {
    EMPTY: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    ONGOING: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARE_COMMIT: frozenset({ONGOING}),
    # Version 2 may abort a transaction to which nothing was added yet: its first batch can still be under way.
    PREPARE_ABORT: frozenset({ONGOING, PREPARE_EPOCH_FENCE, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
}
"""Which states a state may follow."""

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
SETTLED = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""Nothing is open: a new producer may take over, and the id may expire."""


class IllegalTransition(AssertionError):
    """A step that the table does not have: a bug, never a response to a client."""


def epoch_exhausted(producer_epoch: int) -> bool:
    """Whether a client may be given no further epoch; the last one is kept for fencing."""
    return producer_epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to continue with after this transaction, when the current one has no epochs left."""
    client_version: int = 0
    """The transaction version of the client that brought about the state."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before a bump its producer requested, to recognise a retry. Kafka's format has no field for it: a
    coordinator that has just loaded does not have it."""

    @property
    def bumps_epochs(self) -> bool:
        """Whether the state came about under a version in which every end of a transaction bumps the epoch."""
        return self.client_version >= EPOCH_BUMP_VERSION

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for its client."""
        return epoch_exhausted(self.producer_epoch)

    def _transition_to(self, state: TransactionState, **changes: Any) -> "TransactionMetadata":
        """Every change of state comes through here; what the table does not have is refused."""
        if self.state not in PREVIOUS_STATES[state]:
            raise IllegalTransition(f"{self.transactional_id}: {self.state.text} cannot become {state.text}")
        # KIP-890: kept so that a retry under a rotated producer id is recognised.
        changes.setdefault("previous_producer_id", self.producer_id)
        return replace(self, state=state, **changes)

    def increment_epoch(
        self, timeout_ms: int, now_ms: int, *, expected_epoch: int | None
    ) -> "TransactionMetadata | None":
        """A producer begins, or begins again: the next epoch. None: the epoch it expects is fenced (KIP-360).

        A producer that names the epoch before the last bump repeats a request whose response it never got, and gets the
        current epoch. A producer that names no epoch starts afresh: the last epoch is forgotten.
        """
        epoch, last = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None:
            if self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
                last = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last = self.producer_epoch, self.last_producer_epoch
            else:
                return None
        return self._begin(self.producer_id, epoch, last, timeout_ms, now_ms)

    def rotate_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last: bool
    ) -> "TransactionMetadata":
        """The epochs are used up: go on under a new producer id."""
        last = self.producer_epoch if keep_last else NO_PRODUCER_EPOCH
        return self._begin(producer_id, 0, last, timeout_ms, now_ms)

    def _begin(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        return self._transition_to(
            EMPTY,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_timestamp_ms=NO_TIMESTAMP,
            last_update_timestamp_ms=now_ms,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], now_ms: int, client_version: int
    ) -> "TransactionMetadata":
        """Partitions join the transaction; the first ones begin it."""
        return self._transition_to(
            ONGOING,
            partitions=self.partitions | partitions,
            start_timestamp_ms=now_ms if self.state in SETTLED else self.start_timestamp_ms,
            last_update_timestamp_ms=now_ms,
            client_version=client_version,
        )

    def fence_epoch(self, transaction_version: int) -> "TransactionMetadata":
        """The open transaction is taken from its producer: the epoch after its own is never given out.

        From version 2 on the end of a transaction takes that epoch by itself.
        """
        if transaction_version >= EPOCH_BUMP_VERSION:
            return self._transition_to(PREPARE_EPOCH_FENCE)
        return self._transition_to(
            PREPARE_EPOCH_FENCE,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def prepare_end(
        self, *, committed: bool, now_ms: int, client_version: int, next_producer_id: int = NO_PRODUCER_ID
    ) -> "TransactionMetadata":
        """The end is decided. From version 2 on the markers carry the next epoch, which is also the client's next."""
        epoch, last = self.producer_epoch, self.last_producer_epoch
        if client_version >= EPOCH_BUMP_VERSION:
            # The markers carry the bumped epoch, which fences late batches of this transaction in every partition.
            epoch, last = min(epoch + 1, EPOCH_MAX), epoch
        return self._transition_to(
            PREPARE_COMMIT if committed else PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=last,
            next_producer_id=next_producer_id,
            # Version 2 can abort a transaction that was never begun here: it starts now.
            start_timestamp_ms=now_ms if self.state in SETTLED else self.start_timestamp_ms,
            last_update_timestamp_ms=now_ms,
            client_version=client_version,
        )

    def complete(self, now_ms: int) -> "TransactionMetadata":
        """Every partition has its marker; a producer id without epochs gives way to the next."""
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._transition_to(
            COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_timestamp_ms=now_ms,
        )

    def dead(self) -> "TransactionMetadata":
        """The transactional id was idle too long: a tombstone follows."""
        return self._transition_to(DEAD)

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        assert self.producer_id >= 0, "no producer id"
        assert 0 <= self.producer_epoch <= EPOCH_MAX, f"epoch {self.producer_epoch}"
        assert not self.partitions or self.state not in SETTLED, f"{self.state.text} with partitions"
        assert (self.state is EMPTY) == (self.start_timestamp_ms == NO_TIMESTAMP), f"{self.state.text} start time"
        assert self.next_producer_id == NO_PRODUCER_ID or self.state in PREPARED, "a next id without an end"
