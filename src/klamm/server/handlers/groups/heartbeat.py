"""Heartbeat, v0-4: a classic group's sign of life.

REBALANCE_IN_PROGRESS asks the member to join anew; while the group is being loaded the answer is that all is well.
v3 static members · v4 flexible
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.server.coordinators.group_requests import submit
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> object:
    """Keep the member alive."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    return submit(
        services,
        context,
        request.group_id,
        lambda shard, now, reply_to: shard.heartbeat(request, now, reply_to),
        _refused,
    )


def _refused(code: ErrorCode) -> HeartbeatResponse:
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)
