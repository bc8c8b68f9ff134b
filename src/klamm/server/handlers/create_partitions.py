"""CreatePartitions, v0-3: more partitions for a topic, never fewer; decided by the controller.

v2 flexible
"""

from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.server.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Forward to the controller."""
    return await services.controller.create_partitions(request)
