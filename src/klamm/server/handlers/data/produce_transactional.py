"""Produce, the part for transactions: which batches the coordinator must admit before they are staged.

Only the first batch of a transaction in a partition needs this; until it is admitted, later requests of the same
producer wait, so that batches are staged in the order of their arrival.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
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
class Admission:
    """The transactional batches of a request that the coordinator must admit, with their parts of the request."""

    transactional_id: str
    producer_id: int
    abilities: Abilities
    batches: list[tuple[Any, UnverifiedBatch]] = field(default_factory=list)
    """(part of the request, its batch)"""
    refused: dict[int, KlammError] = field(default_factory=dict)


def find_admission(services: Services, version: int, request: ProduceRequest) -> Admission | None:
    """Return what must be admitted before the request may be staged; None when nothing must."""
    gate = services.coordinators.transactions.gate
    assert request.transactional_id is not None
    admission = Admission(request.transactional_id, -1, Abilities(version >= ADDS_SINCE, version >= ABORTABLE_SINCE))
    is_needed = False
    for topic in request.topic_data:
        for partition in topic.partition_data:
            batch = _transactional_batch(partition.records)
            if batch is None:
                continue
            # A transactional id has one producer, so a request can have batches of one only.
            if admission.producer_id not in (-1, batch.producer_id):
                admission.refused[id(partition)] = KlammError(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request has batches of several transactional producers"
                )
                is_needed = True
                continue
            admission.producer_id = batch.producer_id
            if topic.topic_id != ZERO_UUID:
                replica = services.replicas.find_by_id(topic.topic_id, partition.index)
            else:
                replica = services.replicas.find(topic.name, partition.index)
            # Staging refuses it; the coordinator must not add a partition that is not written to.
            if replica is None or not replica.leads:
                continue
            producer = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)
            admission.batches.append((partition, UnverifiedBatch(replica, producer, batch.base_sequence)))
            is_needed = is_needed or gate.must_ask(replica, producer, admission.abilities)
    # Also without a batch to admit: staged now, it would overtake an earlier request that waits.
    return admission if is_needed or gate.is_busy(admission.producer_id) else None


def _transactional_batch(records: Any) -> BatchView | None:
    if records is None or len(records) < HEADER_SIZE:
        return None
    try:
        batch = BatchView(records)
    except CorruptBatch:
        return None
    return batch if batch.is_transactional and batch.producer_id >= 0 else None


def admit_later(services: Services, admission: Admission, stage: Callable[[Mapping[int, KlammError]], None]) -> None:
    """Send the batches to the coordinator, then stage; the request must own its records."""
    gate = services.coordinators.transactions.gate

    async def work() -> None:
        # Checked again: an earlier request of the producer may have opened the transaction meanwhile.
        abilities = admission.abilities
        batches = [batch for _, batch in admission.batches if gate.must_ask(batch.replica, batch.producer, abilities)]
        try:
            refused = await gate.admit(admission.transactional_id, batches, abilities)
        except Exception as error:  # noqa: BLE001 - a bug in verification must not leave the producer without a reply
            log.failure("transaction verification failed", error, transactional_id=admission.transactional_id)
            refused = {batch.partition: KlammError(ErrorCode.UNKNOWN_SERVER_ERROR) for batch in batches}
        for partition, batch in admission.batches:
            if batch.partition in refused:
                admission.refused[id(partition)] = refused[batch.partition]
        stage(admission.refused)
        for batch in batches:
            # Staging has opened the transaction in the log, which takes the place of the guard.
            if not gate.must_ask(batch.replica, batch.producer, abilities):
                gate.on_written(batch.replica, batch.producer.id)

    gate.spawn(admission.producer_id, work)
