"""What a producer asks of coordinators: its id, which partitions a transaction touches, and how it ends."""

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

_CONCURRENT_S = 0.02
_ADD_PARTITIONS_BY_CLIENTS = 3
_TWO = 2
_CLOSED_TO_US = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class GroupMetadata(NamedTuple):
    """Who commits offsets inside a transaction: a consumer's place in its group."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Coordinator:
    """Finds the coordinators and asks them, again while they move or load."""

    def __init__(self, cluster: ClusterClient, identity: ProducerIdentity, transactions: Transactions | None) -> None:
        self._cluster = cluster
        self._identity = identity
        self._transactions = transactions
        self._found: dict[tuple[int, str], BrokerAddress] = {}

    async def _connection(self, kind: int, key: str) -> Connection:
        coordinator = self._found.get((kind, key))
        if coordinator is None:
            coordinator = self._found[kind, key] = await self._cluster.find_coordinator(kind, key)
        return await self._cluster.connect(coordinator.host, coordinator.port, ADMIN)

    async def _asking(self, kind: int, key: str, ask: Callable[[Connection], Awaitable[Any]], timeout_s: float) -> Any:
        """Ask until it is answered; a coordinator that moved is found again, one that is busy is given a moment."""

        async def once() -> Any:
            while True:
                try:
                    return await ask(await self._connection(kind, key))
                except KafkaError as error:
                    if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                        raise
                await asyncio.sleep(_CONCURRENT_S)

        return await self._cluster.retrying(once, timeout_s, lambda _: self._forget(kind, key))

    def _forget(self, kind: int, key: str) -> None:
        self._found.pop((kind, key), None)

    async def get_id(self, timeout_s: float, *, keep: bool = False) -> tuple[int, int]:
        """A producer id and epoch; with a transactional id what its last owner left open is ended first.

        `keep` asks for the next epoch of the id in use.
        """
        transactions, identity = self._transactions, self._identity
        request = InitProducerIdRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            transaction_timeout_ms=self._cluster.settings.number("transaction.timeout.ms")
            if transactions is not None and "transaction.timeout.ms" in self._cluster.settings
            else 60_000,
            producer_id=identity.producer_id if keep else -1,
            producer_epoch=identity.epoch if keep else -1,
        )

        async def ask(connection: Connection) -> Any:
            answer = await connection.request(request, connection.version_of("InitProducerId", 5))
            _check(answer.error_code)
            if transactions is not None:
                new = connection.features.get("transaction.version", 0) >= _TWO
                transactions.implicit = new and connection.version_of("Produce") >= 12
            return answer

        if transactions is None:

            async def any_broker() -> Any:
                return await ask(await self._cluster.any_connection())

            answer = await self._cluster.retrying(any_broker, timeout_s)
        else:
            answer = await self._asking(TRANSACTION_COORDINATOR, transactions.transactional_id, ask, timeout_s)
        return answer.producer_id, answer.producer_epoch

    async def announce(self, places: frozenset[TopicPartition], timeout_s: float) -> None:
        """Tell the coordinator which partitions the transaction will write to (before transaction.version 2)."""
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

        async def ask(connection: Connection) -> None:
            version = connection.version_of("AddPartitionsToTxn", _ADD_PARTITIONS_BY_CLIENTS)
            answer = await connection.request(request, version)
            codes = [
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            others = [code for code in codes if code not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)]
            _check(next(iter(others or codes), 0))

        await self._asking(TRANSACTION_COORDINATOR, transactions.transactional_id, ask, timeout_s)
        transactions.announced(places)

    async def end(self, timeout_s: float, *, commit: bool) -> tuple[int, int] | None:
        """Commit or abort; returns the id and epoch of the next transaction where brokers say so."""
        transactions, identity = self._transactions, self._identity
        assert transactions is not None
        request = EndTxnRequest(
            transactional_id=transactions.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def ask(connection: Connection) -> Any:
            version = connection.version_of("EndTxn", 5 if transactions.implicit else 4)
            answer = await connection.request(request, version)
            _check(answer.error_code)
            return answer

        answer = await self._asking(TRANSACTION_COORDINATOR, transactions.transactional_id, ask, timeout_s)
        if transactions.implicit and answer.producer_id >= 0:
            return answer.producer_id, answer.producer_epoch
        return None

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, timeout_s: float
    ) -> None:
        """Store a group's offsets inside the transaction."""
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

            # Looking for the group's coordinator first makes a new cluster create the topic that offsets live in.
            await self._cluster.retrying(
                functools.partial(self._connection, GROUP_COORDINATOR, group.group_id), timeout_s
            )
            await self._asking(TRANSACTION_COORDINATOR, transactions.transactional_id, add, timeout_s)
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
            version = connection.version_of("TxnOffsetCommit", 5 if transactions.implicit else 4)
            answer = await connection.request(request, version)
            for topic in answer.topics:
                for partition in topic.partitions:
                    _check(partition.error_code)

        await self._asking(GROUP_COORDINATOR, group.group_id, commit, timeout_s)

    def failed(self, error: KafkaError) -> KafkaError:
        """What an error of a coordinator does to the transaction; returns it as the caller should see it."""
        transactions = self._transactions
        if transactions is None:
            return error
        if transactions.status is not TransactionStatus.FATAL_ERROR:
            transactions.fail(error)
        if isinstance(error, CommitFailedError):
            transactions.fail(TransactionAbortableError(ErrorCode.TRANSACTION_ABORTABLE, str(error)))
        return error


def _check(number: int) -> None:
    """Raise what a coordinator refused; an old epoch means that a newer producer has come."""
    if not number:
        return
    error = error_for(number)
    if error.code in _CLOSED_TO_US:
        raise ProducerFencedError(ErrorCode.PRODUCER_FENCED, f"a newer producer has this transactional id ({error})")
    raise error
