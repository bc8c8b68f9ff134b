"""Denials as records of a topic (klamm.audit.topic), beside the audit lines of the log.

A decision only appends to a bounded queue; a task sends the queue to the leaders of the topic. While they cannot be
reached, records wait, and those over the limit are dropped and counted: clients are never delayed by their own denials.
"""

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("audit")

QUEUED_MAX: Final = 10_000
BATCH_RECORDS_MAX: Final = 500
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 10.0
# Topics by name, which is what the setting has; from version 13 on they are named by id.
PRODUCE_VERSION: Final = 9
PRODUCE_TIMEOUT_MS: Final = 10_000

Fields = dict[str, Any]


class AuditQueue:
    """The records that are not written yet, and how many were dropped; pure."""

    def __init__(self, queued_max: int = QUEUED_MAX) -> None:
        self._queued: deque[tuple[int, Fields]] = deque()
        self._queued_max = queued_max
        self.dropped = 0
        """Since the last batch that reported it."""
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, now_ms: int, fields: Fields) -> None:
        """Queue a record, or count it as dropped."""
        if len(self._queued) >= self._queued_max:
            self.dropped += 1
            self.dropped_total += 1
            return
        self._queued.append((now_ms, fields))

    def take(self, now_ms: int) -> list[tuple[int, Fields]]:
        """Return the next records; the first one says how many are missing, if some are."""
        records: list[tuple[int, Fields]] = []
        if self.dropped:
            # At the front although the newest are dropped: a full queue takes long to write, and a reader of the topic
            # must not take the gap for silence meanwhile.
            records.append((now_ms, {"event": "dropped", "count": self.dropped}))
            self.dropped = 0
        while self._queued and len(records) < BATCH_RECORDS_MAX:
            records.append(self._queued.popleft())
        return records


def encode_records(records: list[tuple[int, Fields]], node_id: int) -> bytes:
    """Return a batch of JSON records; the key is the principal, so that one principal's denials stay in order."""
    rows = []
    for timestamp_ms, fields in records:
        principal = fields.get("principal")
        value = json.dumps({"timestamp": timestamp_ms, "node": node_id, **fields}, separators=(",", ":"))
        rows.append((timestamp_ms, principal.encode() if principal else None, value.encode(), ()))
    return bytes(build_batch(rows))


class AuditTopic:
    """Writes denials to a topic."""

    def __init__(self, services: "Services", topic: str) -> None:
        self.topic = topic
        self.queue = AuditQueue()
        self._services = services
        self._peers = BrokerPeers(services, "audit")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = 0

    def start(self) -> None:
        """Begin to write."""
        self._task = self._services.loop.create_task(self._run(), name="audit topic")

    async def stop(self) -> None:
        """Stop; records that are not written are lost, their lines are in the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._peers.close()

    def add(self, fields: Fields) -> None:
        """Queue a denial. Those of the audit topic itself are left out: writing them could be denied in turn."""
        if fields["resource_type"] == "Topic" and fields["resource_name"] == self.topic:
            return
        self.queue.add(self._services.clock.now_ms(), fields)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            # Before the queue is read: a denial that arrives while a batch is written sets it again.
            self._wake.clear()
            while len(self.queue):
                dropped = self.queue.dropped
                if dropped:
                    log.warning("audit records dropped", topic=self.topic, dropped=dropped)
                await self._write(
                    encode_records(self.queue.take(self._services.clock.now_ms()), self._services.node_id)
                )

    async def _write(self, batch: bytes) -> None:
        """Write a batch, however long it takes."""
        pause, reported = RETRY_SECONDS, False
        while True:
            reason = await self._try_to_write(batch)
            if not reason:
                return
            if not reported:
                reported = True
                log.warning("audit topic cannot be written, retrying", topic=self.topic, reason=reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _try_to_write(self, batch: bytes) -> str:
        """Send a batch to a partition in turn; returns the reason for a failure."""
        topic = self._services.image.topics.by_name.get(self.topic)
        if topic is None:
            return "the topic does not exist"
        # One partition after another, so that a leader that is down delays a batch and not the topic.
        leaders = [(index, partition.leader) for index, partition in topic.partitions.items() if partition.leader >= 0]
        if not leaders:
            return "no partition has a leader"
        self._turn += 1
        index, leader = leaders[self._turn % len(leaders)]
        partition = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            # Not idempotent: a retry may write a batch twice, which is better for an audit than a lost one.
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[partition])],
        )
        try:
            response = await self._peers.ask(leader, request, PRODUCE_VERSION)
        except (KlammError, ProtocolError, TimeoutError) as error:
            return str(error)
        code = response.responses[0].partition_responses[0].error_code
        return "" if code == ErrorCode.NONE else ErrorCode(code).name
