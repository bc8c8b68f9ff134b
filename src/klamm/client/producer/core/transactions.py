"""The states of a transactional producer, as a table. Pure.

UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING -> READY
                                                         -> ABORTING   -> READY
                                                         -> PREPARED (another process ends it)
IN_TRANSACTION, COMMITTING -> ABORTABLE_ERROR (a record or an offset failed) -> ABORTING
any -> FATAL_ERROR (fenced, not authorized): the producer can only be closed
"""

from __future__ import annotations

from enum import Enum

from klamm.client.errors import (
    InvalidTransactionStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionError,
)
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition


class TransactionStatus(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "outside of a transaction"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    PREPARED = "prepared, and another process ends the transaction"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "in a fatal error"


S = TransactionStatus

_NEXT: dict[TransactionStatus, frozenset[TransactionStatus]] = {
    S.UNINITIALIZED: frozenset({S.INITIALIZING}),
    S.INITIALIZING: frozenset({S.READY, S.UNINITIALIZED}),
    S.READY: frozenset({S.IN_TRANSACTION}),
    S.IN_TRANSACTION: frozenset({S.COMMITTING, S.ABORTING, S.ABORTABLE_ERROR, S.PREPARED}),
    S.COMMITTING: frozenset({S.READY, S.ABORTABLE_ERROR}),
    S.ABORTING: frozenset({S.READY}),
    S.PREPARED: frozenset(),
    S.ABORTABLE_ERROR: frozenset({S.ABORTING, S.ABORTABLE_ERROR}),
    S.FATAL_ERROR: frozenset(),
}

# After these the transactional id cannot be used by this producer any more; all others leave it an abort.
_FATAL = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNSUPPORTED_VERSION,
)


class Transactions:
    """The state of one transactional id, and the partitions of its open transaction."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.status = S.UNINITIALIZED
        self.error: KafkaError | None = None
        self.implicit = True
        """Whether brokers add partitions themselves and every end bumps the epoch (transaction.version 2, KIP-890)."""
        self.partitions: set[TopicPartition] = set()
        self.partitions_to_add: set[TopicPartition] = set()
        """Partitions to add to the transaction before a batch is sent to them (transaction.version 0 and 1)."""
        self.touched = False
        """Whether the coordinator has a record of the open transaction, so that EndTxn is needed."""

    def move(self, status: TransactionStatus) -> None:
        """Change the state; InvalidTransactionStateError if the table does not allow it."""
        if status not in _NEXT[self.status]:
            raise InvalidTransactionStateError(
                ErrorCode.INVALID_TXN_STATE, f"the producer is {self.status.value}, it cannot be {status.value} next"
            )
        self.status = status
        if status in (S.READY, S.IN_TRANSACTION):
            self.error = None
            self.partitions.clear()
            self.partitions_to_add.clear()
            self.touched = False

    def require(self, *allowed: TransactionStatus) -> None:
        """Raise unless in one of these states; after an error, raise that error again."""
        if self.status is S.FATAL_ERROR and self.error is not None:
            raise self.error
        if self.status is S.ABORTABLE_ERROR and S.ABORTABLE_ERROR not in allowed:
            raise TransactionAbortableError(
                ErrorCode.TRANSACTION_ABORTABLE, f"the transaction can only be aborted: {self.error}"
            ) from self.error
        if self.status not in allowed:
            wanted = " or ".join(status.value for status in allowed)
            raise InvalidTransactionStateError(
                ErrorCode.INVALID_TXN_STATE, f"the producer is {self.status.value}; it has to be {wanted}"
            )

    def fail(self, error: KafkaError) -> None:
        """Record the error of a batch or a request: fatal by its code, abortable otherwise."""
        if self.status is S.FATAL_ERROR:
            return
        if isinstance(error, ProducerFencedError) or error.code in _FATAL:
            self.status, self.error = S.FATAL_ERROR, error
        elif self.status in (S.IN_TRANSACTION, S.COMMITTING, S.ABORTABLE_ERROR):
            self.status = S.ABORTABLE_ERROR
            self.error = self.error or error  # the first one is the cause; the others follow from it

    def fatal(self, error: KafkaError) -> None:
        """Record a fatal error."""
        self.status, self.error = S.FATAL_ERROR, error

    def may_write(self, where: TopicPartition) -> bool:
        """Whether a batch may be sent now; a partition that is new to the transaction is added."""
        if self.status not in (S.IN_TRANSACTION, S.COMMITTING):
            return False
        if where in self.partitions:
            return True
        if self.implicit:
            self.partitions.add(where)
            self.touched = True
            return True
        self.partitions_to_add.add(where)
        return False

    def add_partitions(self, places: frozenset[TopicPartition]) -> None:
        """Record that the coordinator added these partitions."""
        self.partitions_to_add -= places
        self.partitions |= places
        self.touched = True

    @property
    def ending(self) -> bool:
        """Whether it is being aborted: batches that are not in flight are dropped."""
        return self.status is S.ABORTING

    @property
    def failed(self) -> TransactionError | KafkaError | None:
        """Why nothing may be sent."""
        return self.error if self.status in (S.ABORTABLE_ERROR, S.FATAL_ERROR) else None
