"""A transaction that one process writes and another one ends.

The writer calls `AsyncProducer.prepare_transaction` and exits; the process that decides calls `end_prepared`, repeated
until it succeeds. Until then it is an open transaction like any other: read_committed consumers wait, the coordinator
aborts it after transaction.timeout.ms, and a new producer with the same transactional id ends it too.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.producer.coordinator import Coordinator
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.transactions import Transactions


class PreparedTransaction(NamedTuple):
    """What `end_prepared` needs; `version` is the transaction.version that it was written under."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


async def end_prepared(
    cluster: ClusterClient, prepared: PreparedTransaction, timeout_s: float, *, commit: bool
) -> None:
    """Commit or abort; may be repeated as long as no other producer has used the id since.

    ProducerFencedError, InvalidTransactionStateError or INVALID_PRODUCER_ID_MAPPING: the transaction was ended before
    by a timeout or a new producer.
    """
    identity = ProducerIdentity()
    identity.producer_id, identity.epoch = prepared.producer_id, prepared.producer_epoch
    transactions = Transactions(prepared.transactional_id)
    # Not from the broker's features of now: they may have been upgraded since the transaction was written.
    transactions.implicit = prepared.version >= 2
    await Coordinator(cluster, identity, transactions).end(timeout_s, commit=commit)
