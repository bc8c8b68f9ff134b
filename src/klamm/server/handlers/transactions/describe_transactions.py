"""DescribeTransactions, v0: the transactions of some transactional ids, with state and partitions.

Answered by the coordinator of each id; others are NOT_COORDINATOR, unknown ids TRANSACTIONAL_ID_NOT_FOUND. v0 only,
flexible.
"""

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from klamm.server.requests.access.checks import topic_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Ask the shard of every id."""
    return DescribeTransactionsResponse(
        transaction_states=[
            _describe(services, context, transactional_id) for transactional_id in request.transactional_ids
        ]
    )


def _describe(services: Services, context: RequestContext, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return TransactionState(transactional_id=transactional_id, error_code=ErrorCode.INVALID_REQUEST)
    if transactional_id_denied(services, context, AclOperation.DESCRIBE, transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return TransactionState(transactional_id=transactional_id, error_code=code)
    runtime = services.coordinators.transactions.runtime
    try:
        # Read without a decision: nothing changes, and no record has to be committed.
        metadata = runtime.shard(runtime.partition_for(transactional_id)).find(transactional_id)
    except KlammError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    if metadata is None:
        return TransactionState(transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        if not topic_denied(services, context, AclOperation.DESCRIBE, topic, audit=False):
            topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.text,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_timestamp_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
