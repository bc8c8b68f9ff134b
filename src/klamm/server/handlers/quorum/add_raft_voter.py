"""AddRaftVoter, v0-1: make an observer of the quorum a voter (KIP-853).

Waits within timeout_ms until the new voter has caught up and the change is committed; REQUEST_TIMED_OUT after that.
DUPLICATE_VOTER when its id votes already, UNSUPPORTED_VERSION where voters are fixed (kraft.version 0).
v1 a response that does not wait for the commit (KIP-1186)
"""

from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(services: Services, context: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """Change the voters here; a broker that is not the quorum's leader forwards the request to it."""
    # On a controller listener a member that does not lead refuses: the sender retries with the leader.
    if context.listener.kind == "broker" and not services.raft.is_leader:
        response: AddRaftVoterResponse = await services.quorum.forward(request, AddRaftVoterResponse)
        return response
    return await services.membership.add(request)
