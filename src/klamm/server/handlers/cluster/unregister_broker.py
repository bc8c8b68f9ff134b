"""UnregisterBroker, v0: forget a broker that will not come back; the controller decides."""

from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Let the active controller decide."""
    response: UnregisterBrokerResponse = await decided(services, context, request)
    return response
