"""RemoveRaftVoter, v0: let a controller vote no more (KIP-853).

VOTER_NOT_FOUND unless both its id and its directory id vote; the last voter cannot be removed.
"""

from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Change the quorum here, or have its leader do it."""
    if context.listener.kind == "broker" and not services.raft.is_leader:
        answer: RemoveRaftVoterResponse = await services.quorum.forward(request, RemoveRaftVoterResponse)
        return answer
    return await services.membership.remove(request)
