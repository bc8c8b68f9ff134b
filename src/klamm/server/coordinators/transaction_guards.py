"""Remembers which questions about a transaction are under way, so that no answer outlives the transaction it is about.

A leader asks the coordinator before the first batch of a transaction, and writes the batch when the answer is yes. If
the transaction ends in between, the batch must not be written: it would open a transaction that nothing ends. So each
question is asked under a guard, and the marker that ends the transaction takes the guard away.

Markers of the transaction before arrive at the same time: a producer begins the next one as soon as the last is
decided, while its markers are still being written. Which transaction a marker ends is told by its epoch:

    epoch below the guard's                   an older transaction
    same epoch, transaction version 2         the transaction before: its end bumped the epoch to the guard's (KIP-890)
    same epoch, transaction version 0 or 1    cannot be told: all transactions of a producer have one epoch
    epoch above the guard's                   this transaction, or a later one

The first two leave the guard alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

from klamm.coordinator.transactions.rules import Producer
from klamm.coordinator.transactions.state import EPOCH_BUMP_VERSION

GUARDS_MAX = 10_000
"""Producers that asked and never wrote are forgotten beyond this, oldest first."""


class GuardKey(NamedTuple):
    """What a guard stands before: one producer's way into one partition."""

    topic_id: bytes
    partition: int
    producer_id: int


@dataclass(slots=True, eq=False)
class Guard:
    """A question under way, or whose batch was not written; later sequences must wait for the lowest one."""

    epoch: int
    lowest_sequence: int
    leader_epoch: int
    """Under which it was taken: the markers of another leader do not pass by here."""


class TransactionGuards:
    """The guards of all partitions led here."""

    def __init__(self) -> None:
        self._guards: dict[GuardKey, Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def take(self, key: GuardKey, producer: Producer, sequence: int, leader_epoch: int) -> Guard:
        """The guard to ask under: one that is there for the same transaction, or a new one."""
        guard = self._guards.get(key)
        if guard is None or guard.epoch < producer.epoch or guard.leader_epoch != leader_epoch:
            guard = self._guards[key] = Guard(producer.epoch, sequence, leader_epoch)
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        elif guard.epoch == producer.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def holds(self, key: GuardKey, guard: Guard) -> bool:
        """Whether an answer that was asked for under the guard still counts."""
        return self._guards.get(key) is guard

    def release(self, key: GuardKey) -> None:
        """The transaction is open in the log: it guards itself."""
        self._guards.pop(key, None)

    def on_marker(self, key: GuardKey, epoch: int, transaction_version: int) -> None:
        """A transaction ends: its questions do too, but not those of the transaction after it."""
        guard = self._guards.get(key)
        if guard is None or epoch < guard.epoch:
            return
        if epoch == guard.epoch and transaction_version >= EPOCH_BUMP_VERSION:
            return
        del self._guards[key]
