"""CreatePartitions, v0-3: more partitions for a topic, never fewer; decided by the controller.

v2 flexible
"""

from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Let the active controller decide."""
    response: CreatePartitionsResponse = await decided(services, context, request)
    return response
