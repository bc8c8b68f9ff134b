"""Writes what decided transactions owe: markers to every partition's leader, again and again until all are written."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.transactions import Fate, MarkerLedger, OwedMarkers, TransactionShard
from klamm.coordinator.transactions.rules import Producer
from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from klamm.records.control import build_end_txn_marker
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.server.coordinators.replica_log import CommitCallback
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("transactions")

RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 2.0
WRITE_TIMEOUT_MS = 30_000
MARKERS_PER_REQUEST_MAX = 1000
VERSION = 2
GROUP_METADATA_TOPIC = "__consumer_offsets"
NO_LEADER = -1

_NOT_READY = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""What a group coordinator says before it is ready; whoever sends a marker knows this as a leader that is not."""

Settled = Callable[[ErrorCode], None]


def write_marker(services: "Services", partition: TopicPartition, markers: OwedMarkers, settled: Settled) -> None:
    """Append a marker to a partition led here; `settled` hears once it is committed, or why it is not."""
    replica = services.replicas.find(*partition)
    if replica is None:
        known = services.image.topics.partition(*partition) is not None
        settled(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return
    producer = Producer(markers.producer_id, markers.producer_epoch)
    services.coordinators.transactions.gate.on_marker(replica, producer, markers.transaction_version)
    if partition.topic == GROUP_METADATA_TOPIC:
        _write_to_group(services, partition, markers, settled)
        return
    if not replica.leads:
        settled(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    if replica.state.under_min_isr:
        settled(ErrorCode.NOT_ENOUGH_REPLICAS)
        return
    marker = build_end_txn_marker(
        committed=markers.committed,
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        coordinator_epoch=markers.coordinator_epoch,
        timestamp=services.clock.now_ms(),
    )
    try:
        services.replicas.stage_own(replica, memoryview(marker), markers.transaction_version)
    except KlammError as error:
        settled(error.code)
        return
    deadline_ms = services.replicas.now_ms() + WRITE_TIMEOUT_MS
    reply = CommitCallback(replica.log.next_offset, settled, deadline_ms)
    services.replicas.acknowledge(replica, reply, acks_all=True)


def _write_to_group(services: "Services", partition: TopicPartition, markers: OwedMarkers, settled: Settled) -> None:
    """Offsets committed in the transaction count, or not, from the marker on: the group's shard writes it itself."""

    def told(answer: Any) -> None:
        if not isinstance(answer, KlammError):
            settled(ErrorCode.NONE)
        elif answer.code in _NOT_READY:
            settled(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            settled(answer.code)

    services.coordinators.groups.end_transaction(
        partition.partition,
        markers.producer_id,
        markers.producer_epoch,
        committed=markers.committed,
        coordinator_epoch=markers.coordinator_epoch,
        reply_to=told,
        transaction_version=markers.transaction_version,
    )


class MarkerWriter:
    """Pays the debts of this node's transaction shards."""

    def __init__(self, services: "Services", runtime: CoordinatorRuntime[TransactionShard]) -> None:
        self._services = services
        self._runtime = runtime
        self._ledgers: dict[int, MarkerLedger] = {}
        self._failures: dict[TopicPartition, int] = {}
        """How often in a row a partition could not take a marker; the pause grows with it."""
        self._peers = BrokerPeers(services, "transaction-markers")
        self._outgoing: dict[int, list[tuple[int, OwedMarkers]]] = {}
        """What waits to be sent to other brokers; one request to each is under way at a time."""
        self._senders: dict[int, asyncio.Task[None]] = {}

    def stop(self) -> None:
        """Pay nothing more; whoever coordinates next does."""
        for sender in self._senders.values():
            sender.cancel()
        self._peers.close()

    def receive(self, partition: int, owed: Any) -> None:
        """A decision is committed: its markers are owed from now on.

        A KlammError means that nobody knows yet whether it is; the shard names every debt again sooner or later.
        """
        if not isinstance(owed, OwedMarkers):
            return
        ledger = self._ledgers.setdefault(partition, MarkerLedger())
        if not ledger.knows(owed):
            ledger.owe(owed)
            # Not at once: this may be called while a turn is being written.
            self._services.loop.call_soon(self._send, partition, owed)

    def _send(self, partition: int, owed: OwedMarkers) -> None:
        """Write what of `owed` is still open; the rest of the same debt may be under way."""
        ledger = self._ledgers[partition]
        if not ledger.knows(owed):
            return
        current = ledger.owed(owed.transactional_id) or owed
        for leader, share in ledger.by_leader(owed.only(owed.partitions & current.partitions), self._leader_of).items():
            if leader == self._services.node_id:
                for name in sorted(share.partitions):
                    self._write_here(partition, share.only((name,)), name)
            elif leader == NO_LEADER:
                self._later(partition, share)
            else:
                self._send_to(leader, partition, share)
        self._complete_if_paid(partition, owed)

    def _leader_of(self, partition: TopicPartition) -> int | None:
        found = self._services.image.topics.partition(*partition)
        return None if found is None else found.leader

    # Elsewhere

    def _send_to(self, broker: int, partition: int, owed: OwedMarkers) -> None:
        self._outgoing.setdefault(broker, []).append((partition, owed))
        if broker not in self._senders:
            self._senders[broker] = self._services.loop.create_task(self._deliver(broker), name=f"markers {broker}")

    async def _deliver(self, broker: int) -> None:
        """Send what has gathered for a broker, as long as there is something."""
        try:
            while self._outgoing.get(broker):
                waiting = self._outgoing[broker]
                shares, self._outgoing[broker] = waiting[:MARKERS_PER_REQUEST_MAX], waiting[MARKERS_PER_REQUEST_MAX:]
                request = WriteTxnMarkersRequest(markers=[_marker(owed) for _, owed in shares])
                results: list[WritableTxnMarkerResult] = []
                failure = ErrorCode.NONE
                try:
                    response: WriteTxnMarkersResponse = await self._peers.ask(broker, request, VERSION)
                    results = response.markers
                except KlammError as error:
                    failure = error.code
                except ProtocolError as error:
                    log.failure("a broker's answer to markers makes no sense", error, broker=broker)
                    failure = ErrorCode.UNKNOWN_SERVER_ERROR
                for at, (partition, owed) in enumerate(shares):
                    codes = _codes(results[at]) if at < len(results) else {}
                    for name in sorted(owed.partitions):
                        code = failure or codes.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)
                        self._settled(partition, owed.only((name,)), name, code)
        finally:
            del self._senders[broker]
            self._outgoing.pop(broker, None)

    # Here

    def _write_here(self, partition: int, owed: OwedMarkers, name: TopicPartition) -> None:
        write_marker(self._services, name, owed, lambda error: self._settled(partition, owed, name, error))

    def _settled(self, partition: int, owed: OwedMarkers, name: TopicPartition, error: ErrorCode) -> None:
        fate = self._ledgers[partition].settle(owed, name, error)
        if fate is Fate.RETRY:
            if name not in self._failures:
                log.warning("a partition cannot take markers; they wait", partition=str(name), reason=error.name)
            self._failures[name] = self._failures.get(name, 0) + 1
            self._later(partition, owed)
            return
        if self._failures.pop(name, 0):
            log.info("a partition takes markers again", partition=str(name))
        if error and fate is Fate.WRITTEN:
            log.warning(
                "a partition needs no marker any more",
                partition=str(name), transactional_id=owed.transactional_id, reason=error.name,
            )  # fmt: skip
        self._complete_if_paid(partition, owed)

    def _later(self, partition: int, owed: OwedMarkers) -> None:
        if partition in self._runtime.active:
            failures = max((self._failures.get(name, 0) for name in owed.partitions), default=0)
            pause = min(RETRY_SECONDS * 2 ** min(failures, 10), RETRY_SECONDS_MAX)
            self._services.loop.call_later(pause, self._send, partition, owed)
        else:
            self._ledgers[partition].forget(owed)

    def _complete_if_paid(self, partition: int, owed: OwedMarkers) -> None:
        ledger = self._ledgers[partition]
        if ledger.paid(owed):
            ledger.forget(owed)
            # Not at once: this may be called while a turn is being written.
            self._services.loop.call_soon(self._complete, partition, owed)

    def _complete(self, partition: int, owed: OwedMarkers) -> None:
        self._runtime.submit(partition, lambda shard, now, reply_to: shard.complete(owed, now, reply_to), _nobody)


def _marker(owed: OwedMarkers) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for name in sorted(owed.partitions):
        topic = topics.setdefault(name.topic, WritableTxnMarkerTopic(name=name.topic, partition_indexes=[]))
        topic.partition_indexes.append(name.partition)
    return WritableTxnMarker(
        producer_id=owed.producer_id,
        producer_epoch=owed.producer_epoch,
        transaction_result=owed.committed,
        topics=list(topics.values()),
        coordinator_epoch=owed.coordinator_epoch,
        transaction_version=owed.transaction_version,
    )


def _codes(result: WritableTxnMarkerResult) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in result.topics
        for each in topic.partitions
    }


def _nobody(answer: Any) -> None:
    if isinstance(answer, KlammError):
        log.debug("a transaction could not be noted as complete", reason=answer)
