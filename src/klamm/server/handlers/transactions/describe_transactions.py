"""DescribeTransactions, v0: how far the transactions of some transactional ids have come."""

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(
    services: Services, _context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Ask the shard of every id."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(services, transactional_id) for transactional_id in request.transactional_ids]
    )


def _describe(services: Services, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return TransactionState(transactional_id=transactional_id, error_code=ErrorCode.INVALID_REQUEST)
    runtime = services.coordinators.transactions.runtime
    try:
        found = runtime.shard(runtime.partition_for(transactional_id)).find(transactional_id)
    except KlammError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    if found is None:
        return TransactionState(transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.text,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_timestamp_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
