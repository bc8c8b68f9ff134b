"""TxnOffsetCommit, v0-5: store a group's offsets inside a transaction; they count when it is committed.

The group's partition must belong to the open transaction: AddOffsetsToTxn has added it, or from v5 it is added here.
v2 leader epoch · v3 flexible, the member is checked · v4 abortable errors · v5 the broker adds the group's partition
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from klamm.server.coordinators.transaction_gate import Abilities, UnverifiedBatch
from klamm.server.requests.access.checks import group_denied, topic_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

ADDS_SINCE = 5
ABORTABLE_SINCE = 4
LOADING_SINCE = 2


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Check that the transaction is open, then let the group decide."""
    denial = _find_denial(services, context, request)
    if denial is not None:
        return TxnOffsetCommitResponse(topics=[_refuse_topic(topic, denial) for topic in request.topics])
    known, refused = _split_unknown(services, context, request)
    if not known:
        return TxnOffsetCommitResponse(topics=refused)
    request.topics, requested = known, request.topics
    try:
        response = await _commit(services, context, request)
    except KlammError as error:
        code = _translate_code(error.code, context.version)
        response = TxnOffsetCommitResponse(topics=[_refuse_topic(topic, code) for topic in known])
    codes: dict[tuple[str, int], int] = {}
    for topic in (*response.topics, *refused):
        for partition in topic.partitions:
            codes[topic.name, partition.partition_index] = partition.error_code
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=codes[topic.name, p.partition_index]
                    )
                    for p in topic.partitions
                ],
            )
            for topic in requested
        ]
    )


def _find_denial(services: Services, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode | None:
    """Return the error for a client without the right on transactional id or group; None for one that has both."""
    if transactional_id_denied(services, context, AclOperation.WRITE, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


async def _commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not request.group_id:
        raise KlammError(ErrorCode.INVALID_GROUP_ID)
    groups, gate = services.coordinators.groups, services.coordinators.transactions.gate
    partition = groups.partition_for(request.group_id)
    groups.shard(partition)  # raises unless this node coordinates the group
    replica = services.replicas.find(groups.topic, partition)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    abilities = Abilities(context.version >= ADDS_SINCE, context.version >= ABORTABLE_SINCE)
    if replica is None:
        raise KlammError(ErrorCode.NOT_COORDINATOR)
    if gate.must_ask(replica, producer, abilities):
        # Offsets have no sequence numbers of their own: 0 is the lowest, so no order is enforced.
        batch = UnverifiedBatch(replica, producer, 0)
        refused = await gate.admit(request.transactional_id, [batch], abilities)
        if refused:
            raise refused[batch.partition]

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        decision = shard.commit_transactional_offsets(request, context.version, now, reply_to)
        # The shard has staged the offsets, so the transaction is open in the partition of the group.
        gate.on_written(replica, producer.id)
        return decision

    response: TxnOffsetCommitResponse = await groups.submit_and_wait(partition, decide)
    return response


def _translate_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the code that clients of this API expect for an error of the partition's leader."""
    if code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _split_unknown(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> tuple[list[TxnOffsetCommitRequestTopic], list[TxnOffsetCommitResponseTopic]]:
    """Return the partitions that exist and may be read, and results for the others."""
    known, refused = [], []
    for topic in request.topics:
        if topic_denied(services, context, AclOperation.READ, topic.name, count=len(topic.partitions)):
            refused.append(_refuse_topic(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        existing = [
            partition
            for partition in topic.partitions
            if services.image.topics.partition(topic.name, partition.partition_index)
        ]
        missing = [partition for partition in topic.partitions if partition not in existing]
        if existing:
            known.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=existing))
        if missing:
            unknown = TxnOffsetCommitRequestTopic(name=topic.name, partitions=missing)
            refused.append(_refuse_topic(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return known, refused


def _refuse_topic(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    partitions = [
        TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code) for p in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)
