"""UpdateRaftVoter, v0: a voter tells the quorum's leader where it listens now (KIP-853).

Sent by voters themselves, for the leader's present epoch; FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH for another.
"""

from klamm.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


async def handle(
    services: Services, _context: RequestContext, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    """Write the voter's address into the log when it is another than before."""
    return await services.membership.update(request)
