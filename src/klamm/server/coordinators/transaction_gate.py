"""Lets transactional batches into a partition only while its transaction is open, and keeps them in order.

The first batch of a transaction in a partition asks the coordinator: has this partition been added (older clients), or
please add it (KIP-890, Produce v12 on). Once the transaction is open in the log no question is needed. An answer counts
only if the guard it was asked under still stands (see `transaction_guards`): where the transaction has ended meanwhile,
the batch is refused instead of opening a transaction that nothing will ever end.

While the transaction before is being completed the coordinator says CONCURRENT_TRANSACTIONS, and a partition that is to
be added is asked about again, each time under the guard of that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import Producer
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from klamm.replication import Replica
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.server.coordinators.transaction_guards import Guard, GuardKey, TransactionGuards

if TYPE_CHECKING:
    from klamm.server.services import Services

VERSION = 5

_UNVERIFIED = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

_ASK_AGAIN = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE})
"""The transaction before is being completed, or its end could not be told from the end of this one.

For a partition that is to be added; one that was added by its client is refused, as Kafka does: the transaction it was
added to is over, and asking again might let the batch into the next one."""


class UnverifiedBatch(NamedTuple):
    """A batch whose transaction the coordinator has to confirm."""

    replica: Replica
    producer: Producer
    sequence: int

    @property
    def partition(self) -> TopicPartition:
        """Where it goes."""
        return TopicPartition(self.replica.topic, self.replica.index)

    @property
    def guard_key(self) -> GuardKey:
        """Under which its guard is kept."""
        return GuardKey(self.replica.topic_id, self.replica.index, self.producer.id)


class Abilities(NamedTuple):
    """What the version of a request says of its client."""

    adds: bool
    """The broker adds the partition to the transaction by itself."""
    knows_abortable: bool
    """The client understands TRANSACTION_ABORTABLE."""


class TransactionGate:
    """The way into all partitions led here."""

    def __init__(self, services: "Services", runtime: CoordinatorRuntime[TransactionShard]) -> None:
        self._services = services
        self._runtime = runtime
        self.guards = TransactionGuards()
        self._tails: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers = BrokerPeers(services, "transaction-verification")
        self.verifies = services.config.flag("transaction.partition.verification.enable")
        """Whether batches of older clients are checked; may change at work."""
        self._retry_ms = services.config.integer("add.partitions.to.txn.retry.backoff.ms")
        self._retry_max_ms = services.config.integer("add.partitions.to.txn.retry.backoff.max.ms")

    def is_busy(self, producer_id: int) -> bool:
        """Whether an earlier request of the producer still waits; the next one has to wait behind it."""
        return producer_id in self._tails

    def must_ask(self, replica: Replica, producer: Producer, abilities: Abilities) -> bool:
        """Whether the coordinator must be asked before the producer may write to the partition."""
        entry = replica.log.producers.entries.get(producer.id)
        if entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer.epoch:
            return False
        return self.verifies or abilities.adds

    def spawn(self, producer_id: int, work: Callable[[], Awaitable[None]]) -> None:
        """Begin `in_turn` now and let it go on by itself."""
        task = self._services.loop.create_task(self.in_turn(producer_id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def in_turn(self, producer_id: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` after everything that the same producer began to ask before."""
        before = self._tails.get(producer_id)
        done = self._tails[producer_id] = self._services.loop.create_future()
        try:
            if before is not None:
                await before
            await work()
        finally:
            if self._tails.get(producer_id) is done:
                del self._tails[producer_id]
            done.set_result(None)

    async def admit(
        self, transactional_id: str, batches: list[UnverifiedBatch], abilities: Abilities
    ) -> dict[TopicPartition, KlammError]:
        """Ask about batches of one producer; returns those that must not be written, with the reason."""
        refused: dict[TopicPartition, KlammError] = {}
        waited_ms, pause_ms = 0, 1
        while True:
            refused |= {batch.partition: _outdated(batch) for batch in batches if _is_outdated(batch)}
            batches = [batch for batch in batches if batch.partition not in refused]
            if not batches:
                return refused
            guards = {batch.partition: self._take_guard(batch) for batch in batches}
            answers = await self._ask(transactional_id, batches[0].producer, frozenset(guards), abilities)
            unsettled: dict[TopicPartition, KlammError] = {}
            for batch in batches:
                refusal = self._judge(batch, guards[batch.partition], answers.get(batch.partition), abilities)
                if refusal is not None and refusal.code in _ASK_AGAIN and abilities.adds:
                    unsettled[batch.partition] = refusal
                elif refusal is not None:
                    refused[batch.partition] = refusal
            if not unsettled or waited_ms >= self._retry_max_ms:
                return refused | unsettled
            # Adding a partition twice changes nothing, so those that were added may be named again.
            batches = [batch for batch in batches if batch.partition in unsettled]
            # The markers of the last transaction are usually written within a millisecond or two.
            await asyncio.sleep(pause_ms / 1000)
            waited_ms += pause_ms
            pause_ms = min(pause_ms * 2, self._retry_ms)

    def _take_guard(self, batch: UnverifiedBatch) -> Guard:
        return self.guards.take(batch.guard_key, batch.producer, batch.sequence, batch.replica.leader_epoch)

    def _judge(
        self, batch: UnverifiedBatch, guard: Guard, error: ErrorCode | None, abilities: Abilities
    ) -> KlammError | None:
        """Why a batch must not be written, after the coordinator's answer; None when it may."""
        if error:
            return _producer_error(error, abilities)
        if not self.must_ask(batch.replica, batch.producer, abilities):
            return None  # another request of the producer has opened the transaction meanwhile
        if _is_outdated(batch):
            return _outdated(batch)
        if guard.leader_epoch != batch.replica.leader_epoch:
            # Markers that another leader wrote did not pass by the guard; a code that every producer retries.
            return KlammError(ErrorCode.NOT_ENOUGH_REPLICAS, "the leader changed while the transaction was verified")
        if not self.guards.holds(batch.guard_key, guard):
            return KlammError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an ongoing transaction")
        entry = batch.replica.log.producers.entries.get(batch.producer.id)
        unknown = abilities.adds and entry is None and batch.sequence > 0
        if unknown or batch.sequence > guard.lowest_sequence:
            return KlammError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.sequence} of producer {batch.producer.id} came before its first",
            )
        return None

    async def _ask(
        self, transactional_id: str, producer: Producer, partitions: frozenset[TopicPartition], abilities: Abilities
    ) -> Mapping[TopicPartition, ErrorCode]:
        """The coordinator's answer for every partition that is not in order."""
        try:
            return await self._ask_once(transactional_id, producer, partitions, abilities)
        except KlammError as error:
            return dict.fromkeys(partitions, error.code)

    async def _ask_once(
        self, transactional_id: str, producer: Producer, partitions: frozenset[TopicPartition], abilities: Abilities
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Ask the coordinator once, here or on the broker that leads its partition."""
        shard_index = self._runtime.partition_for(transactional_id)
        image = self._services.image.topics.partition(self._runtime.topic, shard_index)
        leader = image.leader if image is not None else -1
        if leader < 0:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader != self._services.node_id:
            return await self._ask_elsewhere(leader, transactional_id, producer, partitions, abilities)

        def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
            if abilities.adds:
                return shard.add_partitions(transactional_id, producer, partitions, 2, now, reply_to)
            return shard.verify_partitions(transactional_id, producer, partitions, reply_to)

        answer: Any = await self._runtime.ask(shard_index, decide)
        return answer or {}

    async def _ask_elsewhere(
        self,
        broker: int,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        abilities: Abilities,
    ) -> Mapping[TopicPartition, ErrorCode]:
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name in sorted(partitions):
            topic = topics.setdefault(name.topic, AddPartitionsToTxnTopic(name=name.topic, partitions=[]))
            topic.partitions.append(name.partition)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=not abilities.adds,
            topics=list(topics.values()),
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        response: AddPartitionsToTxnResponse = await self._peers.ask(broker, request, VERSION)
        if response.error_code or not response.results_by_transaction:
            raise KlammError(ErrorCode(response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
        codes = {
            TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
            for topic in response.results_by_transaction[0].topic_results
            for result in topic.results_by_partition
        }
        return {name: code for name, code in codes.items() if code}

    def stop(self) -> None:
        """Cancel running requests and close connections."""
        for task in self._tasks:
            task.cancel()
        self._peers.close()

    def on_written(self, replica: Replica, producer_id: int) -> None:
        """The transaction is open in the log: no question is needed any more."""
        self.guards.release(GuardKey(replica.topic_id, replica.index, producer_id))

    def on_marker(self, replica: Replica, producer: Producer, transaction_version: int) -> None:
        """A transaction ends here, under the epoch of its marker."""
        self.guards.on_marker(
            GuardKey(replica.topic_id, replica.index, producer.id), producer.epoch, transaction_version
        )


def _is_outdated(batch: UnverifiedBatch) -> bool:
    """Return whether the log has a newer epoch of the producer, so that no request to the coordinator is needed."""
    entry = batch.replica.log.producers.entries.get(batch.producer.id)
    return entry is not None and entry.epoch > batch.producer.epoch


def _outdated(batch: UnverifiedBatch) -> KlammError:
    return KlammError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {batch.producer.epoch} of producer {batch.producer.id} is over in {batch.partition}",
    )


def _producer_error(error: ErrorCode, abilities: Abilities) -> KlammError:
    """Translate an error of the coordinator into one that producers know from Produce."""
    if error == ErrorCode.PRODUCER_FENCED:
        return KlammError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer producer has the transactional id")
    if error == ErrorCode.TRANSACTION_ABORTABLE and not abilities.knows_abortable:
        error = ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.INVALID_TXN_STATE:
        return KlammError(error, "the partition was not added to the transaction")
    if error in _UNVERIFIED or (error == ErrorCode.CONCURRENT_TRANSACTIONS and not abilities.adds):
        # A code that every producer retries, and that makes none of them look for another leader.
        return KlammError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction could not be verified: {error.name}")
    return KlammError(error)
