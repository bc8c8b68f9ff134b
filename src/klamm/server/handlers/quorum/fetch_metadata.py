"""Fetch of `__cluster_metadata` on a controller listener: how voters and observers replicate the metadata log.

The offset asked for tells the leader how far the replica is. Any other topic is INVALID_REQUEST here.
v12 divergence by epoch, snapshot ids · v13 topic ids · v17 directory ids · v18 a high watermark that moved is news
"""

from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, _context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Let the quorum's own rules decide."""
    response: FetchResponse = await services.quorum.serve(request)
    return response
