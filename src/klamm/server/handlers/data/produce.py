"""Produce, v3-13: append record batches to the partitions this node leads.

acks=0 gets no reply, and on an error the connection is closed, since there is no other way to tell. acks=1 is answered
when the write is done, acks=all when every in-sync replica has it. A batch of an idempotent producer that is already
there is answered with the offset it got first. Records are looked at before they are stored; packed ones that are not
small in a thread (`server/requests/record_checks`), and what the connection sends behind them waits.
v7 zstd · v9 flexible · v10 leader hints (KIP-951) · v11 abortable errors, v12 partitions join a transaction by
themselves (KIP-890) · v13 topic ids in place of names
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from klamm.model.errors import ErrorCode, KlammError, RecordRefused
from klamm.model.ids import ZERO_UUID
from klamm.net import Slot
from klamm.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.records.batch import CODEC_MASK, CRC_START, HEADER_SIZE, TRANSACTIONAL
from klamm.records.compression import Codec
from klamm.replication import AckWaiter, Replica
from klamm.replication.waiters import PendingAppend
from klamm.server.cluster.topics import is_internal
from klamm.server.handlers.data import produce_quick, produce_transactional
from klamm.server.handlers.data.leader_hints import node_endpoints, partition_image
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.record_checks import BatchToCheck, Validated, WaitingProduce
from klamm.server.requests.replies import response_parts
from klamm.server.requests.slices import SLICE_ELEMENTS, Steps, run_in_slices
from klamm.server.services import Services
from klamm.storage.batch_validation import UnpackElsewhere
from klamm.telemetry.log import get_logger

log = get_logger("produce")

ACKS_ALL = -1
ZSTD_SINCE = 7
PASSING = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Refusals after which the same batch may be taken at once."""
ADMIN_CLIENT_ID = "__admin_client"
"""The client id by which Kafka's tools may write to internal topics."""
INLINE_BYTES_MAX = 2 * 1024 * 1024
"""Records that are not packed are looked at on the loop up to here: a millisecond, if they are tiny."""


@dataclass(slots=True)
class Outcome:
    """What became of one partition of the request."""

    response: PartitionProduceResponse
    pending: PendingAppend | None = None


def handle(services: Services, context: RequestContext, request: ProduceRequest) -> object:
    """Stage every partition, then answer once all of them are settled."""
    if request.acks not in (-1, 0, 1):
        return None if not request.acks else _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    slot = context.channel.defer() if request.acks else None
    if _names_many(request):
        context.channel.hold()  # what comes behind it is not handled before all of it is staged
        _check_later(services, context, request, slot)
        return ANSWERED
    connection = context.connection
    elsewhere, connection.unpacks_elsewhere = connection.unpacks_elsewhere, False
    validated = None
    if not connection.waiting_produces.requests and not elsewhere:
        validated = _check_inline(services, context, request)
    if validated is not None:
        _ask(services, context, request, slot, validated)
    else:
        _check_later(services, context, request, slot)
    return ANSWERED


def _check_later(services: Services, context: RequestContext, request: ProduceRequest, slot: Slot | None) -> None:
    """Look at the batches in a thread, behind those of earlier requests of the connection."""
    size = len(context.frame)
    own_records(context, request)

    def find_batches() -> list[BatchToCheck]:
        return _batches_to_check(services, request)

    def stage(validated: Validated) -> None:
        _ask(services, context, request, slot, validated)

    services.checks.add(context.channel, context.connection.waiting_produces, WaitingProduce(size, find_batches, stage))


def _check_inline(services: Services, context: RequestContext, request: ProduceRequest) -> Validated | None:
    """What becomes of the packed batches; None when they are too much for the loop's thread."""
    connection = context.connection
    batches = _batches_to_check(services, request)
    if not batches:
        return {}
    size = sum(len(batch.data) for batch in batches)
    if size > connection.packed_bytes_inline:
        return None
    if request.transactional_id is not None:
        own_records(context, request)  # the coordinator may have to be asked before they are staged
        batches = _batches_to_check(services, request)
    validated: dict[int, Any] = {}
    for batch in batches:
        try:
            validated[batch.part_id] = batch.check(inline=True)
        except UnpackElsewhere:
            connection.packed_bytes_inline = size - 1
            return None
        except KlammError as error:
            validated[batch.part_id] = error
    return validated


def _batches_to_check(services: Services, request: ProduceRequest) -> list[BatchToCheck]:
    """The batches that are packed, or very large; all others are looked at when they are staged."""
    batches = []
    now_ms = 0
    for topic in request.topic_data:
        for part in topic.partition_data:
            records = part.records
            if records is None or len(records) < HEADER_SIZE:
                continue
            codec = records[CRC_START + 1] & CODEC_MASK
            if not codec and len(records) <= INLINE_BYTES_MAX:
                continue
            replica = _find_replica(services, topic, part.index)
            if replica is None or not replica.leads or codec in replica.log.unchecked_codecs:
                continue
            now_ms = now_ms or services.clock.now_ms()
            batches.append(BatchToCheck(id(part), records, replica.log.config, now_ms, replica.log.name))
    return batches


def own_records(context: RequestContext, request: ProduceRequest) -> None:
    """Copy the records of a request that is not done with this turn: its buffer is lent no longer."""
    if not len(context.frame):
        return  # they are copied already
    context.frame = memoryview(b"")
    for topic in request.topic_data:
        for part in topic.partition_data:
            if part.records is not None:
                part.records = memoryview(bytearray(part.records))


def _ask(
    services: Services, context: RequestContext, request: ProduceRequest, slot: Slot | None, validated: Validated
) -> None:
    """Ask the coordinator of a transaction where that is needed, then stage."""
    question = None
    if request.transactional_id is not None:
        question = produce_transactional.question(services, context.version, request)
    if question is None:
        _stage(services, context, request, slot, validated, {})
        return

    def stage(refused: Mapping[int, KlammError]) -> None:
        _stage(services, context, request, slot, validated, refused)

    own_records(context, request)
    produce_transactional.later(services, question, stage)


def _stage(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    slot: Slot | None,
    validated: Validated,
    refused: Mapping[int, KlammError],
) -> None:
    """Stage what is not refused (by the id of its part of the request) and answer when all of it is settled."""
    steps = _stage_steps(services, context, request, slot, validated, refused)
    if _names_many(request):
        services.checks.go_on(_stage_many(context, steps))
        return
    for _ in steps:
        pass  # within this turn: its buffer is lent no longer


def _names_many(request: ProduceRequest) -> bool:
    """Whether a request is staged in slices: its connection is held meanwhile, and its records are its own."""
    return sum(len(topic.partition_data) for topic in request.topic_data) > SLICE_ELEMENTS


async def _stage_many(context: RequestContext, steps: Steps[None]) -> None:
    """Stage a request of many partitions, for which its connection is held."""
    try:
        await run_in_slices(steps)
    except Exception as error:  # noqa: BLE001 - a bug in one request is no reason to leave its connection held
        log.failure("request failed", error, peer=context.channel.peer_address, api_key=context.api_key)
        context.channel.close("its request failed")
    finally:
        context.channel.release()


def _stage_steps(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    slot: Slot | None,
    validated: Validated,
    refused: Mapping[int, KlammError],
) -> Steps[None]:
    outcomes: list[tuple[Any, list[Outcome]]] = []

    def complete() -> None:
        context.connection.waiters.pop(waiter, None)
        response = _response(services, context, outcomes)
        if slot is not None:
            slot.send(response_parts(context, response))
        else:
            _close_if_refused(context, response)

    waiter = AckWaiter(complete, acks_all=request.acks == ACKS_ALL, gathering=True)
    context.connection.waiters[waiter] = None
    for topic in request.topic_data:
        settled: list[Outcome] = []
        outcomes.append((topic, settled))
        for part in topic.partition_data:
            outcome = _append(services, context, request, topic, part, waiter, validated, refused)
            settled.append(outcome)
            if outcome.pending is not None:
                waiter.add(outcome.pending)
                services.replicas.track(outcome.pending)
            yield 1
        yield 1
    _remember(services, context, request, outcomes)
    waiter.start(services.loop, request.timeout_ms)


def _close_if_refused(context: RequestContext, response: ProduceResponse) -> None:
    """With acks=0 the end of the connection is the only way to tell the producer."""
    refused = [(t, p) for t in response.responses for p in t.partition_responses if p.error_code]
    if refused:
        topic, partition = refused[0]
        name = f"{topic.name or topic.topic_id.hex()}-{partition.index}"
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        reason = ErrorCode(partition.error_code).name
        context.channel.close(f"a Produce with acks=0 was refused: {reason} for {name}{more}")


def _append(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    topic: Any,
    partition: Any,
    waiter: AckWaiter,
    validated: Validated,
    refused: Mapping[int, KlammError],
) -> Outcome:
    response = PartitionProduceResponse(index=partition.index, base_offset=-1)
    outcome = Outcome(response)
    try:
        if refused and id(partition) in refused:
            raise refused[id(partition)]
        replica = _leading_replica(services, topic, partition.index)
        if is_internal(replica.topic) and context.client_id != ADMIN_CLIENT_ID:
            raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {replica.topic}")
        records = partition.records
        _check(context.version, request, replica, records)
        now_ms = services.clock.now_ms()
        batch = validated.get(id(partition))
        if isinstance(batch, KlammError):
            raise batch
        if batch is None:
            base_offset = services.replicas.stage(replica, records, now_ms)
        else:
            base_offset = services.replicas.stage_validated(replica, batch, now_ms)
    except KlammError as error:
        response.error_code = error.code
        response.error_message = error.message
        if error.code in PASSING:
            _note_refused(services, topic, partition, error.code)
        if isinstance(error, RecordRefused):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=r.batch_index, batch_index_error_message=r.message)
                for r in error.records
            ]
        return outcome
    response.base_offset = base_offset
    response.log_start_offset = replica.log.log_start_offset
    if replica.log.config.message_timestamp_type == "LogAppendTime":
        response.log_append_time_ms = now_ms if batch is None else batch.max_timestamp
    outcome.pending = PendingAppend(replica, waiter, replica.log.next_offset, base_offset)
    return outcome


def _note_refused(services: Services, topic: Any, partition: Any, code: ErrorCode) -> None:
    """What the producer has sent behind it must not be taken before it."""
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


def _check(version: int, request: ProduceRequest, replica: Replica, records: Any) -> None:
    if records is None or not len(records):
        raise KlammError(ErrorCode.INVALID_RECORD, "the request has no records for the partition")
    if request.acks == ACKS_ALL and replica.state.under_min_isr:
        raise KlammError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(replica.state.isr)} replicas are in sync, min.insync.replicas is {replica.min_insync_replicas}",
        )
    attributes = records[CRC_START + 1] if len(records) > CRC_START + 2 else 0
    if version < ZSTD_SINCE and attributes & CODEC_MASK == Codec.ZSTD:
        raise KlammError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_SINCE}")
    if attributes & TRANSACTIONAL and request.transactional_id is None:
        raise KlammError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the batch is transactional, the request not")


def _remember(services: Services, context: RequestContext, request: ProduceRequest, outcomes: list[Any]) -> None:
    """A request for one partition that went well may take the short way next time."""
    if len(outcomes) != 1 or len(outcomes[0][1]) != 1:
        return
    pending = outcomes[0][1][0].pending
    if pending is not None and pending.replica.quick:
        records = request.topic_data[0].partition_data[0].records
        produce_quick.remember(services, context, request, pending.replica, records)


def _response(
    services: Services, context: RequestContext, outcomes: list[tuple[Any, list[Outcome]]]
) -> ProduceResponse:
    leaders: set[int] = set()
    topics = []
    for topic, parts in outcomes:
        for outcome in parts:
            _settle(outcome)
            if outcome.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                image = partition_image(services, topic.name, topic.topic_id, outcome.response.index)
                if image is not None:
                    leaders.add(image.leader)
                    outcome.response.current_leader = LeaderIdAndEpoch(
                        leader_id=image.leader, leader_epoch=image.leader_epoch
                    )
        responses = [outcome.response for outcome in parts]
        topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=responses))
    endpoints = node_endpoints(services, context, leaders, NodeEndpoint)
    return ProduceResponse(responses=topics, node_endpoints=endpoints)


def _settle(outcome: Outcome) -> None:
    pending = outcome.pending
    if pending is None or pending.error == ErrorCode.NONE:
        return
    outcome.response.error_code = pending.error
    outcome.response.error_message = pending.message
    outcome.response.base_offset = -1
    outcome.response.log_append_time_ms = -1


def _refuse_all(request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
    topics = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                PartitionProduceResponse(index=p.index, error_code=error, base_offset=-1) for p in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=topics)
