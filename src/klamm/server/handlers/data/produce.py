"""Produce, v3-13: append record batches to the partitions this node leads; v0-2 are advertised and refused.

acks=0 gets no reply, and on an error the connection is closed, since nothing else reports it. acks=1 is answered when
the write is done, acks=all when every in-sync replica has it. A duplicate batch of an idempotent producer is answered
with the offset of the first one. Records are validated before they are stored; larger compressed batches in a thread
(`server/requests/record_checks`), and later requests of the connection wait.
v7 zstd · v9 flexible · v10 leader hints (KIP-951) · v11 abortable errors, v12 the broker adds partitions to the
transaction (KIP-890) · v13 topic ids in place of names
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
from klamm.replication.core.acknowledgements import NEVER_MS
from klamm.server.cluster.topics import is_internal
from klamm.server.handlers.data import produce_quick, produce_transactional
from klamm.server.handlers.data.produce_replies import (
    ACKS_ALL,
    DelayedProduce,
    PendingPartition,
    build_response,
    close_if_refused,
    refuse_all,
)
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.failures import log_request_failed
from klamm.server.requests.record_checks import BatchToCheck, Validated, WaitingProduce
from klamm.server.requests.replies import response_parts
from klamm.server.requests.slices import SLICE_ELEMENTS, SliceSteps, run_in_slices
from klamm.server.services import Services
from klamm.storage.batch_validation import DecompressInThread

TOPIC_IDS_SINCE = 13
"""Requests name topics by id from this version on (KIP-516)."""
ZSTD_SINCE = 7
TRANSIENT = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Errors after which a retry of the same batch may succeed, before the batches that were sent after it."""
ADMIN_CLIENT_ID = "__admin_client"
"""The client id by which Kafka's tools may write to internal topics."""
INLINE_BYTES_MAX = 2 * 1024 * 1024
"""Uncompressed records are validated on the loop up to this size: a millisecond, if they are tiny."""

_NONE_REFUSED: Mapping[int, KlammError] = MappingProxyType({})


@dataclass(slots=True)
class StagedProduce:
    """A request that is processed in three steps: validated, admitted to its transaction, staged."""

    services: Services
    context: RequestContext
    request: ProduceRequest
    slot: Slot | None
    """The place of the reply in the order of the connection; None for acks=0."""
    refused: Mapping[int, KlammError]
    """The batches that the authorizer or the transaction coordinator refuses, by the `id` of their part of the request.
    """
    checked: Validated = field(default_factory=dict)
    """The results of validating compressed batches, by the same key."""
    responses: list[tuple[TopicProduceData, list[PartitionProduceResponse]]] = field(default_factory=list)

    @property
    def acks_all(self) -> bool:
        """Whether every in-sync replica must have the records."""
        return self.request.acks == ACKS_ALL

    @property
    def has_many_partitions(self) -> bool:
        """Whether it is staged in slices: its connection is held meanwhile, and it owns its records."""
        return sum(len(topic.partition_data) for topic in self.request.topic_data) > SLICE_ELEMENTS

    def own_records(self) -> None:
        """Copy the records of a request that takes longer than this turn: the receive buffer is reused after it."""
        if not len(self.context.frame):
            return  # they are copied already
        self.context.frame = memoryview(b"")
        for topic in self.request.topic_data:
            for partition in topic.partition_data:
                if partition.records is not None:
                    partition.records = memoryview(bytearray(partition.records))


def handle(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    refused: Mapping[int, KlammError] = _NONE_REFUSED,
) -> object:
    """Stage every partition that is not `refused`, then answer once all of them are acknowledged or refused."""
    if context.meter is not None:
        context.meter.record_produced(len(context.frame), has_response=request.acks != 0)
    # As in Kafka, every partition gets the error.
    if request.acks not in (-1, 0, 1):
        return refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    slot = context.channel.defer() if request.acks else None
    produce = StagedProduce(services, context, request, slot, refused)
    if produce.has_many_partitions:
        context.channel.hold()  # requests behind it must not be staged before all of this one is
        _check_later(produce)
        return ANSWERED
    connection = context.connection
    in_thread, connection.validate_in_thread = connection.validate_in_thread, False
    if not connection.waiting_produces.requests and not in_thread and _check_inline(produce):
        _admit(produce)
    else:
        _check_later(produce)
    return ANSWERED


def _check_later(produce: StagedProduce) -> None:
    """Validate the batches in a thread, after those of earlier requests of the connection."""
    # Before `own_records`, which drops the frame.
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
    """Validate the compressed batches on the loop; False when they take too long for it."""
    connection = produce.context.connection
    batches = _batches_to_check(produce)
    if not batches:
        return True
    size = sum(len(batch.data) for batch in batches)
    if size > connection.inline_bytes_max:
        return False
    if produce.request.transactional_id is not None:
        produce.own_records()  # they may be staged in a later turn, after a response of the coordinator
        batches = _batches_to_check(produce)
    checked: dict[int, Any] = {}
    for batch in batches:
        try:
            checked[batch.part_id] = batch.check(inline=True)
        except DecompressInThread:
            # The next one of this size goes to a thread at once.
            connection.inline_bytes_max = size - 1
            return False
        except KlammError as error:
            checked[batch.part_id] = error
    produce.checked = checked
    return True


def _batches_to_check(produce: StagedProduce) -> list[BatchToCheck]:
    """Return the batches that are compressed or very large; all others are validated when they are staged."""
    services = produce.services
    batches = []
    now_ms = 0
    for topic in produce.request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is None or len(records) < HEADER_SIZE:
                continue
            # The low byte of the attributes, without parsing the header: most batches need nothing else here.
            codec = records[CRC_START + 1] & CODEC_MASK
            if not codec and len(records) <= INLINE_BYTES_MAX:
                continue
            # What cannot be appended anyway is not decompressed.
            replica = _find_replica(services, topic, partition.index)
            if replica is None or not replica.leads or codec in replica.log.unchecked_codecs:
                continue
            now_ms = now_ms or services.clock.now_ms()
            batches.append(BatchToCheck(id(partition), records, replica.log.config, now_ms, replica.log.name))
    return batches


def _admit(produce: StagedProduce) -> None:
    """Stage, after a response of the transaction coordinator if one is needed."""
    services, request = produce.services, produce.request
    admission = None
    if request.transactional_id is not None:
        admission = produce_transactional.find_admission(services, produce.context.version, request)
    if admission is None:
        _stage(produce)
        return

    def stage(refused: Mapping[int, KlammError]) -> None:
        produce.refused = {**produce.refused, **refused}
        _stage(produce)

    produce.own_records()
    produce_transactional.admit_later(services, admission, stage)


def _stage(produce: StagedProduce) -> None:
    """Stage what is not refused, and answer when all of it is acknowledged."""
    steps = _stage_steps(produce)
    if produce.has_many_partitions:
        produce.services.checks.stage_later(_stage_many(produce.context, steps))
        return
    for _ in steps:
        pass  # all in this turn: the receive buffer is reused after it


async def _stage_many(context: RequestContext, steps: SliceSteps[None]) -> None:
    """Stage a request of many partitions, while its connection is held."""
    try:
        await run_in_slices(steps)
    except Exception as error:  # noqa: BLE001 - a bug in one request must not leave its connection held
        log_request_failed(context.channel, context.api_key, context.version, error)
        context.channel.close("request failed")
    finally:
        context.channel.release()


def _stage_steps(produce: StagedProduce) -> SliceSteps[None]:
    services, context, request = produce.services, produce.context, produce.request

    def complete() -> None:
        context.connection.delayed.pop(pending, None)
        response = build_response(services, context, produce.responses)
        if produce.slot is not None:
            produce.slot.send(response_parts(context, response))
        else:
            close_if_refused(context.channel, response)

    # acks=1 has no deadline: it is answered at the end of the turn that stages it.
    deadline_ms = services.replicas.now_ms() + max(request.timeout_ms, 0) if produce.acks_all else NEVER_MS
    pending = DelayedProduce(complete, deadline_ms)
    # When the connection closes, the timer of the request is cancelled.
    context.connection.delayed[pending] = None
    for topic in request.topic_data:
        responses: list[PartitionProduceResponse] = []
        produce.responses.append((topic, responses))
        for partition in topic.partition_data:
            responses.append(_append(produce, topic, partition, pending))
            yield 1
        yield 1
    # Last: a partition that is refused at once must not complete the request before the others are added.
    pending.start(services.loop, request.timeout_ms)


def _append(
    produce: StagedProduce, topic: TopicProduceData, partition: PartitionProduceData, pending: DelayedProduce
) -> PartitionProduceResponse:
    """Stage one partition; its response is complete when it is acknowledged, at once if it is refused."""
    services, context = produce.services, produce.context
    response = PartitionProduceResponse(index=partition.index, base_offset=-1)
    now_ms = services.clock.now_ms()
    try:
        if produce.refused and id(partition) in produce.refused:
            raise produce.refused[id(partition)]
        replica = _leading_replica(services, topic, partition.index)
        # Records of internal topics are written by coordinators; a foreign one could not be replayed.
        if is_internal(replica.topic) and context.client_id != ADMIN_CLIENT_ID:
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {replica.topic}")
        records = partition.records
        _check(context.version, produce.request, records)
        checked = produce.checked.get(id(partition))
        base_offset = services.replicas.append(replica, records, produce.acks_all, None, now_ms, checked)
    except KlammError as error:
        response.error_code = error.code
        response.error_message = error.message
        if not topic.name and topic.topic_id == ZERO_UUID and context.version >= TOPIC_IDS_SINCE:
            # No topic has this id. Looked at only here: a name is what such a topic is looked up by.
            response.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        _count_failure(services, topic, partition.index)
        if error.code in TRANSIENT:
            _record_refusal(services, topic, partition, error.code)
        if isinstance(error, RecordRefused):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=record.batch_index, batch_index_error_message=record.message)
                for record in error.records
            ]
        return response
    replica.produces += 1
    response.base_offset = base_offset
    response.log_start_offset = replica.log.log_start_offset
    if replica.log.config.message_timestamp_type == "LogAppendTime":
        # The time in the batch: in a thread it was set a moment earlier than `now_ms`.
        response.log_append_time_ms = checked.max_timestamp if isinstance(checked, BatchView) else now_ms
    # After staging: the required offset is the one after its records; for a duplicate, the end of the log.
    pending_partition = PendingPartition(pending, replica, response)
    pending.add(pending_partition)
    services.replicas.acknowledge(replica, pending_partition, acks_all=produce.acks_all)
    # From the second request on, the prefix is known and the quick path answers.
    if (
        replica.can_encode_reply_before_write
        and _is_only_partition(produce.request)
        and not services.quotas.measures(context)
    ):
        produce_quick.add_prefix(services, context, produce.request, replica, records)
    return response


def _is_only_partition(request: ProduceRequest) -> bool:
    return len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1


def _count_failure(services: Services, topic: Any, index: int) -> None:
    replica = _find_replica(services, topic, index)
    if replica is not None:
        replica.failed_produces += 1


def _record_refusal(services: Services, topic: Any, partition: Any, code: ErrorCode) -> None:
    """Have the log refuse the batches that the producer sent after a refused one, until that is retried."""
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
    raise KlammError(services.replicas.not_leader_error(known.id, index))


def _check(version: int, request: ProduceRequest, records: memoryview | None) -> None:
    if records is None or not len(records):
        raise KlammError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
    attributes = records[CRC_START + 1] if len(records) > CRC_START + 2 else 0
    if version < ZSTD_SINCE and attributes & CODEC_MASK == Codec.ZSTD:
        raise KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_SINCE}")
    # Kafka's code for this case, which clients treat as fatal.
    if attributes & TRANSACTIONAL and request.transactional_id is None:
        raise KlammError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch needs a transactional id in the request",
        )
