"""BrokerHeartbeat, v0-2: keeps a broker's session alive, unfences it, and lets it shut down.

v1 failed log directories · v2 cordoned ones
"""

from klamm.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import answer_as_controller
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Answer if this node is the active controller, and watch the connection: its end may be that of the broker."""
    response: BrokerHeartbeatResponse = await answer_as_controller(services, context, request)
    # Only an accepted heartbeat: a replaced process with the same broker id must not replace the watched connection.
    if not response.error_code and not context.channel.closed:
        services.controllers.watch.on_heartbeat(request.broker_id, context.connection)
    return response
