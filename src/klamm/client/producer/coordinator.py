"""A producer's requests to coordinators: producer id, partitions and offsets of a transaction, and its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.connection import Connection
from klamm.client.core.metadata import BrokerAddress
from klamm.client.core.routing import ADMIN, GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from klamm.client.errors import (
    CommitFailedError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    error_for,
)
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.transactions import Transactions, TransactionStatus
from klamm.client.types import OffsetAndMetadata
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

# The previous transaction of the id is still writing its markers, which takes milliseconds: retry sooner than
# retry.backoff.ms (Java does the same for the first AddPartitionsToTxn).
_CONCURRENT_S = 0.02
_ADD_PARTITIONS_BY_CLIENTS = 3  # from v4 on the request is one between brokers (KIP-890)
_TRANSACTION_V2 = 2
_IMPLICIT_PRODUCE = 12
_END_TXN_V2, _END_TXN = 5, 4
_OFFSETS_V2, _OFFSETS = 5, 4
_INIT_PRODUCER_ID = 5  # v6 is for two-phase commit (KIP-939), which this client does not have
_TRANSACTION_TIMEOUT_MS = 60_000
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GroupMetadata(NamedTuple):
    """Generation and member id of the consumer whose offsets a transaction commits (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Coordinator:
    """Sends requests to coordinators; looks them up, and retries while they move or load."""

    def __init__(self, cluster: ClusterClient, identity: ProducerIdentity, transactions: Transactions | None) -> None:
        self._cluster = cluster
        self._identity = identity
        self._transactions = transactions
        self._brokers: dict[tuple[int, str], BrokerAddress] = {}

    async def _connection(self, kind: int, key: str) -> Connection:
        coordinator = self._brokers.get((kind, key))
        if coordinator is None:
            coordinator = self._brokers[kind, key] = await self._cluster.find_coordinator(kind, key)
        return await self._cluster.connect(coordinator.host, coordinator.port, ADMIN)

    async def _request(
        self, kind: int, key: str, send: Callable[[Connection], Awaitable[Any]], timeout_s: float
    ) -> Any:
        """Call `send` with a connection to the coordinator until it succeeds; looks the coordinator up again."""

        async def once() -> Any:
            while True:
                try:
                    return await send(await self._connection(kind, key))
                except KafkaError as error:
                    if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                        raise
                await asyncio.sleep(_CONCURRENT_S)

        return await self._cluster.retrying(once, timeout_s, lambda _: self._forget(kind, key))

    def _forget(self, kind: int, key: str) -> None:
        self._brokers.pop((kind, key), None)

    async def get_id(self, timeout_s: float, *, keep: bool = False) -> tuple[int, int]:
        """Request a producer id and epoch; with a transactional id, an open transaction of it is ended first.

        `keep` requests the next epoch of the id in use (KIP-360).
        """
        transactions, identity = self._transactions, self._identity
        request = InitProducerIdRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            # The settings may be those of an admin client, which has no transaction.timeout.ms.
            transaction_timeout_ms=self._cluster.settings.number("transaction.timeout.ms")
            if transactions is not None and "transaction.timeout.ms" in self._cluster.settings
            else _TRANSACTION_TIMEOUT_MS,
            producer_id=identity.producer_id if keep else -1,
            producer_epoch=identity.epoch if keep else -1,
        )

        async def send(connection: Connection) -> Any:
            response = await connection.request(request, connection.version_of("InitProducerId", _INIT_PRODUCER_ID))
            _check(response.error_code)
            # Decided here only, as in Java: a change of the feature must not change the rules of an open transaction.
            if transactions is not None:
                new = connection.features.get("transaction.version", 0) >= _TRANSACTION_V2
                transactions.implicit = new and connection.version_of("Produce") >= _IMPLICIT_PRODUCE
            return response

        if transactions is None:

            async def any_broker() -> Any:
                return await send(await self._cluster.any_connection())

            response = await self._cluster.retrying(any_broker, timeout_s)
        else:
            response = await self._request(TRANSACTION_COORDINATOR, transactions.transactional_id, send, timeout_s)
        return response.producer_id, response.producer_epoch

    async def add_partitions(self, places: frozenset[TopicPartition], timeout_s: float) -> None:
        """Add partitions to the transaction before they are written to (transaction.version 0 and 1)."""
        transactions, identity = self._transactions, self._identity
        assert transactions is not None
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(places):
            by_topic.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactions.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=parts) for name, parts in by_topic.items()
            ],
        )

        async def send(connection: Connection) -> None:
            version = connection.version_of("AddPartitionsToTxn", _ADD_PARTITIONS_BY_CLIENTS)
            response = await connection.request(request, version)
            codes = [
                result.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            # One failure fails all; the others are OPERATION_NOT_ATTEMPTED, which hides the reason.
            others = [code for code in codes if code not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)]
            _check(next(iter(others or codes), 0))

        await self._request(TRANSACTION_COORDINATOR, transactions.transactional_id, send, timeout_s)
        transactions.add_partitions(places)

    async def end(self, timeout_s: float, *, commit: bool) -> tuple[int, int] | None:
        """Commit or abort; returns the id and epoch of the next transaction under transaction.version 2 (KIP-890)."""
        transactions, identity = self._transactions, self._identity
        assert transactions is not None
        request = EndTxnRequest(
            transactional_id=transactions.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def send(connection: Connection) -> Any:
            # v5 bumps the epoch; a transaction of the older rules must not.
            version = connection.version_of("EndTxn", _END_TXN_V2 if transactions.implicit else _END_TXN)
            response = await connection.request(request, version)
            _check(response.error_code)
            return response

        response = await self._request(TRANSACTION_COORDINATOR, transactions.transactional_id, send, timeout_s)
        if transactions.implicit and response.producer_id >= 0:
            return response.producer_id, response.producer_epoch
        return None

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, timeout_s: float
    ) -> None:
        """Commit a group's offsets inside the transaction."""
        transactions, identity = self._transactions, self._identity
        assert transactions is not None
        if not transactions.implicit:
            adding = AddOffsetsToTxnRequest(
                transactional_id=transactions.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=group.group_id,
            )

            async def add(connection: Connection) -> None:
                _check((await connection.request(adding)).error_code)

            # FindCoordinator makes a new cluster create __consumer_offsets, which AddOffsetsToTxn needs.
            await self._cluster.retrying(
                functools.partial(self._connection, GROUP_COORDINATOR, group.group_id), timeout_s
            )
            await self._request(TRANSACTION_COORDINATOR, transactions.transactional_id, add, timeout_s)
        # Before the request: should its reply get lost, the coordinator may know of the transaction, and has to end it.
        transactions.touched = True
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for where, position in offsets.items():
            by_topic.setdefault(where.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=where.partition,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.leader_epoch,
                    committed_metadata=position.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=transactions.transactional_id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
        )

        async def commit(connection: Connection) -> None:
            version = connection.version_of("TxnOffsetCommit", _OFFSETS_V2 if transactions.implicit else _OFFSETS)
            response = await connection.request(request, version)
            for topic in response.topics:
                for partition in topic.partitions:
                    _check(partition.error_code)

        await self._request(GROUP_COORDINATOR, group.group_id, commit, timeout_s)

    def fail_transaction(self, error: KafkaError) -> KafkaError:
        """Fail the transaction with a coordinator's error; returns the error for the caller to raise."""
        transactions = self._transactions
        if transactions is None:
            return error
        if transactions.status is not TransactionStatus.FATAL_ERROR:
            transactions.fail(error)
        # The group rebalanced: the producer is fine, but these offsets belong to another member now.
        if isinstance(error, CommitFailedError):
            transactions.fail(TransactionAbortableError(ErrorCode.TRANSACTION_ABORTABLE, str(error)))
        return error


def _check(number: int) -> None:
    """Raise a coordinator's error; an old epoch means that a newer producer has the id."""
    if not number:
        return
    error = error_for(number)
    if error.code in _FENCED:
        raise ProducerFencedError(ErrorCode.PRODUCER_FENCED, f"a newer producer has this transactional id ({error})")
    raise error
