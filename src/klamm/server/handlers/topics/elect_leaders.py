"""ElectLeaders, v0-2: decided by the controller; answered once the new leaders are known here.

v1 unclean elections, one error for the whole request · v2 flexible
"""

from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Let the active controller decide."""
    response: ElectLeadersResponse = await decided(services, context, request)
    return response
