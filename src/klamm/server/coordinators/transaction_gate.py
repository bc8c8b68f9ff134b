"""Lets transactional batches into a partition only while its transaction is open, and keeps them in order.

Before the first batch of a transaction in a partition, its leader has the coordinator verify that the partition was
added (older clients) or add it (KIP-890, Produce v12 on). No request is needed once the transaction is open in the
log. An answer counts only if the guard that was taken before the request still holds (see `transaction_guards`): if the
transaction has ended meanwhile, the batch is refused instead of opening a transaction that nothing ends.

While the previous transaction is being completed the coordinator answers CONCURRENT_TRANSACTIONS. The request to add a
partition is then repeated, each time under the guard of that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
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

_RETRIED = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE})
"""The previous transaction is being completed, or its end cannot be distinguished from the end of this one.

Retried for a partition that is to be added. One that its client added is refused, as in Kafka: the transaction it was
added to is over, and a retry might let the batch into the next one."""


class UnverifiedBatch(NamedTuple):
    """A batch that may be written only after an answer of the coordinator."""

    replica: Replica
    producer: ProducerIdAndEpoch
    sequence: int

    @property
    def partition(self) -> TopicPartition:
        """The partition it is to be written to."""
        return TopicPartition(self.replica.topic, self.replica.index)

    @property
    def guard_key(self) -> GuardKey:
        """The key of its guard."""
        return GuardKey(self.replica.topic_id, self.replica.index, self.producer.id)


class Abilities(NamedTuple):
    """What the client supports, by the version of its request."""

    adds: bool
    """The broker adds the partition to the transaction, not the client."""
    knows_abortable: bool
    """The client understands TRANSACTION_ABORTABLE."""


class TransactionGate:
    """Admits transactional batches to the partitions that this node leads."""

    def __init__(self, services: "Services", runtime: CoordinatorRuntime[TransactionShard]) -> None:
        self._services = services
        self._runtime = runtime
        self.guards = TransactionGuards()
        self._tails: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers = BrokerPeers(services, "transaction-verification")
        self.verifies = services.config.flag("transaction.partition.verification.enable")
        """Whether batches of older clients are verified; a dynamic config."""
        self._retry_ms = services.config.integer("add.partitions.to.txn.retry.backoff.ms")
        self._retry_max_ms = services.config.integer("add.partitions.to.txn.retry.backoff.max.ms")

    def is_busy(self, producer_id: int) -> bool:
        """Whether an earlier request of the producer waits for the coordinator; later ones have to wait behind it."""
        return producer_id in self._tails

    def must_ask(self, replica: Replica, producer: ProducerIdAndEpoch, abilities: Abilities) -> bool:
        """Whether the producer may write to the partition only after an answer of the coordinator."""
        entry = replica.log.producers.entries.get(producer.id)
        # The transaction is open in the log under this epoch: an earlier batch of it was admitted.
        if entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer.epoch:
            return False
        return self.verifies or abilities.adds

    def spawn(self, producer_id: int, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` as a task, after all earlier work of the same producer."""
        # A chain of futures: each piece of work waits for the one before it, and the last one is the tail. The tail is
        # set here, not when the task starts: requests that are handled before that have to see it.
        previous = self._tails.get(producer_id)
        done = self._tails[producer_id] = self._services.loop.create_future()
        task = self._services.loop.create_task(self.run_in_order(producer_id, previous, done, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run_in_order(
        self,
        producer_id: int,
        previous: asyncio.Future[None] | None,
        done: asyncio.Future[None],
        work: Callable[[], Awaitable[None]],
    ) -> None:
        """Run `work` once `previous` is done; `done` lets the next work of the producer begin."""
        try:
            if previous is not None:
                await previous
            await work()
        finally:
            if self._tails.get(producer_id) is done:
                del self._tails[producer_id]
            done.set_result(None)

    async def admit(
        self, transactional_id: str, batches: list[UnverifiedBatch], abilities: Abilities
    ) -> dict[TopicPartition, KlammError]:
        """Ask the coordinator about batches of one producer; return those that must not be written, with reasons."""
        refused: dict[TopicPartition, KlammError] = {}
        waited_ms, pause_ms = 0, 1
        while True:
            # In every round: a newer producer may have written while this one waited.
            refused |= {batch.partition: _refuse_epoch(batch) for batch in batches if _has_old_epoch(batch)}
            batches = [batch for batch in batches if batch.partition not in refused]
            if not batches:
                return refused
            # Before the request: a marker that is written while it is under way must remove the guard.
            guards = {batch.partition: self._take_guard(batch) for batch in batches}
            codes = await self._ask(transactional_id, batches[0].producer, frozenset(guards), abilities)
            retried: dict[TopicPartition, KlammError] = {}
            for batch in batches:
                refusal = self._check_code(batch, guards[batch.partition], codes.get(batch.partition), abilities)
                if refusal is not None and refusal.code in _RETRIED and abilities.adds:
                    retried[batch.partition] = refusal
                elif refusal is not None:
                    refused[batch.partition] = refusal
            if not retried or waited_ms >= self._retry_max_ms:
                return refused | retried
            # Adding a partition twice changes nothing, so those that were added may be named again.
            batches = [batch for batch in batches if batch.partition in retried]
            # The markers of the last transaction are usually written within a millisecond or two.
            await asyncio.sleep(pause_ms / 1000)
            waited_ms += pause_ms
            # add.partitions.to.txn.retry.backoff.ms is the upper bound here: markers usually take less.
            pause_ms = min(pause_ms * 2, self._retry_ms)

    def _take_guard(self, batch: UnverifiedBatch) -> Guard:
        return self.guards.take(batch.guard_key, batch.producer, batch.sequence, batch.replica.leader_epoch)

    def _check_code(
        self, batch: UnverifiedBatch, guard: Guard, error: ErrorCode | None, abilities: Abilities
    ) -> KlammError | None:
        """Return why a batch must not be written, after the coordinator's answer; None when it may."""
        if error:
            return _translate_error(error, abilities)
        if not self.must_ask(batch.replica, batch.producer, abilities):
            return None  # another request of the producer has opened the transaction in the log meanwhile
        if _has_old_epoch(batch):
            return _refuse_epoch(batch)
        if guard.leader_epoch != batch.replica.leader_epoch:
            # Markers that another leader wrote did not pass by the guard; a code that every producer retries.
            return KlammError(ErrorCode.NOT_ENOUGH_REPLICAS, "the leader changed while the transaction was verified")
        if not self.guards.holds(batch.guard_key, guard):
            return KlammError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an ongoing transaction")
        entry = batch.replica.log.producers.entries.get(batch.producer.id)
        # Nothing of this producer is in the log, so its transaction has to begin with sequence 0.
        unknown = abilities.adds and entry is None and batch.sequence > 0
        if unknown or batch.sequence > guard.lowest_sequence:
            return KlammError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.sequence} of producer {batch.producer.id} arrived before a lower one",
            )
        return None

    async def _ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        abilities: Abilities,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the coordinator's error for every partition that it refuses."""
        try:
            return await self._ask_once(transactional_id, producer, partitions, abilities)
        except KlammError as error:
            return dict.fromkeys(partitions, error.code)

    async def _ask_once(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        abilities: Abilities,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Send one request to the coordinator, on this node or on the broker that leads its partition."""
        shard_index = self._runtime.partition_for(transactional_id)
        image = self._services.image.topics.partition(self._runtime.topic, shard_index)
        leader = image.leader if image is not None else -1
        if leader < 0:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader != self._services.node_id:
            return await self._ask_broker(leader, transactional_id, producer, partitions, abilities)

        def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
            if abilities.adds:
                # Transaction version 2: only its clients leave the adding to the broker.
                return shard.add_partitions(transactional_id, producer, partitions, 2, now, reply_to)
            return shard.verify_partitions(transactional_id, producer, partitions, reply_to)

        codes: Any = await self._runtime.submit_and_wait(shard_index, decide)
        return codes or {}

    async def _ask_broker(
        self,
        broker: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
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
            # A response without results would otherwise count as consent.
            raise KlammError(ErrorCode(response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
        codes = {
            TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.partition_error_code)
            for topic in response.results_by_transaction[0].topic_results
            for partition in topic.results_by_partition
        }
        return {partition: code for partition, code in codes.items() if code}

    def stop(self) -> None:
        """Cancel what waits and close the connections to other brokers."""
        for task in self._tasks:
            task.cancel()
        self._peers.close()

    def on_written(self, replica: Replica, producer_id: int) -> None:
        """Drop the guard: the transaction is open in the log, and later batches need no request."""
        self.guards.release(GuardKey(replica.topic_id, replica.index, producer_id))

    def on_marker(self, replica: Replica, producer: ProducerIdAndEpoch, transaction_version: int) -> None:
        """Drop the guard of the transaction that a marker ends."""
        self.guards.on_marker(
            GuardKey(replica.topic_id, replica.index, producer.id), producer.epoch, transaction_version
        )


def _has_old_epoch(batch: UnverifiedBatch) -> bool:
    """Whether the log has a newer epoch of the producer: the batch is refused without a request."""
    entry = batch.replica.log.producers.entries.get(batch.producer.id)
    return entry is not None and entry.epoch > batch.producer.epoch


def _refuse_epoch(batch: UnverifiedBatch) -> KlammError:
    return KlammError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {batch.producer.epoch} of producer {batch.producer.id} is older than the last one in {batch.partition}",
    )


def _translate_error(error: ErrorCode, abilities: Abilities) -> KlammError:
    """Return the error that producers expect from Produce for one of the coordinator."""
    # As Kafka's leaders answer: in a Produce response clients expect INVALID_PRODUCER_EPOCH.
    if error == ErrorCode.PRODUCER_FENCED:
        return KlammError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer producer has the transactional id")
    if error == ErrorCode.TRANSACTION_ABORTABLE and not abilities.knows_abortable:
        error = ErrorCode.INVALID_TXN_STATE
    if error == ErrorCode.INVALID_TXN_STATE:
        return KlammError(error, "the partition was not added to the transaction")
    if error in _UNVERIFIED or (error == ErrorCode.CONCURRENT_TRANSACTIONS and not abilities.adds):
        # A code that every producer retries without refreshing its metadata.
        return KlammError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction could not be verified: {error.name}")
    return KlammError(error)
