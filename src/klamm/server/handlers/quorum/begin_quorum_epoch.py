"""BeginQuorumEpoch, v0-1: a new leader of the quorum makes itself known to a voter that has not fetched from it.

v1 flexible, directory ids and the leader's address
"""

from klamm.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse:
    """Let the quorum's own rules decide."""
    response: BeginQuorumEpochResponse = await services.quorum.serve(request)
    return response
