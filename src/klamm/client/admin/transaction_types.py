"""Values about transactions and producers."""

from dataclasses import dataclass
from typing import Final

from klamm.client.types import TopicPartition

TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
"""The states that a filter of ListTransactions may name."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in brief."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id; `start_time_ms` is None before its first transaction."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state a partition keeps of a producer; `transaction_start_offset` is None outside of a transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None
