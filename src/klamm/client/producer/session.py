"""A producer's id, and its transactions from begin to end.

The shell around `Transactions` (which state allows what) and `Coordinator` (the requests).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from klamm.client.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from klamm.client.producer.coordinator import Coordinator, GroupMetadata
from klamm.client.producer.core.accumulator import Accumulator
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.transactions import Transactions, TransactionStatus
from klamm.client.producer.prepared_transaction import PreparedTransaction
from klamm.client.types import OffsetAndMetadata, TopicPartition, as_offsets
from klamm.model.errors import ErrorCode

S = TransactionStatus
_LONG_S = 3600.0 * 24 * 365  # no limit in effect: delivery.timeout.ms fails the records that wait for an id
_CLOSING_S = 5.0


class Session:
    """Exists for idempotent producers. `flush` delivers all records, `released` is called when memory was freed."""

    def __init__(
        self,
        identity: ProducerIdentity,
        transactions: Transactions | None,
        coordinator: Coordinator,
        accumulator: Accumulator,
        guard: AbstractContextManager[Any],
        flush: Callable[[float | None], Awaitable[None]],
        released: Callable[[], None],
        block_s: float,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Wakes the sender once the producer id or the partitions are there."""
        self._identity = identity
        self._given_transactions = transactions
        self._coordinator = coordinator
        self._accumulator = accumulator
        self._guard = guard
        self._flush = flush
        self._released = released
        self._block_s = block_s
        self._preparing: asyncio.Task[None] | None = None

    # What the sender needs

    def prepare(self) -> None:
        """Request what is needed before batches are sent: a producer id, or partitions added to the transaction."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.create_task(self._prepare(), name="klamm producer preparing")

    async def _prepare(self) -> None:
        transactions = self._given_transactions
        try:
            if transactions is None:
                given = await self._coordinator.get_id(_LONG_S)
                with self._guard:
                    self._identity.assign(*given, self._accumulator.queues.values())
            elif transactions.partitions_to_add:
                await self._coordinator.add_partitions(frozenset(transactions.partitions_to_add), self._block_s)
        except KafkaError as error:
            if transactions is not None:
                self._coordinator.fail_transaction(error)
            else:
                with self._guard:
                    self._accumulator.fail_waiting(error)
                self._released()
        self.wake()

    async def stop(self) -> None:
        """Cancel `prepare`."""
        if self._preparing is not None:
            self._preparing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._preparing

    # Transactions

    @property
    def transactions(self) -> Transactions:
        """The state of the transactional id; IllegalStateError without one."""
        if self._given_transactions is None:
            raise IllegalStateError("transactions need a transactional.id")
        return self._given_transactions

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        transactions = self._given_transactions
        return transactions is not None and transactions.status in (S.IN_TRANSACTION, S.ABORTABLE_ERROR)

    async def init(self, timeout_s: float | None) -> None:
        """Initialize the transactional id: fence older producers with it, and end their open transaction."""
        transactions = self.transactions
        transactions.require(S.UNINITIALIZED)
        transactions.move(S.INITIALIZING)
        try:
            given = await self._coordinator.get_id(self._block_s if timeout_s is None else timeout_s)
        except KafkaError as error:
            if error.retriable:  # the caller may try again
                transactions.move(S.UNINITIALIZED)
            else:
                transactions.fatal(error)
            raise
        except BaseException:
            transactions.move(S.UNINITIALIZED)
            raise
        self._identity.assign(*given, self._accumulator.queues.values())
        transactions.move(S.READY)

    def begin(self) -> None:
        """Begin a transaction."""
        transactions = self.transactions
        transactions.require(S.READY)
        transactions.move(S.IN_TRANSACTION)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit a consumer's offsets with the transaction."""
        self.transactions.require(S.IN_TRANSACTION)
        if not isinstance(group, str | GroupMetadata):
            raise TypeError(f"group of a transaction's offsets is consumer.group_metadata() or a name, not {group!r}")
        if not offsets:
            return
        member = GroupMetadata(group) if isinstance(group, str) else group
        try:
            await self._coordinator.send_offsets(as_offsets(offsets), member, self._block_s)
        except KafkaError as error:
            raise self._coordinator.fail_transaction(error) from None

    async def commit(self, timeout_s: float | None) -> None:
        """Deliver all records and commit; TransactionAbortableError when one failed."""
        transactions = self.transactions
        transactions.require(S.IN_TRANSACTION)
        limit_s = self._block_s if timeout_s is None else timeout_s
        transactions.move(S.COMMITTING)
        try:
            await self._flush(limit_s)
        except BaseException:  # a cancelled commit as well: it can only be aborted now
            transactions.fail(KafkaTimeoutError("not all records were delivered in time"))
            raise
        if transactions.failed is not None:
            if transactions.status is S.FATAL_ERROR:
                raise transactions.failed
            raise TransactionAbortableError(
                ErrorCode.TRANSACTION_ABORTABLE, f"the transaction can only be aborted: {transactions.failed}"
            ) from transactions.failed
        await self._end(limit_s, commit=True)

    async def prepare_transaction(self, timeout_s: float | None) -> PreparedTransaction:
        """Deliver all records and leave the transaction open, for another process to end."""
        transactions, identity = self.transactions, self._identity
        transactions.require(S.IN_TRANSACTION)
        await self._flush(self._block_s if timeout_s is None else timeout_s)
        transactions.require(S.IN_TRANSACTION)  # again: a record that failed meanwhile has changed the state
        transactions.move(S.PREPARED)
        version = 2 if transactions.implicit else 1
        return PreparedTransaction(transactions.transactional_id, identity.producer_id, identity.epoch, version)

    async def abort(self, timeout_s: float | None) -> None:
        """Abort the transaction."""
        transactions = self.transactions
        transactions.require(S.IN_TRANSACTION, S.ABORTABLE_ERROR)
        transactions.move(S.ABORTING)
        dropped = TransactionAbortableError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")
        with self._guard:
            self._accumulator.fail_waiting(dropped)
        # Those in flight must be answered first: a batch that is stored after the abort marker would begin a new
        # transaction that nothing ends (KIP-890 prevents it in brokers of transaction.version 2 only).
        for batch in list(self._accumulator.incomplete):
            await batch.wait_done()
        await self._end(self._block_s if timeout_s is None else timeout_s, commit=False)

    async def abort_quietly(self, timeout_s: float | None) -> None:
        """Abort an open transaction when the producer closes; a failure is ignored, since the coordinator aborts it
        after transaction.timeout.ms.
        """
        with suppress(KafkaError):
            await self.abort(min(timeout_s or _CLOSING_S, self._block_s) or 1.0)

    async def _end(self, timeout_s: float, *, commit: bool) -> None:
        transactions, identity = self.transactions, self._identity
        try:
            # The coordinator knows nothing of an empty transaction and would refuse to end it.
            assigned = await self._coordinator.end(timeout_s, commit=commit) if transactions.touched else None
            if assigned is None and identity.bump_needed:
                assigned = await self._coordinator.get_id(timeout_s, keep=True)
        except KafkaError as error:
            if commit and (isinstance(error, ProducerFencedError) or not error.retriable):
                transactions.fail(error)
                if transactions.failed is None:
                    transactions.fatal(error)
            else:  # whether it ended is unknown; only the next init_transactions of the id settles it
                transactions.fatal(error)
            raise
        if assigned is not None:
            identity.assign(*assigned, self._accumulator.queues.values())
        transactions.move(S.READY)
