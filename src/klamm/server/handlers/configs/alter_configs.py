"""AlterConfigs, v0-2: replace all settings of a topic or broker; the older, coarser way. Decided by the controller.

v2 flexible
"""

from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Let the active controller decide."""
    response: AlterConfigsResponse = await decided(services, context, request)
    return response
