"""A transaction that is written but not ended, handed from one process to another.

The process that wrote it calls `AsyncProducer.prepare_transaction` and exits; the one that decides ends it with
`end_prepared`, repeated until it is answered. Until then it is an open transaction like any other: readers of committed
data wait, the coordinator aborts it after its transaction.timeout.ms, and a new producer of the same id ends it too.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.producer.coordinator import Coordinator
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.transactions import Transactions


class PreparedTransaction(NamedTuple):
    """What is needed to end it; `version` is the transaction.version it was written under."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


async def end_prepared(
    cluster: ClusterClient, prepared: PreparedTransaction, timeout_s: float, *, commit: bool
) -> None:
    """Commit or abort; repeating it is fine as long as no other producer has used the id since.

    ProducerFencedError, InvalidTransactionStateError or INVALID_PRODUCER_ID_MAPPING: it was ended otherwise before.
    """
    identity = ProducerIdentity()
    identity.producer_id, identity.epoch = prepared.producer_id, prepared.producer_epoch
    transactions = Transactions(prepared.transactional_id)
    transactions.implicit = prepared.version >= 2
    await Coordinator(cluster, identity, transactions).end(timeout_s, commit=commit)
