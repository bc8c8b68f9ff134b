"""AddOffsetsToTxn, v0-4: make a group's offsets part of a transaction.

What is added is the partition of `__consumer_offsets` that keeps the group: it gets a marker like every other.
v1 quota applied after the response · v2 PRODUCER_FENCED · v3 flexible · v4 abortable errors (KIP-890)
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.server.requests.access.checks import group_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FENCED_SINCE = 2
GROUP = 0
"""The coordinator type of groups in FindCoordinator."""


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the group's partition to the open transaction, which it begins if there is none."""
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if transactional_id_denied(services, context, AclOperation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    groups = services.coordinators.groups
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.add_partitions(request.transactional_id, producer, partitions, 0, now, reply_to)

    try:
        # A producer sends this before it looks for the group's coordinator, which is what creates the topic.
        if not groups.partitions:
            await services.coordinators.find(GROUP, request.group_id)
        partitions = frozenset({TopicPartition(groups.topic, groups.partition_for(request.group_id))})
        await services.coordinators.transactions.submit_when_free(request.transactional_id, decide)
    except KlammError as error:
        code = error.code
        if context.version < FENCED_SINCE and code == ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return AddOffsetsToTxnResponse(error_code=code)
    return AddOffsetsToTxnResponse()
