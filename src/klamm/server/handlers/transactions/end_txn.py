"""EndTxn, v0-5: commit or abort the open transaction.

Answered once PrepareCommit or PrepareAbort is committed; markers follow in the background. A repeated request gets the
response of the first one, or CONCURRENT_TRANSACTIONS while markers are still being written.
v2 PRODUCER_FENCED · v3 flexible · v4 abortable errors · v5 the producer goes on with the next epoch (KIP-890)
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.transactions import TransactionShard
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.coordinator.transactions.state import epoch_exhausted
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.server.requests.access.checks import transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FENCED_SINCE = 2
BUMPS_SINCE = 5


async def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Decide whether the transaction is committed or aborted."""
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if transactional_id_denied(services, context, AclOperation.WRITE, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    transactions = services.coordinators.transactions
    bumps = context.version >= BUMPS_SINCE
    # Only the last epoch needs a new producer id: any other transaction must end although no controller can be reached,
    # or it times out while it waits for a block of ids.
    needs_id = bumps and epoch_exhausted(request.producer_epoch)
    submit = transactions.submit_with_ids if needs_id else transactions.submit_and_wait
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def decide(shard: TransactionShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.end_transaction(
            # Transaction version 2 ends every transaction with a new epoch, so that late batches are fenced.
            request.transactional_id,
            producer,
            request.committed,
            2 if bumps else 0,
            now,
            reply_to,
        )

    try:
        next_producer: ProducerIdAndEpoch = await submit(request.transactional_id, decide)
    except KlammError as error:
        code = error.code
        if context.version < FENCED_SINCE and code == ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(producer_id=next_producer.id, producer_epoch=next_producer.epoch)
