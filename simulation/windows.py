"""Several requests in flight: batches of one partition are sent on without waiting for answers, as librdkafka does.

A window of batches leaves at once. Whatever could not be written is sent again, in order, when all answers are there: a
connection that broke has failed everything behind it as well, and what follows a refused batch is out of order.
"""

import asyncio
from dataclasses import dataclass

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records import build_batch
from simulation.client import GONE, LATER, Client
from simulation.ledger import Ledger, Place

WINDOW_MAX = 4
"""Fewer than the five batches a log remembers of each producer, so that a duplicate is always known as one."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Under which identity batches are written."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    version: int = 11
    """Of Produce."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch whose fate is not known."""

    sequence: int
    values: list[bytes]
    request: ProduceRequest


def make_window(
    client: Client, place: Place, writer: BatchIdentity, first_sequence: int, batches: list[list[bytes]]
) -> list[PendingBatch]:
    """The requests of a window, one batch in each."""
    now_ms = client.cluster.machines[1].clock.now_ms()
    window = []
    sequence = first_sequence
    for values in batches:
        batch = build_batch(
            [(now_ms, None, value, ()) for value in values],
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=sequence,
            transactional=writer.transactional_id is not None,
        )
        request = ProduceRequest(
            transactional_id=writer.transactional_id,
            acks=-1,
            timeout_ms=2_000,
            topic_data=[
                TopicProduceData(
                    name=place[0], partition_data=[PartitionProduceData(index=place[1], records=bytes(batch))]
                )
            ],
        )
        window.append(PendingBatch(sequence, values, request))
        sequence += len(values)
    return window


async def deliver(client: Client, ledger: Ledger, place: Place, window: list[PendingBatch], version: int) -> ErrorCode:
    """Send a window until everything in it is settled; otherwise the first code after which no retry can help."""
    while window:
        leader = await client.leader_of(*place)
        answers = await asyncio.gather(*(_produce(client, leader, batch.request, version) for batch in window))
        left: list[PendingBatch] = []
        for batch, (code, offset) in zip(window, answers, strict=True):
            if code == ErrorCode.NONE:
                ledger.ack(place, offset, batch.values)
            elif code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                pass  # written before, at an offset that is forgotten
            elif code in LATER or (code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and left):
                left.append(batch)
            else:
                if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    ledger.violate(f"7: {place} refused {batch.values[0]!r}, and has all that was sent before it")
                return code
        window = left
        if window:
            client.forget_leader(*place)
            await client.pause()
    return ErrorCode.NONE


async def _produce(client: Client, leader: int, request: ProduceRequest, version: int) -> tuple[ErrorCode, int]:
    try:
        response = await client.ask(leader, request, version)
    except GONE:
        return ErrorCode.NETWORK_EXCEPTION, -1
    answer = response.responses[0].partition_responses[0]
    return ErrorCode(answer.error_code), answer.base_offset
