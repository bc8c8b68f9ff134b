"""ListPartitionReassignments, v0: the moves under way, as the active controller sees them."""

from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Let the active controller decide."""
    response: ListPartitionReassignmentsResponse = await decided(services, context, request)
    return response
