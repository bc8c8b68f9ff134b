"""IncrementalAlterConfigs, v0-1: set, delete, append to or subtract from single settings; decided by the controller.

v1 flexible
"""

from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.server.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Forward to the controller."""
    return await services.controller.incremental_alter_configs(request)
