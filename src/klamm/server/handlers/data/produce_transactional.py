"""Produce, the part for transactions: which batches the coordinator must be asked about before they are staged.

Only the first batch of a transaction in a partition comes this way; as long as that question is open, everything of the
same producer waits behind it, so that batches are staged in the order they came.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from klamm.coordinator.transactions.rules import Producer
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.produce import ProduceRequest
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.server.coordinators.transaction_gate import Abilities, UnverifiedBatch
from klamm.server.services import Services
from klamm.telemetry.log import get_logger

log = get_logger("transactions")

ABORTABLE_SINCE = 11
ADDS_SINCE = 12


@dataclass(slots=True)
class Question:
    """What a request wants to know: its transactional batches and where each stands in the request."""

    transactional_id: str
    producer_id: int
    abilities: Abilities
    batches: list[tuple[Any, UnverifiedBatch]] = field(default_factory=list)
    """(part of the request, its batch)"""
    refused: dict[int, KlammError] = field(default_factory=dict)


def question(services: Services, version: int, request: ProduceRequest) -> Question | None:
    """What must be asked before the request may be staged; None when that is nothing."""
    gate = services.coordinators.transactions.gate
    assert request.transactional_id is not None
    asks = Question(request.transactional_id, -1, Abilities(version >= ADDS_SINCE, version >= ABORTABLE_SINCE))
    must_ask = False
    for topic in request.topic_data:
        for partition in topic.partition_data:
            batch = _transactional_batch(partition.records)
            if batch is None:
                continue
            if asks.producer_id not in (-1, batch.producer_id):
                asks.refused[id(partition)] = KlammError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request has batches of several transactional producers"
                )
                must_ask = True
                continue
            asks.producer_id = batch.producer_id
            if topic.topic_id != ZERO_UUID:
                replica = services.replicas.find_by_id(topic.topic_id, partition.index)
            else:
                replica = services.replicas.find(topic.name, partition.index)
            if replica is None or not replica.leads:
                continue
            producer = Producer(batch.producer_id, batch.producer_epoch)
            asks.batches.append((partition, UnverifiedBatch(replica, producer, batch.base_sequence)))
            must_ask = must_ask or gate.must_ask(replica, producer, asks.abilities)
    return asks if must_ask or gate.is_busy(asks.producer_id) else None


def _transactional_batch(records: Any) -> BatchView | None:
    if records is None or len(records) < HEADER_SIZE:
        return None
    try:
        batch = BatchView(records)
    except CorruptBatch:
        return None
    return batch if batch.is_transactional and batch.producer_id >= 0 else None


def later(services: Services, asks: Question, stage: Callable[[Mapping[int, KlammError]], None]) -> None:
    """Ask, then stage; the request must own its records, since that takes longer than its buffer is lent."""
    gate = services.coordinators.transactions.gate

    async def work() -> None:
        # Looked at again: an earlier request of the producer may have opened the transaction meanwhile.
        batches = [batch for _, batch in asks.batches if gate.must_ask(batch.replica, batch.producer, asks.abilities)]
        try:
            refused = await gate.admit(asks.transactional_id, batches, asks.abilities)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the producer gets an answer
            log.failure("a transaction could not be verified", error, transactional_id=asks.transactional_id)
            refused = {batch.partition: KlammError(ErrorCode.UNKNOWN_SERVER_ERROR) for batch in batches}
        for partition, batch in asks.batches:
            if batch.partition in refused:
                asks.refused[id(partition)] = refused[batch.partition]
        stage(asks.refused)
        for batch in batches:
            if not gate.must_ask(batch.replica, batch.producer, asks.abilities):
                gate.on_written(batch.replica, batch.producer.id)

    gate.spawn(asks.producer_id, work)
