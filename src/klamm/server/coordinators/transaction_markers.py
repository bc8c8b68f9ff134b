"""Writes the markers of ended transactions to every partition's leader, with retries until all are written."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.coordinator import CoordinatorRuntime
from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import MarkerOutcome, MarkerTracker, PendingMarkers, TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
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
"""Errors of a group coordinator that is not ready; a sender of markers expects NOT_LEADER_OR_FOLLOWER instead."""

MarkerCallback = Callable[[ErrorCode], None]


def write_marker(
    services: "Services", partition: TopicPartition, markers: PendingMarkers, callback: MarkerCallback
) -> None:
    """Append a marker to a partition led here; `callback` gets NONE once it is committed, else the error."""
    replica = services.replicas.find(*partition)
    if replica is None:
        known = services.image.topics.partition(*partition) is not None
        callback(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return
    producer = ProducerIdAndEpoch(markers.producer_id, markers.producer_epoch)
    # Before the append: a batch verified for this transaction must not be written after its marker.
    services.coordinators.transactions.gate.on_marker(replica, producer, markers.transaction_version)
    if partition.topic == GROUP_METADATA_TOPIC:
        _write_to_group(services, partition, markers, callback)
        return
    if not replica.leads:
        callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    # As for acks=all: refused before the append, and the coordinator retries.
    if replica.state.under_min_isr:
        callback(ErrorCode.NOT_ENOUGH_REPLICAS)
        return
    marker = build_end_txn_marker(
        committed=markers.committed,
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        coordinator_epoch=markers.coordinator_epoch,
        timestamp=services.clock.now_ms(),
    )
    try:
        services.replicas.stage_from_coordinator(replica, memoryview(marker), markers.transaction_version)
    except KlammError as error:
        callback(error.code)
        return
    # Bounded: a follower that hangs is reported as an error, and the coordinator sends the marker again.
    deadline_ms = services.replicas.now_ms() + WRITE_TIMEOUT_MS
    reply = CommitCallback(replica.log.next_offset, callback, deadline_ms)
    services.replicas.acknowledge(replica, reply, acks_all=True)


def _write_to_group(
    services: "Services", partition: TopicPartition, markers: PendingMarkers, callback: MarkerCallback
) -> None:
    """Let the group's shard write the marker: it decides whether offsets of the transaction become visible."""

    def reply(response: Any) -> None:
        if not isinstance(response, KlammError):
            callback(ErrorCode.NONE)
        elif response.code in _NOT_READY:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            callback(response.code)

    services.coordinators.groups.end_transaction(
        partition.partition,
        markers.producer_id,
        markers.producer_epoch,
        committed=markers.committed,
        coordinator_epoch=markers.coordinator_epoch,
        reply_to=reply,
        transaction_version=markers.transaction_version,
    )


class MarkerWriter:
    """Writes the markers of this node's transaction coordinator."""

    def __init__(self, services: "Services", runtime: CoordinatorRuntime[TransactionShard]) -> None:
        self._services = services
        self._runtime = runtime
        self._trackers: dict[int, MarkerTracker] = {}
        self._failures: dict[TopicPartition, int] = {}
        """Consecutive failures to write a marker to a partition; the backoff grows with them."""
        self._peers = BrokerPeers(services, "transaction-markers")
        self._outgoing: dict[int, list[tuple[int, PendingMarkers]]] = {}
        """Markers that wait to be sent to other brokers; one request to each broker is under way at a time."""
        self._senders: dict[int, asyncio.Task[None]] = {}

    def stop(self) -> None:
        """Stop writing markers; the next coordinator continues."""
        for sender in self._senders.values():
            sender.cancel()
        self._peers.close()

    def receive(self, partition: int, pending: Any) -> None:
        """Start writing the markers of a committed decision.

        A KlammError means that it is unknown whether the decision is committed; the shard hands markers over again.
        """
        if not isinstance(pending, PendingMarkers):
            return
        tracker = self._trackers.setdefault(partition, MarkerTracker())
        if not tracker.tracks(pending):
            tracker.add(pending)
            # Deferred: this may be called while the appends of a turn are being written.
            self._services.loop.call_soon(self._send, partition, pending)

    def _send(self, partition: int, pending: PendingMarkers) -> None:
        """Send markers that are still pending; others of the same transaction may be under way."""
        tracker = self._trackers[partition]
        if not tracker.tracks(pending):
            return
        current = tracker.find(pending.transactional_id) or pending
        for leader, share in tracker.by_leader(
            pending.for_partitions(pending.partitions & current.partitions), self._find_leader
        ).items():
            if leader == self._services.node_id:
                for name in sorted(share.partitions):
                    self._write_locally(partition, share.for_partitions((name,)), name)
            elif leader == NO_LEADER:
                self._retry_later(partition, share)
            else:
                self._send_to(leader, partition, share)
        self._complete_if_written(partition, pending)

    def _find_leader(self, partition: TopicPartition) -> int | None:
        state = self._services.image.topics.partition(*partition)
        return None if state is None else state.leader

    # On other brokers

    def _send_to(self, broker: int, partition: int, pending: PendingMarkers) -> None:
        self._outgoing.setdefault(broker, []).append((partition, pending))
        # One request per broker at a time: markers that arrive meanwhile share the next one.
        if broker not in self._senders:
            self._senders[broker] = self._services.loop.create_task(self._deliver(broker), name=f"markers {broker}")

    async def _deliver(self, broker: int) -> None:
        """Send the queued markers of a broker until none are left."""
        try:
            while self._outgoing.get(broker):
                waiting = self._outgoing[broker]
                shares, self._outgoing[broker] = waiting[:MARKERS_PER_REQUEST_MAX], waiting[MARKERS_PER_REQUEST_MAX:]
                request = WriteTxnMarkersRequest(markers=[_build_marker(pending) for _, pending in shares])
                results: list[WritableTxnMarkerResult] = []
                failure = ErrorCode.NONE
                try:
                    response: WriteTxnMarkersResponse = await self._peers.ask(broker, request, VERSION)
                    results = response.markers
                except KlammError as error:
                    failure = error.code
                except ProtocolError as error:
                    log.failure("invalid WriteTxnMarkers response", error, broker=broker)
                    failure = ErrorCode.UNKNOWN_SERVER_ERROR
                for at, (partition, pending) in enumerate(shares):
                    codes = _collect_codes(results[at]) if at < len(results) else {}
                    for name in sorted(pending.partitions):
                        # A partition that the response leaves out is retried like one with an error.
                        code = failure or codes.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)
                        self._record_response(partition, pending.for_partitions((name,)), name, code)
        finally:
            del self._senders[broker]
            self._outgoing.pop(broker, None)

    # On this broker

    def _write_locally(self, partition: int, pending: PendingMarkers, name: TopicPartition) -> None:
        write_marker(self._services, name, pending, partial(self._record_response, partition, pending, name))

    def _record_response(self, partition: int, pending: PendingMarkers, name: TopicPartition, error: ErrorCode) -> None:
        outcome = self._trackers[partition].record_response(pending, name, error)
        if outcome is MarkerOutcome.RETRY:
            # Once per outage, not per attempt.
            if name not in self._failures:
                log.warning("transaction markers not written: retrying", partition=str(name), reason=error.name)
            self._failures[name] = self._failures.get(name, 0) + 1
            self._retry_later(partition, pending)
            return
        if self._failures.pop(name, 0):
            log.info("transaction markers written again", partition=str(name))
        if error and outcome is MarkerOutcome.WRITTEN:
            log.warning(
                "transaction marker no longer needed",
                partition=str(name), transactional_id=pending.transactional_id, reason=error.name,
            )  # fmt: skip
        self._complete_if_written(partition, pending)

    def _retry_later(self, partition: int, pending: PendingMarkers) -> None:
        if partition in self._runtime.active:
            failures = max((self._failures.get(name, 0) for name in pending.partitions), default=0)
            # The exponent is capped: failures may go on for days.
            pause = min(RETRY_SECONDS * 2 ** min(failures, 10), RETRY_SECONDS_MAX)
            self._services.loop.call_later(pause, self._send, partition, pending)
        else:
            # Another node coordinates the id by now, and writes the markers that are missing.
            self._trackers[partition].discard(pending)

    def _complete_if_written(self, partition: int, pending: PendingMarkers) -> None:
        tracker = self._trackers[partition]
        if tracker.all_written(pending):
            tracker.discard(pending)
            # Deferred: this may be called while the appends of a turn are being written.
            self._services.loop.call_soon(self._complete, partition, pending)

    def _complete(self, partition: int, pending: PendingMarkers) -> None:
        def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
            return shard.complete(pending, now, reply_to)

        self._runtime.submit(partition, decide, _log_failure)


def _build_marker(pending: PendingMarkers) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for name in sorted(pending.partitions):
        topic = topics.setdefault(name.topic, WritableTxnMarkerTopic(name=name.topic, partition_indexes=[]))
        topic.partition_indexes.append(name.partition)
    return WritableTxnMarker(
        producer_id=pending.producer_id,
        producer_epoch=pending.producer_epoch,
        transaction_result=pending.committed,
        topics=list(topics.values()),
        coordinator_epoch=pending.coordinator_epoch,
        transaction_version=pending.transaction_version,
    )


def _collect_codes(result: WritableTxnMarkerResult) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in result.topics
        for partition in topic.partitions
    }


def _log_failure(response: Any) -> None:
    if isinstance(response, KlammError):
        # The shard hands the markers over again, so nothing is lost.
        log.debug("transaction completion not stored", reason=response)
