"""AlterPartition, v2-3: a leader proposes a new ISR, fenced by its broker epoch and the partition's epoch.

v3 brings the broker epochs of the new ISR's members
"""

from klamm.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import controller_answer
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Answer if this node is the active controller."""
    response: AlterPartitionResponse = await controller_answer(services, request, context.version)
    return response
