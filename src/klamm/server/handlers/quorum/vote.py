"""Vote, v0-2: a candidate asks this member of the quorum for its vote.

One vote per epoch, to a log at least as good as ours; a pre-vote promises nothing and is refused while a leader lives.
v1 directory ids, INVALID_VOTER_KEY for another replica · v2 pre-vote (KIP-996)
"""

from klamm.protocol.messages.vote import VoteRequest, VoteResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, _context: RequestContext, request: VoteRequest) -> VoteResponse:
    """Let the quorum's own rules decide."""
    response: VoteResponse = await services.quorum.serve(request)
    return response
