"""AlterConfigs, v0-2: replace all settings of a topic or broker; the older, coarser way. Decided by the controller.

v2 flexible
"""

from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.server.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, _context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Forward to the controller."""
    return await services.controller.alter_configs(request)
