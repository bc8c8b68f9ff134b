"""Produce, v3-13: append record batches to the partitions this node leads.

acks=0 gets no reply, and on an error the connection is closed, since there is no other way to tell. acks=1 is answered
when the write is done, acks=all when every in-sync replica has it. A batch of an idempotent producer that is already
there is answered with the offset it got first. Records are looked at before they are stored; packed ones that are not
small in a thread (`server/requests/record_checks`), and what the connection sends behind them waits.
v7 zstd · v9 flexible · v10 leader hints (KIP-951) · v11 abortable errors, v12 partitions join a transaction by
themselves (KIP-890) · v13 topic ids in place of names
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from klamm.model.errors import ErrorCode, KlammError, RecordRefused
from klamm.model.ids import ZERO_UUID
from klamm.net import Slot
from klamm.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from klamm.records.batch import CODEC_MASK, CRC_START, HEADER_SIZE, TRANSACTIONAL, BatchView
from klamm.records.compression import Codec
from klamm.replication import Replica
from klamm.replication.acknowledgements import NEVER_MS
from klamm.server.cluster.topics import is_internal
from klamm.server.handlers.data import produce_quick, produce_transactional
from klamm.server.handlers.data.produce_replies import (
    ACKS_ALL,
    PendingPartition,
    PendingProduce,
    build_response,
    close_if_refused,
    refuse_all,
)
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.record_checks import BatchToCheck, Validated, WaitingProduce
from klamm.server.requests.replies import response_parts
from klamm.server.requests.slices import SLICE_ELEMENTS, Steps, run_in_slices
from klamm.server.services import Services
from klamm.storage.batch_validation import UnpackElsewhere
from klamm.telemetry.log import get_logger

log = get_logger("produce")

ZSTD_SINCE = 7
PASSING = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Refusals after which a retry of the same batch may succeed at once, ahead of what was sent behind it."""
ADMIN_CLIENT_ID = "__admin_client"
"""The client id by which Kafka's tools may write to internal topics."""
INLINE_BYTES_MAX = 2 * 1024 * 1024
"""Records that are not packed are checked on the loop up to here: a millisecond, if they are tiny."""


@dataclass(slots=True)
class StagedProduce:
    """A request on its way into the logs: its records are checked, then admitted to their transaction, then staged."""

    services: Services
    context: RequestContext
    request: ProduceRequest
    slot: Slot | None
    """Where the reply goes; None for acks=0."""
    checked: Validated = field(default_factory=dict)
    """What looking at packed batches has led to, by the `id` of their part of the request."""
    refused: Mapping[int, KlammError] = field(default_factory=dict)
    """What the coordinator of their transaction does not admit, likewise."""
    responses: list[tuple[TopicProduceData, list[PartitionProduceResponse]]] = field(default_factory=list)

    @property
    def acks_all(self) -> bool:
        """Whether every replica in sync must have the records."""
        return self.request.acks == ACKS_ALL

    @property
    def names_many(self) -> bool:
        """Whether it is staged in slices: its connection is held meanwhile, and its records are its own."""
        return sum(len(topic.partition_data) for topic in self.request.topic_data) > SLICE_ELEMENTS

    def own_records(self) -> None:
        """Copy the records of a request that is not done with this turn: its buffer is lent no longer."""
        if not len(self.context.frame):
            return  # they are copied already
        self.context.frame = memoryview(b"")
        for topic in self.request.topic_data:
            for partition in topic.partition_data:
                if partition.records is not None:
                    partition.records = memoryview(bytearray(partition.records))


def handle(services: Services, context: RequestContext, request: ProduceRequest) -> object:
    """Stage every partition, then answer once all of them are settled."""
    if request.acks not in (-1, 0, 1):
        return refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    produce = StagedProduce(services, context, request, context.channel.defer() if request.acks else None)
    if produce.names_many:
        context.channel.hold()  # requests behind it must not be staged before all of this one is
        _check_later(produce)
        return ANSWERED
    connection = context.connection
    elsewhere, connection.unpacks_elsewhere = connection.unpacks_elsewhere, False
    if not connection.waiting_produces.requests and not elsewhere and _check_inline(produce):
        _admit(produce)
    else:
        _check_later(produce)
    return ANSWERED


def _check_later(produce: StagedProduce) -> None:
    """Look at the batches in a thread, behind those of earlier requests of the connection."""
    size = len(produce.context.frame)
    produce.own_records()

    def find_batches() -> list[BatchToCheck]:
        return _batches_to_check(produce)

    def stage(checked: Validated) -> None:
        produce.checked = checked
        _admit(produce)

    channel, waiting = produce.context.channel, produce.context.connection.waiting_produces
    produce.services.checks.add(channel, waiting, WaitingProduce(size, find_batches, stage))


def _check_inline(produce: StagedProduce) -> bool:
    """Look at the packed batches here; False when they are too much for the loop's thread."""
    connection = produce.context.connection
    batches = _batches_to_check(produce)
    if not batches:
        return True
    size = sum(len(batch.data) for batch in batches)
    if size > connection.packed_bytes_inline:
        return False
    if produce.request.transactional_id is not None:
        produce.own_records()  # the coordinator may have to be asked before they are staged
        batches = _batches_to_check(produce)
    checked: dict[int, Any] = {}
    for batch in batches:
        try:
            checked[batch.part_id] = batch.check(inline=True)
        except UnpackElsewhere:
            # The next of this size goes to a thread without being tried here first.
            connection.packed_bytes_inline = size - 1
            return False
        except KlammError as error:
            checked[batch.part_id] = error
    produce.checked = checked
    return True


def _batches_to_check(produce: StagedProduce) -> list[BatchToCheck]:
    """The batches that are packed, or very large; all others are looked at when they are staged."""
    services = produce.services
    batches = []
    now_ms = 0
    for topic in produce.request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is None or len(records) < HEADER_SIZE:
                continue
            codec = records[CRC_START + 1] & CODEC_MASK
            if not codec and len(records) <= INLINE_BYTES_MAX:
                continue
            replica = _find_replica(services, topic, partition.index)
            if replica is None or not replica.leads or codec in replica.log.unchecked_codecs:
                continue
            now_ms = now_ms or services.clock.now_ms()
            batches.append(BatchToCheck(id(partition), records, replica.log.config, now_ms, replica.log.name))
    return batches


def _admit(produce: StagedProduce) -> None:
    """Ask the coordinator of a transaction where that is needed, then stage."""
    services, request = produce.services, produce.request
    admission = None
    if request.transactional_id is not None:
        admission = produce_transactional.find_admission(services, produce.context.version, request)
    if admission is None:
        _stage(produce)
        return

    def stage(refused: Mapping[int, KlammError]) -> None:
        produce.refused = refused
        _stage(produce)

    produce.own_records()
    produce_transactional.admit_later(services, admission, stage)


def _stage(produce: StagedProduce) -> None:
    """Stage what is not refused and answer when all of it is settled."""
    steps = _stage_steps(produce)
    if produce.names_many:
        produce.services.checks.stage_later(_stage_many(produce.context, steps))
        return
    for _ in steps:
        pass  # within this turn: its buffer is lent no longer


async def _stage_many(context: RequestContext, steps: Steps[None]) -> None:
    """Stage a request of many partitions, for which its connection is held."""
    try:
        await run_in_slices(steps)
    except Exception as error:  # noqa: BLE001 - a bug in one request is no reason to leave its connection held
        log.failure("request failed", error, peer=context.channel.peer_address, api_key=context.api_key)
        context.channel.close("its request failed")
    finally:
        context.channel.release()


def _stage_steps(produce: StagedProduce) -> Steps[None]:
    services, context, request = produce.services, produce.context, produce.request

    def complete() -> None:
        context.connection.waiters.pop(pending, None)
        response = build_response(services, context, produce.responses)
        if produce.slot is not None:
            produce.slot.send(response_parts(context, response))
        else:
            close_if_refused(context.channel, response)

    deadline_ms = services.replicas.now_ms() + max(request.timeout_ms, 0) if produce.acks_all else NEVER_MS
    pending = PendingProduce(complete, deadline_ms)
    context.connection.waiters[pending] = None
    for topic in request.topic_data:
        responses: list[PartitionProduceResponse] = []
        produce.responses.append((topic, responses))
        for partition in topic.partition_data:
            responses.append(_append(produce, topic, partition, pending))
            yield 1
        yield 1
    pending.start(services.loop, request.timeout_ms)


def _append(
    produce: StagedProduce, topic: TopicProduceData, partition: PartitionProduceData, pending: PendingProduce
) -> PartitionProduceResponse:
    """Stage one partition and have its response completed when it is acknowledged; a refusal is complete at once."""
    services, context = produce.services, produce.context
    response = PartitionProduceResponse(index=partition.index, base_offset=-1)
    now_ms = services.clock.now_ms()
    try:
        if produce.refused and id(partition) in produce.refused:
            raise produce.refused[id(partition)]
        replica = _leading_replica(services, topic, partition.index)
        if is_internal(replica.topic) and context.client_id != ADMIN_CLIENT_ID:
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {replica.topic}")
        records = partition.records
        _check(context.version, produce.request, records)
        checked = produce.checked.get(id(partition))
        base_offset = services.replicas.append(replica, records, produce.acks_all, None, now_ms, checked)
    except KlammError as error:
        response.error_code = error.code
        response.error_message = error.message
        if error.code in PASSING:
            _note_refused(services, topic, partition, error.code)
        if isinstance(error, RecordRefused):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=record.batch_index, batch_index_error_message=record.message)
                for record in error.records
            ]
        return response
    response.base_offset = base_offset
    response.log_start_offset = replica.log.log_start_offset
    if replica.log.config.message_timestamp_type == "LogAppendTime":
        response.log_append_time_ms = checked.max_timestamp if isinstance(checked, BatchView) else now_ms
    # After staging: the reply needs the offset behind its records, which for a duplicate is that of the log's end.
    pending_partition = PendingPartition(pending, replica, response)
    pending.add(pending_partition)
    services.replicas.acknowledge(replica, pending_partition, acks_all=produce.acks_all)
    if replica.answers_early and _is_only_partition(produce.request):
        produce_quick.remember(services, context, produce.request, replica, records)
    return response


def _is_only_partition(request: ProduceRequest) -> bool:
    return len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1


def _note_refused(services: Services, topic: Any, partition: Any, code: ErrorCode) -> None:
    """Keep the batches that the producer has sent behind a refused one from being taken before its retry."""
    replica = _find_replica(services, topic, partition.index)
    if replica is not None and partition.records is not None:
        replica.log.note_refused(partition.records, code, services.clock.now_ms())


def _find_replica(services: Services, topic: Any, index: int) -> Replica | None:
    if topic.topic_id != ZERO_UUID:
        return services.replicas.find_by_id(topic.topic_id, index)
    return services.replicas.find(topic.name, index)


def _leading_replica(services: Services, topic: Any, index: int) -> Replica:
    replica = _find_replica(services, topic, index)
    if topic.topic_id != ZERO_UUID:
        known = services.image.topics.by_id.get(topic.topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        known = services.image.topics.by_name.get(topic.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if replica is not None and replica.leads:
        return replica
    if known is None:
        raise KlammError(missing)
    if index not in known.partitions:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    raise KlammError(services.replicas.absence(known.id, index))


def _check(version: int, request: ProduceRequest, records: memoryview | None) -> None:
    if records is None or not len(records):
        raise KlammError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
    attributes = records[CRC_START + 1] if len(records) > CRC_START + 2 else 0
    if version < ZSTD_SINCE and attributes & CODEC_MASK == Codec.ZSTD:
        raise KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_SINCE}")
    if attributes & TRANSACTIONAL and request.transactional_id is None:
        raise KlammError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the batch is transactional, the request not")
