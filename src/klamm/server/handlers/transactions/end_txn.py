"""EndTxn, v0-5: commit or abort the open transaction.

Answered once PrepareCommit or PrepareAbort is committed; markers follow in the background. A repeated request gets the
answer of the first one, or CONCURRENT_TRANSACTIONS while markers are still being written.
v2 PRODUCER_FENCED · v3 flexible · v4 abortable errors · v5 the producer goes on with the next epoch (KIP-890)
"""

from klamm.coordinator.transactions.rules import Producer
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FENCED_SINCE = 2
BUMPS_SINCE = 5


async def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Decide the end."""
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    transactions = services.coordinators.transactions
    bumps = context.version >= BUMPS_SINCE
    ask = transactions.ask_with_ids if bumps else transactions.ask
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        goes_on: Producer = await ask(
            request.transactional_id,
            lambda shard, now, reply_to: shard.end_transaction(
                request.transactional_id, producer, request.committed, 2 if bumps else 0, now, reply_to
            ),
        )
    except KlammError as error:
        code = error.code
        if context.version < FENCED_SINCE and code == ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(producer_id=goes_on.id, producer_epoch=goes_on.epoch)
