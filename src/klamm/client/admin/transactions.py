"""Transactions: listing and describing them, producers of partitions, aborting hanging ones."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from klamm.client.admin.base import AdminBase, Outcomes, by_topic
from klamm.client.admin.transaction_types import ProducerState, TransactionDescription, TransactionListing
from klamm.client.core.arguments import place, places, several, texts
from klamm.client.core.routing import ADMIN, TRANSACTION_COORDINATOR
from klamm.client.errors import raise_for
from klamm.client.types import TopicPartition
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.list_transactions import ListTransactionsRequest
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


class TransactionsAdmin(AdminBase):
    """Requests about transactions."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Every transactional id of every coordinator; open longer than `duration_ms`, matching `pattern`."""
        request = ListTransactionsRequest(
            state_filters=texts(states, "list_transactions, states"),
            producer_id_filters=several(producer_ids, int, "list_transactions, producer_ids"),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )
        responses = await self._send_to_brokers(await self._broker_ids(), request)
        transactions = [
            TransactionListing(state.transactional_id, state.producer_id, state.transaction_state, broker)
            for broker, response in responses.items()
            for state in response.transaction_states
        ]
        return sorted(transactions, key=attrgetter("transactional_id"))

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The state of transactional ids."""
        outcomes = Outcomes()
        for name in texts(transactional_ids, "describe_transactions"):

            async def once(name: str = name) -> tuple[int, Any]:
                broker = await self.cluster.find_coordinator(TRANSACTION_COORDINATOR, name)
                connection = await self.cluster.connect(broker.host, broker.port, ADMIN)
                response = await connection.request(DescribeTransactionsRequest(transactional_ids=[name]))
                state = response.transaction_states[0]
                # Raises only errors that pass, so that the attempt is retried; the others are collected below.
                Outcomes().add(name, state.error_code)
                return broker.node_id, state

            coordinator, state = await self._retrying(once)
            described = TransactionDescription(
                state.transactional_id,
                coordinator,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
                tuple(
                    sorted(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions)
                ),
            )
            outcomes.add(name, state.error_code, None, described)
        return outcomes.results_or_raise()

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> dict[TopicPartition, list[ProducerState]]:
        """The producers that leaders (or the replicas on `broker`) keep for partitions, and their open transactions."""

        def request(mine: dict[str, list[int]]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in mine.items()]
            )

        def read(response: Any, outcomes: Outcomes) -> None:
            for topic in response.topics:
                for partition in topic.partitions:
                    states = [
                        ProducerState(
                            state.producer_id,
                            state.producer_epoch,
                            state.last_sequence,
                            state.last_timestamp,
                            state.coordinator_epoch,
                            state.current_txn_start_offset if state.current_txn_start_offset >= 0 else None,
                        )
                        for state in partition.active_producers
                    ]
                    where = TopicPartition(topic.name, partition.partition_index)
                    outcomes.add(where, partition.error_code, partition.error_message, states)

        wanted = places(partitions, "describe_producers")
        if broker is None:
            return await self._send_to_leaders(wanted, request, read)
        return await self._send_for_items(request(by_topic(wanted)), read, broker=broker)

    async def abort_transaction(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker to a partition, for a transaction that its coordinator no longer has."""
        where = place(partition, "abort_transaction")
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])],
            coordinator_epoch=coordinator_epoch,
        )

        async def once() -> None:
            (leader,) = await self._by_leader([where])
            response = await self.request(WriteTxnMarkersRequest(markers=[marker]), broker=leader)
            outcomes = Outcomes()
            outcomes.add(where, response.markers[0].topics[0].partitions[0].error_code)
            outcomes.results_or_raise()

        await self._retrying(once)

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, transaction_timeout_ms: int = 1
    ) -> dict[str, tuple[int, int]]:
        """Fence the producers that use these transactional ids and abort their transactions.

        Returns the new (producer id, epoch). `transaction_timeout_ms` is stored with the id until a producer uses it.
        """
        identities = {}
        for name in texts(transactional_ids, "fence_producers"):
            # Without a producer id and epoch the coordinator takes the request as a new producer and bumps the epoch.
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=transaction_timeout_ms)
            response = await self._send_to_coordinator(
                TRANSACTION_COORDINATOR, name, request, _check_error_code, version=5
            )
            identities[name] = (response.producer_id, response.producer_epoch)
        return identities


def _check_error_code(response: Any) -> None:
    raise_for(response.error_code)
