"""EndQuorumEpoch, v0-1: the quorum's leader steps down, so that its successor stands at once.

v1 flexible, candidates with directory ids
"""

from klamm.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    """Let the quorum's own rules decide."""
    response: EndQuorumEpochResponse = await services.quorum.serve(request)
    return response
