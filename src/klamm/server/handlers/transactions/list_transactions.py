"""ListTransactions, v0-2: the transactions this node coordinates, by state, producer, duration or name.

v1 filter by duration · v2 filter by a pattern of ids, which matches the whole id
"""

from klamm.coordinator.groups.consumer.pattern import InvalidPattern, Pattern
from klamm.coordinator.transactions.state import DEAD, STATES_BY_NAME, TransactionMetadata
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from klamm.server.requests.access.checks import transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List the matching transactions of every shard on this node."""
    runtime = services.coordinators.transactions.runtime
    # As ListGroups: the list of this broker would be incomplete.
    if runtime.loading:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = Pattern(request.transactional_id_pattern)
        except InvalidPattern:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    # Unknown states are reported back, not refused, as in Kafka.
    unknown = [name for name in request.state_filters if name not in STATES_BY_NAME]
    states = {STATES_BY_NAME[name] for name in request.state_filters if name in STATES_BY_NAME}
    producers = frozenset(request.producer_id_filters)
    now_ms = services.clock.now_ms()

    def matches(metadata: TransactionMetadata) -> bool:
        return (
            metadata.state is not DEAD
            and (not request.state_filters or metadata.state in states)
            and (not producers or metadata.producer_id in producers)
            and (request.duration_filter < 0 or now_ms - metadata.start_timestamp_ms > request.duration_filter)
            and (pattern is None or pattern.matches(metadata.transactional_id))
            and not transactional_id_denied(
                services, context, AclOperation.DESCRIBE, metadata.transactional_id, audit=False
            )
        )

    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(
                transactional_id=metadata.transactional_id,
                producer_id=metadata.producer_id,
                transaction_state=metadata.state.text,
            )
            for partition in runtime.active
            for metadata in runtime.shard(partition)
            if matches(metadata)
        ],
    )
