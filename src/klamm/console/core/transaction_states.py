"""Transactions that do not end: why one is stuck, and which are open in a partition and at no coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.transaction_types import ProducerState, TransactionDescription
from klamm.console.core.numbers import format_age
from klamm.model.ids import TopicPartition
from klamm.model.units import pluralize

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
STUCK_MS: Final = 15 * 60_000
"""The default of transaction.max.timeout.ms."""
_MARKERS_MS: Final = 30_000
"""Markers are written in milliseconds; a leader election in between takes seconds."""
_OVERDUE_MS: Final = 20_000
"""Coordinators look for transactions beyond their timeout every ten seconds."""


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    """Of its last record."""
    reason: str

    @property
    def name(self) -> str:
        """TOPIC-PARTITION."""
        return f"{self.topic}-{self.partition}"


def explain_stuck(transaction: TransactionDescription, now_ms: int, leaderless: Sequence[TopicPartition]) -> str:
    """Return why an open transaction does not end; empty while it may.

    `leaderless` has those of its partitions that have no leader.
    """
    if transaction.state not in OPEN_STATES or transaction.start_time_ms is None:
        return ""
    open_ms = now_ms - transaction.start_time_ms
    if transaction.state != "Ongoing":
        if leaderless:
            place = leaderless[0]
            others = f" and {pluralize(len(leaderless) - 1, 'other')}" if len(leaderless) > 1 else ""
            return f"it has ended, and {place.topic}-{place.partition}{others} cannot get the marker without a leader"
        if open_ms > _MARKERS_MS + transaction.timeout_ms:
            return f"it has ended, and its markers are not written; coordinator {transaction.coordinator} writes them"
        return ""
    if open_ms > transaction.timeout_ms + _OVERDUE_MS:
        limit = format_age(transaction.timeout_ms)
        return (
            f"open for longer than its timeout of {limit}; coordinator {transaction.coordinator} should have aborted it"
        )
    if open_ms > STUCK_MS:
        limit = format_age(transaction.timeout_ms)
        return f"open for {format_age(open_ms)}; its producer neither commits nor aborts, and its timeout is {limit}"
    return ""


def find_hanging(
    producers: Mapping[TopicPartition, Iterable[ProducerState]], transactions: Iterable[TransactionDescription]
) -> list[HangingTransaction]:
    """Return the open transactions of partitions that no coordinator has open there."""
    by_producer = {
        transaction.producer_id: transaction for transaction in transactions if transaction.state in OPEN_STATES
    }
    hanging = []
    for where, states in sorted(producers.items()):
        for state in states:
            if state.transaction_start_offset is None:
                continue
            reason = _explain_hanging(where, state, by_producer.get(state.producer_id))
            if reason:
                hanging.append(
                    HangingTransaction(
                        where.topic,
                        where.partition,
                        state.producer_id,
                        state.producer_epoch,
                        state.coordinator_epoch,
                        state.transaction_start_offset,
                        state.last_timestamp,
                        reason,
                    )
                )
    return hanging


def _explain_hanging(where: TopicPartition, state: ProducerState, transaction: TransactionDescription | None) -> str:
    if transaction is None:
        return f"no coordinator has an open transaction of producer {state.producer_id}"
    if where not in transaction.partitions:
        return f"the open transaction of {transaction.transactional_id} does not have this partition"
    # The epoch of a transaction that ends may be one more than that of its records (KIP-890).
    if transaction.state == "Ongoing" and transaction.producer_epoch > state.producer_epoch:
        return f"{transaction.transactional_id} has a later transaction, of epoch {transaction.producer_epoch}"
    return ""
