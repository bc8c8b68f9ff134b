"""Transactions: who may write under a transactional id, which partitions belong to an open transaction, how it ends.

`state` is the life of one id as a table, `records` its form on disk, `shard` the decisions of one partition of
`__transaction_state`, `markers` what a decided transaction owes its partitions. Everything here is pure; the server
writes the markers, keeps time and carries requests in.
"""

from klamm.coordinator.transactions.markers import MarkerOutcome, MarkerTracker, PendingMarkers
from klamm.coordinator.transactions.shard import TransactionConfig, TransactionShard
from klamm.coordinator.transactions.state import TransactionMetadata, TransactionState

__all__ = [
    "MarkerOutcome",
    "MarkerTracker",
    "PendingMarkers",
    "TransactionConfig",
    "TransactionMetadata",
    "TransactionShard",
    "TransactionState",
]
