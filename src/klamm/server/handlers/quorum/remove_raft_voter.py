"""RemoveRaftVoter, v0: make a voter of the quorum an observer (KIP-853).

VOTER_NOT_FOUND unless both its id and its directory id are those of a voter; the last voter cannot be removed.
"""

from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Change the voters here; a broker that is not the quorum's leader forwards the request to it."""
    if context.listener.kind == "broker" and not services.raft.is_leader:
        response: RemoveRaftVoterResponse = await services.quorum.forward(request, RemoveRaftVoterResponse)
        return response
    return await services.membership.remove(request)
