"""FetchSnapshot, v0-1: a piece of a metadata snapshot for a member whose position has left the log.

SNAPSHOT_NOT_FOUND when it was replaced meanwhile: the member fetches again and hears of the newer one.
v1 directory ids and leader endpoints
"""

from klamm.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, _context: RequestContext, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    """Let the quorum's own rules decide."""
    response: FetchSnapshotResponse = await services.quorum.serve(request)
    return response
