"""Guards of requests to the transaction coordinator: an answer counts only while its transaction lasts.

A leader sends a request to the coordinator before the first batch of a transaction, and writes the batch if the answer
allows it. If the transaction ends in between, the batch must not be written: it would open a transaction that nothing
ends. So a guard is taken before each request, and the marker that ends the transaction removes it.

Markers of the previous transaction arrive at the same time: a producer begins the next one as soon as the end of the
last is decided, while its markers are still being written. The epoch of a marker shows which transaction it ends:

    epoch below the guard's                   an older transaction
    same epoch, transaction version 2         the previous one: its end bumped the epoch to the guard's (KIP-890)
    same epoch, transaction version 0 or 1    unknown: all transactions of a producer have one epoch
    epoch above the guard's                   this transaction, or a later one

The first two leave the guard alone.
"""

from dataclasses import dataclass
from typing import NamedTuple

from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.coordinator.transactions.state import EPOCH_BUMP_VERSION

GUARDS_MAX = 10_000
"""Beyond this, the oldest guards of producers that never wrote are dropped."""


class GuardKey(NamedTuple):
    """One producer in one partition."""

    topic_id: bytes
    partition: int
    producer_id: int


@dataclass(slots=True, eq=False)
class Guard:
    """A request to the coordinator that is under way, or whose batch was not written.

    Later sequences wait for the lowest one.
    """

    epoch: int
    lowest_sequence: int
    leader_epoch: int
    """The leader epoch it was taken in: markers that another leader writes do not remove it."""


class TransactionGuards:
    """The guards of all partitions led here."""

    def __init__(self) -> None:
        self._guards: dict[GuardKey, Guard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def take(self, key: GuardKey, producer: ProducerIdAndEpoch, sequence: int, leader_epoch: int) -> Guard:
        """Return the guard for a request: that of the same transaction if there is one, else a new one."""
        guard = self._guards.get(key)
        # A newer epoch or leader invalidates the requests that were sent under the old guard.
        if guard is None or guard.epoch < producer.epoch or guard.leader_epoch != leader_epoch:
            guard = self._guards[key] = Guard(producer.epoch, sequence, leader_epoch)
            # Safe: the batch of a dropped guard is refused, never written unverified.
            if len(self._guards) > GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
        elif guard.epoch == producer.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def holds(self, key: GuardKey, guard: Guard) -> bool:
        """Whether the answer to a request that was sent under the guard still counts."""
        # By identity: a guard that was taken later may be that of another transaction.
        return self._guards.get(key) is guard

    def release(self, key: GuardKey) -> None:
        """Remove a guard: the open transaction in the log takes its place."""
        self._guards.pop(key, None)

    def on_marker(self, key: GuardKey, epoch: int, transaction_version: int) -> None:
        """Remove the guard of the transaction that a marker ends, but not that of the next one."""
        guard = self._guards.get(key)
        if guard is None or epoch < guard.epoch:
            return
        if epoch == guard.epoch and transaction_version >= EPOCH_BUMP_VERSION:
            return
        # In doubt, with transaction version 0 or 1, the guard goes: a batch is then refused, never written unverified.
        del self._guards[key]
