"""Heartbeat, v0-4: keeps the session of a member of a classic group alive.

REBALANCE_IN_PROGRESS makes the member join again.
v3 static members · v4 flexible
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.server.coordinators.group_requests import submit
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> object:
    """Restart the member's session timeout."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.heartbeat(request, now, reply_to)

    return submit(services, context, request.group_id, decide, _refuse)


def _refuse(code: ErrorCode) -> HeartbeatResponse:
    # As in Kafka: no session expires while the group is being loaded, so the member may go on.
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)
