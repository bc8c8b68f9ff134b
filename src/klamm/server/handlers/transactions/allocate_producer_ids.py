"""AllocateProducerIds, v0: a block of producer ids nobody was given before."""

from klamm.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import controller_answer
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Answer if this node is the active controller."""
    response: AllocateProducerIdsResponse = await controller_answer(services, request, context.version)
    return response
