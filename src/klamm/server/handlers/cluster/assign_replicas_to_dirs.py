"""AssignReplicasToDirs, v0: a broker tells which of its log directories hold which replicas (KIP-858)."""

from klamm.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import controller_answer
from klamm.server.services import Services


async def handle(
    services: Services, context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """Answer if this node is the active controller."""
    response: AssignReplicasToDirsResponse = await controller_answer(services, request, context.version)
    return response
