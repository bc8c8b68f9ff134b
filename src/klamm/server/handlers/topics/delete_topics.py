"""DeleteTopics, v1-6: decided by the controller; the files go in the background.

v4 flexible · v5 error texts · v6 by topic id
"""

from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Let the active controller decide."""
    response: DeleteTopicsResponse = await decided(services, context, request)
    return response
