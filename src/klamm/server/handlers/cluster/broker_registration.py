"""BrokerRegistration, v0-4: a broker's process makes itself known; answered once its registration is committed.

v2 log directories · v3 the epoch of the process before, which tells a clean stop from a crash
"""

from klamm.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import controller_answer
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    """Answer if this node is the active controller."""
    response: BrokerRegistrationResponse = await controller_answer(services, request, context.version)
    return response
