"""CreateTopics, v2-7: decided by the controller; answered once this broker knows of the topics (`publishers`).

v5 flexible, returns partitions, replication factor and settings · v7 returns the topic id
"""

from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import decided
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Let the active controller decide."""
    response: CreateTopicsResponse = await decided(services, context, request)
    return response
