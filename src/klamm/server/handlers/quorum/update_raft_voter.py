"""UpdateRaftVoter, v0: the address and feature levels of a voter, sent by itself to the leader (KIP-853).

FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless it names the leader's current epoch.
"""

from klamm.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    """Write the voter's address into the log if it has changed."""
    return await services.membership.update(request)
