"""IncrementalAlterConfigs, v0-1: set, delete, append to or subtract from single settings; decided by the controller.

v1 flexible
"""

from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.server.context import RequestContext
from klamm.server.forwarding import decided
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Let the active controller decide."""
    response: IncrementalAlterConfigsResponse = await decided(services, context, request)
    return response
