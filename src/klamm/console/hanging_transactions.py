"""Finds transactions that are open in a partition without an entry of their coordinator, and aborts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.transaction_types import ProducerState, TransactionDescription
from klamm.client.errors import KafkaError, SomeFailed
from klamm.console.core.samples import TopicSample
from klamm.console.core.transaction_states import OPEN_STATES, HangingTransaction, find_hanging
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

_LATEST: Final = -1
_READ_COMMITTED: Final = 1
_PARTITIONS_PER_REQUEST: Final = 5000
CANDIDATES_MAX: Final = 500
"""Partitions with an open transaction whose producers are described."""


class HangingSearch(NamedTuple):
    """What a search has found; `open_partitions` have a transaction that is open, hanging or not."""

    transactions: list[HangingTransaction]
    open_partitions: int
    searched_partitions: int


async def search_hanging(admin: AsyncAdmin, topics: Iterable[TopicSample]) -> HangingSearch:
    """Search all partitions of topics: those whose last stable offset is before their end have an open transaction."""
    ends = {
        TopicPartition(topic.name, partition.index): (partition.leader, partition.end)
        for topic in topics
        for partition in topic.partitions
        if partition.leader >= 0 and partition.end is not None
    }
    stable = await _list_stable_offsets(admin, {where: leader for where, (leader, _) in ends.items()})
    candidates = sorted(where for where, offset in stable.items() if offset < (ends[where][1] or 0))
    hanging = await check_partitions(admin, candidates[:CANDIDATES_MAX])
    return HangingSearch(hanging, len(candidates), len(ends))


async def check_partitions(admin: AsyncAdmin, partitions: Iterable[TopicPartition]) -> list[HangingTransaction]:
    """Return the transactions that hang in some partitions."""
    places = list(partitions)
    if not places:
        return []
    producers = await _describe_producers(admin, places)
    ids = {state.producer_id for states in producers.values() for state in states if _is_open(state)}
    if not ids:
        return []
    listings = await admin.list_transactions(states=OPEN_STATES, producer_ids=sorted(ids))
    described = await asyncio.gather(*(_describe(admin, listing.transactional_id) for listing in listings))
    hanging = find_hanging(producers, [transaction for transaction in described if transaction is not None])
    if not hanging:
        return []
    # One that ended between the two requests is in no coordinator's list either: it is not open any more now.
    again = await _describe_producers(admin, {TopicPartition(entry.topic, entry.partition) for entry in hanging})
    still = {
        (where, state.producer_id, state.transaction_start_offset)
        for where, states in again.items()
        for state in states
    }
    return [
        entry
        for entry in hanging
        if (TopicPartition(entry.topic, entry.partition), entry.producer_id, entry.start_offset) in still
    ]


async def abort_hanging(admin: AsyncAdmin, where: TopicPartition, producer_id: int, start_offset: int) -> None:
    """Write an abort marker; ValueError when this transaction does not hang, or not any more."""
    for entry in await check_partitions(admin, [where]):
        if (entry.producer_id, entry.start_offset) == (producer_id, start_offset):
            # A partition without a marker of this producer has no epoch of a coordinator yet.
            epoch = max(entry.coordinator_epoch, 0)
            await admin.abort_transaction(where, producer_id, entry.producer_epoch, epoch)
            return
    raise ValueError(f"the transaction in {where.topic}-{where.partition} does not hang any more; nothing was changed")


async def _list_stable_offsets(admin: AsyncAdmin, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for where, leader in leaders.items():
        by_leader.setdefault(leader, []).append(where)
    offsets = {}
    for leader, places in by_leader.items():
        for begin in range(0, len(places), _PARTITIONS_PER_REQUEST):
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for where in places[begin : begin + _PARTITIONS_PER_REQUEST]:
                partition = ListOffsetsPartition(partition_index=where.partition, timestamp=_LATEST)
                topics.setdefault(where.topic, []).append(partition)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_READ_COMMITTED,
                topics=[ListOffsetsTopic(name=name, partitions=listed) for name, listed in topics.items()],
            )
            response = await admin.request(request, broker=leader)
            for topic in response.topics:
                for answer in topic.partitions:
                    if not answer.error_code:
                        offsets[TopicPartition(topic.name, answer.partition_index)] = answer.offset
    return offsets


async def _describe_producers(
    admin: AsyncAdmin, places: Iterable[TopicPartition]
) -> Mapping[TopicPartition, list[ProducerState]]:
    try:
        return await admin.describe_producers(sorted(places))
    except SomeFailed as error:
        # Topics that were deleted meanwhile, or may not be described.
        return error.results


async def _describe(admin: AsyncAdmin, name: str) -> TransactionDescription | None:
    try:
        return (await admin.describe_transactions([name]))[name]
    except KafkaError:
        # It expired between the list and its description.
        return None


def _is_open(state: ProducerState) -> bool:
    return state.transaction_start_offset is not None
