"""BrokerHeartbeat, v0-2: keeps a broker's session, lets it in and out of service.

v1 failed log directories · v2 cordoned ones
"""

from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import answer_as_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Answer if this node is the active controller; from then on the connection's end means something."""
    response: BrokerHeartbeatResponse = await answer_as_controller(services, context, request)
    if not response.error_code and not context.channel.closed:
        services.controllers.watch.heard(request.broker_id, context.connection)
    return response
