"""Sends batches to the leaders of their partitions and handles the responses.

One callback on the loop (`_send_due`) sends what is ready, up to the limit of requests in flight; every response calls
it again. There is no task per batch or request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from klamm.client.backoff import Backoff
from klamm.client.client_settings import ClientSettings
from klamm.client.cluster import ClusterClient
from klamm.client.connection import Connection
from klamm.client.core.routing import DATA
from klamm.client.errors import (
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    SerializationError,
    TransactionAbortableError,
    error_for,
)
from klamm.client.loop_timer import LoopTimer
from klamm.client.metrics import SentRecords
from klamm.client.producer.batch import Batch
from klamm.client.producer.core.accumulator import Accumulator, PartitionQueue
from klamm.client.producer.core.identity import ProducerIdentity
from klamm.client.producer.core.transactions import Transactions
from klamm.client.producer.session import Session
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import encode_into
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.compression import CODEC_NAMES

_PRODUCE = BY_NAME["Produce"]
_IMPLICIT_SINCE = 12  # KIP-890: from this version on the broker adds partitions to the transaction itself
_TOPIC_IDS_SINCE = 13  # KIP-516
_RECORD_ERRORS_SHOWN = 3
_BACKOFF_STEPS_MAX = 10
"""Attempts that still lengthen the backoff; it has reached retry.backoff.max.ms by then."""
_EXPIRY_S_MIN = 0.01
"""The shortest wait for a batch that is about to expire, so that the timer does not spin."""
_SEQUENCE_LOST = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


class Sender:
    """Owns the requests in flight. `session` provides what must exist before a batch is sent: a producer id, and
    partitions added to the transaction.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        identity: ProducerIdentity | None,
        transactions: Transactions | None,
        guard: AbstractContextManager[Any],
        session: Session | None,
        released: Callable[[], None],
    ) -> None:
        self.settings: ClientSettings = cluster.settings
        self._cluster = cluster
        self._accumulator = accumulator
        self._identity = identity
        self._transactions = transactions
        self._guard = guard
        self._session = session
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._timer = LoopTimer(self._send_due)
        self.wake = self._timer.soon
        """Send what is due at the end of this loop turn; only on the loop's thread."""
        self.wake_at = self._timer.at
        """The same at a time of the loop's clock, or earlier."""
        self.sent = SentRecords()
        self._in_flight: dict[int, int] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        settings = self.settings
        self._acks: int = settings["acks"]
        self._max_in_flight = settings.number("max.in.flight.requests.per.connection")
        self._request_size = settings.number("max.request.size")
        self._timeout_ms = settings.number("request.timeout.ms")
        self._delivery_s = settings.seconds("delivery.timeout.ms")
        self._retries = settings.number("retries")
        self._codec = int(CODEC_NAMES[settings["compression.type"]])
        self._level = self._codec_level()
        self._backoff = (settings.seconds("retry.backoff.ms"), settings.seconds("retry.backoff.max.ms"))
        cluster.listeners.append(self.wake)
        if session is not None:
            session.wake = self.wake

    def _codec_level(self) -> int | None:
        name = f"compression.{self.settings['compression.type']}.level"
        return int(self.settings[name]) if name in self.settings.given else None

    @property
    def in_flight(self) -> int:
        """Requests without a response, over all brokers."""
        return sum(self._in_flight.values())

    def push(self, where: TopicPartition) -> None:
        """Send a batch that was just completed, if its broker has fewer than the maximum of requests in flight.

        Otherwise the next response sends it. Only on the loop's thread.
        """
        if not self._timer.stopped and self._in_flight.get(self._cluster.table.leader(where), 0) < self._max_in_flight:
            self._send_due()

    async def stop(self) -> None:
        """End; requests in flight are left to the connections."""
        self._timer.stop()
        for task in list(self._connecting.values()):
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)

    # Sending

    def _send_due(self) -> None:
        now = self._loop.time()
        accumulator = self._accumulator
        # The guard is a lock only in the blocking producer, whose callers append from their own threads.
        with self._guard:
            accumulator.tick(now)
            ready = list(accumulator.ready)
            late = accumulator.list_expired(now - self._delivery_s)
        if late:
            self._expire(late)
        if ready and self._may_send():
            self._send_ready(ready, now)
        with self._guard:
            due = accumulator.next_due()
            oldest = next(iter(accumulator.incomplete), None)
        if due is not None:
            self.wake_at(max(due, now))
        # `incomplete` is in order of creation, so the first one expires first.
        if oldest is not None:
            self.wake_at(max(oldest.created + self._delivery_s, now + _EXPIRY_S_MIN))

    def _may_send(self) -> bool:
        identity, transactions = self._identity, self._transactions
        if transactions is not None and (transactions.failed is not None or transactions.ending):
            self._drop(transactions)
            return False
        if identity is None:
            return True
        if identity.bump_needed and transactions is None and identity.known:
            # Not before all responses arrived: a batch of the old epoch that is stored now keeps its old sequence.
            if self.in_flight:
                return False
            identity.bump(list(self._accumulator.queues.values()))
        if not identity.known:
            self._prepare()
            return False
        return True

    def _prepare(self) -> None:
        assert self._session is not None
        self._session.prepare()

    def _drop(self, transactions: Transactions) -> None:
        """Fail all batches that are not in flight: the transaction will not be committed."""
        reason = transactions.failed or TransactionAbortableError(
            ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"
        )
        with self._guard:
            if self._identity is not None and any(queue.retries for queue in self._accumulator.queues.values()):
                # A broker may have stored a batch that waits for a retry: the next one needs a new epoch.
                self._identity.bump_needed = True
            self._accumulator.fail_waiting(reason)
        self._released()

    def _send_ready(self, ready: list[PartitionQueue], now: float) -> None:
        by_leader: dict[int, list[PartitionQueue]] = {}
        unknown = False
        for queue in ready:
            if queue.backoff_until > now:
                self.wake_at(queue.backoff_until)
                continue
            if self._transactions is not None and not self._transactions.may_write(queue.where):
                continue
            leader = self._cluster.table.leader(queue.where)
            if leader < 0:
                unknown = True
            else:
                by_leader.setdefault(leader, []).append(queue)
        # Batches without a leader stay ready; metadata that arrives wakes the sender as a listener.
        if unknown:
            self._cluster.request_update()
            self.wake_at(now + self._backoff[0])
        if self._transactions is not None and self._transactions.partitions_to_add:
            self._prepare()
        for leader, queues in by_leader.items():
            connection = self._cluster.ready(leader, DATA)
            if connection is None:
                self._connect(leader)
            elif connection.throttled_until > now:
                self.wake_at(connection.throttled_until)
            else:
                self._send_to(connection, leader, queues)

    def _connect(self, leader: int) -> None:
        if leader in self._connecting:
            return

        async def connect() -> None:
            try:
                await self._cluster.connection(leader, DATA)
            except KafkaError:
                self._cluster.request_update()
                await asyncio.sleep(self._backoff[0])
            finally:
                self._connecting.pop(leader, None)
                self.wake()

        self._connecting[leader] = asyncio.create_task(connect(), name=f"klamm producer connect {leader}")

    def _send_to(self, connection: Connection, leader: int, queues: list[PartitionQueue]) -> None:
        """Send requests with one batch per partition, up to max.in.flight.requests.per.connection."""
        while queues and self._in_flight.get(leader, 0) < self._max_in_flight:
            taken: list[tuple[PartitionQueue, Batch]] = []
            size = 0
            with self._guard:
                for queue in list(queues):
                    # Retries go one at a time: the broker refuses a sequence whose predecessor it does not have.
                    if self._identity is not None and queue.retries and queue.in_flight:
                        queues.remove(queue)
                        continue
                    wanted = self._accumulator.next_size(queue)
                    if taken and size + wanted > self._request_size:
                        break
                    batch = self._accumulator.take(queue)
                    if batch is None or queue not in self._accumulator.ready:
                        queues.remove(queue)
                    if batch is not None:
                        taken.append((queue, batch))
                        size += wanted
            if not taken:
                return
            self._request(connection, leader, taken)

    def _request(self, connection: Connection, leader: int, taken: list[tuple[PartitionQueue, Batch]]) -> None:
        transactions = self._transactions
        topics: dict[str, TopicProduceData] = {}
        version = self._version(connection, taken)
        taken = [batch for batch in taken if self._seal(*batch)]
        if not taken:
            return
        for _, batch in taken:
            batch.attempts += 1
            batch.sent = True
            batch.sent_sequence = batch.base_sequence
            name = batch.where.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(
                    name=name, topic_id=self._cluster.table.topic_id(name), partition_data=[]
                )
            assert batch.data is not None
            topic.partition_data.append(
                PartitionProduceData(index=batch.where.partition, records=memoryview(batch.data))
            )
        request = ProduceRequest(
            transactional_id=transactions.transactional_id if transactions is not None else None,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            topic_data=list(topics.values()),
        )
        pieces: list[Any] = []
        encode_into(request, version, pieces)
        response = connection.send(_PRODUCE, version, pieces, answered=self._acks != 0)
        self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
        # Back to the pool, which waits until the connection has no view of it; a retry encodes a table's rows again.
        for _, batch in taken:
            batch.release_buffer()
        response.add_done_callback(partial(self._on_response, leader, taken))

    def _seal(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Encode a batch; False when that fails, which fails its deliveries."""
        if self._identity is not None:
            self._identity.stamp(queue, batch, batch.count or len(batch.rows))
        try:
            batch.seal(self._codec, self._level, transactional=self._transactions is not None)
        except Exception as error:  # noqa: BLE001 - one bad batch must not stop the others
            refused = SerializationError(f"records for {batch.where} cannot be encoded as a batch: {error}")
            refused.__cause__ = error
            with self._guard:
                self._give_up(queue, batch, refused)
            self._released()
            return False
        return True

    def _version(self, connection: Connection, taken: list[tuple[PartitionQueue, Batch]]) -> int:
        version = connection.version_of("Produce")
        # Under transaction.version 0 and 1 a newer version would make the broker add partitions without being asked.
        if self._transactions is not None and not self._transactions.implicit:
            return min(version, _IMPLICIT_SINCE - 1)
        if version >= _TOPIC_IDS_SINCE and any(
            self._cluster.table.topic_id(batch.where.topic) == ZERO_UUID for _, batch in taken
        ):
            return _TOPIC_IDS_SINCE - 1
        return version

    # Responses

    def _on_response(self, leader: int, taken: list[tuple[PartitionQueue, Batch]], future: asyncio.Future[Any]) -> None:
        self._in_flight[leader] -= 1
        error = None if future.cancelled() else future.exception()
        with self._guard:
            if future.cancelled() or error is not None:
                self._cluster.request_update()
                for queue, batch in taken:
                    lost = error if isinstance(error, KafkaError) else error_for(13, str(error))
                    self._retry(queue, batch, lost)
            elif self._acks == 0:
                for _, batch in taken:
                    self._succeed(batch, -1, -1)
            else:
                self._handle_results(taken, future.result())
        self._released()
        self.wake()

    def _handle_results(self, taken: list[tuple[PartitionQueue, Batch]], response: Any) -> None:
        names = self._cluster.table.names
        results = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        for queue, batch in taken:
            result = results.get(batch.where)
            if result is None:
                self._retry(queue, batch, error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "the response lacks the partition"))
            # A duplicate was stored by an earlier attempt whose response was lost; its offset is unknown (-1).
            elif result.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._succeed(batch, result.base_offset, result.log_append_time_ms)
            else:
                self._handle_error(queue, batch, result, response)

    def _succeed(self, batch: Batch, base_offset: int, log_append_time: int) -> None:
        sent = self.sent
        sent.records += batch.count or len(batch.rows)
        sent.batches += 1
        sent.bytes += batch.size
        self._accumulator.release(batch)
        batch.succeed(base_offset, log_append_time)

    def _handle_error(self, queue: PartitionQueue, batch: Batch, result: Any, response: Any) -> None:
        text = result.error_message or f"{batch.where}"
        if result.record_errors:
            text += "".join(
                f"; record {record_error.batch_index}: {record_error.batch_index_error_message}"
                for record_error in result.record_errors[:_RECORD_ERRORS_SHOWN]
            )
        error = error_for(result.error_code, text)
        code = error.code
        if batch.done:  # it expired, or its transaction was aborted, while the request was in flight
            queue.discard(batch)
        # As Java does: max.message.bytes of the topic may be smaller than batch.size.
        elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._accumulator.replace(queue, batch, batch.split())
        elif code in _SEQUENCE_LOST and self._identity is not None:
            self._sequence_lost(queue, batch, error)
        # Without a transactional id no other producer can have fenced this one: the broker lost its state.
        elif code is ErrorCode.INVALID_PRODUCER_EPOCH and self._identity is not None and self._transactions is None:
            self._identity.bump_needed = True
            self._retry(queue, batch, error)
        elif error.retriable:
            known = self._cluster.hint(batch.where, result.current_leader, response.node_endpoints)
            self._retry(queue, batch, error, at_once=known)
        else:
            self._give_up(queue, batch, error)

    def _sequence_lost(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> None:
        assert self._identity is not None
        # Behind a batch that failed, the error is expected and passes when that one is retried. The first batch has no
        # such excuse: the broker's state of this producer is gone (retention, or an unclean election).
        if batch.sent_sequence == batch.base_sequence and ProducerIdentity.is_first(queue, batch):
            if self._transactions is not None:
                self._give_up(queue, batch, error)
                return
            self._identity.bump_needed = True
        self._retry(queue, batch, error, at_once=True)

    def _retry(self, queue: PartitionQueue, batch: Batch, error: KafkaError, *, at_once: bool = False) -> None:
        """Retry a batch, unless `retries` or delivery.timeout.ms are used up."""
        if batch.done:
            queue.discard(batch)
            return
        batch.refusal = error
        now = self._loop.time()
        if isinstance(error, ProducerFencedError) and self._transactions is not None:
            self._give_up(queue, batch, error)
        elif batch.attempts > self._retries:
            self._give_up(queue, batch, error, stored=None)
        elif now >= batch.created + self._delivery_s:
            self._give_up(queue, batch, self._timeout_error(batch, error), stored=None)
        else:
            self.sent.retries += batch.count or len(batch.rows)
            self._accumulator.requeue(queue, batch)
            if not at_once:
                waits = Backoff(*self._backoff)
                for _ in range(min(batch.attempts, _BACKOFF_STEPS_MAX) - 1):
                    waits.next()
                queue.backoff_until = now + waits.next()

    def _last_cause(self, batch: Batch) -> KafkaError | None:
        """The last reason why a batch was not stored, as far as it is known."""
        if self._cluster.failure is not None:
            return self._cluster.failure
        topic = batch.where.topic
        if not self._cluster.table.partition_count(topic):
            return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} is not in the cluster's metadata")
        return batch.refusal

    def _timeout_error(self, batch: Batch, error: KafkaError | None = None) -> KafkaTimeoutError:
        reason = f": {error}" if error else ""
        count = batch.count or len(batch.rows)
        return KafkaTimeoutError(
            f"{count} records for {batch.where} were not delivered within "
            f"delivery.timeout.ms={self._delivery_s * 1000:g}{reason}"
        )

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: KafkaError, *, stored: bool | None = False) -> None:
        """Fail a batch; `stored` None means that it is unknown whether the broker has it."""
        # Refused for certain: the sequences behind it move up. Unknown: only a new epoch prevents that a late copy is
        # stored with a sequence that another batch has by then.
        if self._identity is not None and batch.base_sequence >= 0:
            if stored is None:
                self._identity.bump_needed = True
            else:
                ProducerIdentity.close_gap(queue, batch)
        self.sent.errors += batch.count or len(batch.rows)
        self._accumulator.release(batch)
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            error = RecordTooLargeError(error.code, str(error))
        if self._transactions is not None:
            self._transactions.fail(error)
        batch.fail(error)

    def _expire(self, late: list[Batch]) -> None:
        """Fail batches older than delivery.timeout.ms, in flight or not."""
        with self._guard:
            for batch in late:
                queue = self._accumulator.incomplete.get(batch)
                if queue is not None:
                    reason = self._timeout_error(batch, self._last_cause(batch))
                    self._give_up(queue, batch, reason, stored=None if batch.sent else False)
        self._released()
