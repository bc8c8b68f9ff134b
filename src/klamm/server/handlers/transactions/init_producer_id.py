"""InitProducerId, v0-5: an id under which a producer's batches are recognised, so that a retry is no duplicate.

Without a transactional id the response is always a new id at epoch 0. With one, the producer takes the id over: older
producers are fenced, and what the last one left open is aborted first (CONCURRENT_TRANSACTIONS until that is done).
v2 flexible · v3 current id and epoch (KIP-360) · v4 PRODUCER_FENCED · v5 abortable errors (KIP-890)
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.model.acls import AclOperation, AclResourceType
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.server.requests.access.checks import cluster_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FENCED_SINCE = 4


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Allocate an id or take one over; a half-given current identity is refused."""
    # An empty id would be one that all misconfigured producers share.
    if request.transactional_id == "" or (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    denial = _find_denial(services, context, request.transactional_id)
    if denial is not None:
        return InitProducerIdResponse(error_code=denial, producer_epoch=-1)
    try:
        if request.transactional_id is None:
            producer = ProducerIdAndEpoch(await services.producer_ids.allocate(), 0)
        else:
            producer = await _take_over(services, request.transactional_id, request)
    except KlammError as error:
        code = error.code
        if context.version < FENCED_SINCE and code == ErrorCode.PRODUCER_FENCED:
            # Clients before KIP-588 do not know PRODUCER_FENCED.
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch)


def _find_denial(services: Services, context: RequestContext, transactional_id: str | None) -> ErrorCode | None:
    """Return the error for a client without the right; None for one that has it."""
    access = services.access
    if access is None:
        return None
    if transactional_id is not None:
        denied = transactional_id_denied(services, context, AclOperation.WRITE, transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if denied else None
    # KIP-679: a client that may write to any topic may be idempotent.
    if access.allows_any(context, AclOperation.WRITE, AclResourceType.TOPIC):
        return None
    denied = cluster_denied(services, context, AclOperation.IDEMPOTENT_WRITE)
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED if denied else None


async def _take_over(services: Services, transactional_id: str, request: InitProducerIdRequest) -> ProducerIdAndEpoch:
    # KIP-360: a producer that recovers from an error names the id and epoch it has, and keeps the id.
    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if request.producer_id != -1 else None

    def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.init_producer_id(transactional_id, request.transaction_timeout_ms, expected, now, reply_to)

    producer: ProducerIdAndEpoch = await services.coordinators.transactions.submit_with_ids(transactional_id, decide)
    return producer
