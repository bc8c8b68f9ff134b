"""AlterPartitionReassignments, v0-1: begin, change or take back moves of partitions; the controller decides.

Answered once the move has begun, not when it is over: ListPartitionReassignments tells how far it is.
v0 flexible · v1 a changed replication factor can be forbidden
"""

from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Let the active controller decide."""
    response: AlterPartitionReassignmentsResponse = await decided(services, context, request)
    return response
