"""Denials as records of a topic (klamm.audit.topic), beside the audit lines of the log.

A decision only appends to a bounded queue; a task sends the queue to the leaders of the topic. While they cannot be
reached, records wait, and those over the limit are dropped and counted: clients are never delayed by their own denials.
Peers choose the names in a denial, so texts are cut, queue and batches are bounded by bytes, and records that the topic
refuses are dropped and counted too: no denial can keep the others from the topic.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch
from klamm.server.cluster.broker_peers import BrokerPeers
from klamm.server.requests.access.control import NAME_CHARS_MAX
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.services import Services

log = get_logger("audit")

QUEUED_MAX: Final = 10_000
QUEUED_BYTES_MAX: Final = 16 << 20
BATCH_RECORDS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 128 << 10
"""Far below max.message.bytes and socket.request.max.bytes of any sensible cluster."""
TEXT_CHARS_MAX: Final = 1024
"""Of every other text: the name of a principal may be that of a token, and a rule contains names."""
RECORD_OVERHEAD: Final = 100
"""Bytes of a record beside key and value, in a batch and in memory; no exact number is needed."""
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 10.0
REFUSALS: Final = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    )
)
"""Codes for what a batch contains: it would get the same one for ever."""
# Topics by name, which is what the setting has; from version 13 on they are named by id.
PRODUCE_VERSION: Final = 9
PRODUCE_TIMEOUT_MS: Final = 10_000

Fields = dict[str, Any]


class AuditRecord(NamedTuple):
    """A denial, or the report of dropped ones, as it is written."""

    timestamp_ms: int
    key: bytes | None
    value: bytes
    reported: int = 0
    """How many dropped records it reports; 0 for a denial."""

    @property
    def size(self) -> int:
        """About the bytes that it takes, in a batch and in memory."""
        return RECORD_OVERHEAD + len(self.value) + (len(self.key) if self.key is not None else 0)


class AuditQueue:
    """The records that are not written yet, and how many were dropped; pure."""

    def __init__(self, node_id: int, queued_max: int = QUEUED_MAX) -> None:
        self._node_id = node_id
        self._queued: deque[AuditRecord] = deque()
        self._queued_max = queued_max
        self.size = 0
        """About the bytes of the queue."""
        self.dropped = 0
        """Since the last batch that reported it."""
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, now_ms: int, fields: Fields) -> None:
        """Queue a record, or count it as dropped."""
        # Before it is encoded: a flood of denials beyond the limit costs no more than a comparison each.
        if len(self._queued) >= self._queued_max:
            self._count_dropped()
            return
        record = self._encode(now_ms, fields)
        if self.size + record.size > QUEUED_BYTES_MAX:
            self._count_dropped()
            return
        self._queued.append(record)
        self.size += record.size

    def take(self, now_ms: int) -> list[AuditRecord]:
        """Return the next records; the first one says how many are missing, if some are."""
        records: list[AuditRecord] = []
        if self.dropped:
            # At the front although the newest are dropped: a full queue takes long to write, and a reader of the topic
            # must not take the gap for silence meanwhile.
            report = self._encode(now_ms, {"event": "dropped", "count": self.dropped})
            records.append(report._replace(reported=self.dropped))
            self.dropped = 0
        size = 0
        while self._queued and len(records) < BATCH_RECORDS_MAX:
            size += self._queued[0].size
            if size > BATCH_BYTES_MAX and records:
                break
            record = self._queued.popleft()
            self.size -= record.size
            records.append(record)
        return records

    def drop(self, record: AuditRecord) -> None:
        """Count a record that was taken and cannot be written; a report leaves its count to the next one."""
        if record.reported:
            self.dropped += record.reported
        else:
            self._count_dropped()

    def _count_dropped(self) -> None:
        self.dropped += 1
        self.dropped_total += 1

    def _encode(self, timestamp_ms: int, fields: Fields) -> AuditRecord:
        # The key is the principal, so that one principal's denials stay in order.
        principal = fields.get("principal")
        value = json.dumps({"timestamp": timestamp_ms, "node": self._node_id, **fields}, separators=(",", ":"))
        # A replacement for what UTF-8 cannot hold: this runs within the request, which must get its answer.
        key = principal.encode(errors="backslashreplace") if principal else None
        return AuditRecord(timestamp_ms, key, value.encode())


def build_records(records: Sequence[AuditRecord]) -> bytes:
    """Return a batch of the records."""
    return bytes(build_batch([(record.timestamp_ms, record.key, record.value, ()) for record in records]))


def cut_texts(fields: Fields) -> Fields:
    """Return the fields with long texts cut; the length of the name of a resource is kept."""
    cut = {key: value[:TEXT_CHARS_MAX] if isinstance(value, str) else value for key, value in fields.items()}
    name = fields["resource_name"]
    if len(name) > NAME_CHARS_MAX:
        cut["resource_name"] = name[:NAME_CHARS_MAX]
        cut["resource_name_length"] = len(name)
    return cut


class AuditTopic:
    """Writes denials to a topic."""

    def __init__(self, services: "Services", topic: str) -> None:
        self.topic = topic
        self.queue = AuditQueue(services.node_id)
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
        self.queue.add(self._services.clock.now_ms(), cut_texts(fields))
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
                await self._write(self.queue.take(self._services.clock.now_ms()))

    async def _write(self, records: list[AuditRecord]) -> None:
        """Write records, however long it takes; of those that the topic refuses, as few as possible are dropped."""
        waiting = [records]
        while waiting:
            batch = waiting.pop()
            code = await self._write_batch(build_records(batch))
            if code is ErrorCode.NONE:
                continue
            if len(batch) == 1:
                self.queue.drop(batch[0])
                log.warning("audit record refused", topic=self.topic, reason=code.name, bytes=batch[0].size)
                continue
            middle = len(batch) // 2
            waiting += (batch[middle:], batch[:middle])

    async def _write_batch(self, batch: bytes) -> ErrorCode:
        """Write a batch, however long it takes; returns NONE, or the code with which it is refused for ever."""
        pause, was_reported = RETRY_SECONDS, False
        while True:
            code, reason = await self._try_to_write(batch)
            if code is ErrorCode.NONE or code in REFUSALS:
                return code
            if not was_reported:
                was_reported = True
                log.warning("audit topic cannot be written, retrying", topic=self.topic, reason=reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _try_to_write(self, batch: bytes) -> tuple[ErrorCode, str]:
        """Send a batch to a partition in turn; returns the code and the reason for a failure."""
        topic = self._services.image.topics.by_name.get(self.topic)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist"
        # One partition after another, so that a leader that is down delays a batch and not the topic.
        leaders = [(index, partition.leader) for index, partition in topic.partitions.items() if partition.leader >= 0]
        if not leaders:
            return ErrorCode.LEADER_NOT_AVAILABLE, "no partition has a leader"
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
            code = ErrorCode(response.responses[0].partition_responses[0].error_code)
        except (KlammError, ProtocolError, TimeoutError, ValueError) as error:  # a newer broker may have other codes
            return ErrorCode.NETWORK_EXCEPTION, str(error)
        return code, code.name
