"""LeaveGroup, v0-5: leave a classic group without waiting for the session to end.

Up to v2 one member leaves and the error is the response's; from v3 each of several has its own.
v3 many members, static ones by instance id · v4 flexible · v5 reason
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> object:
    """Remove members from the group."""
    if not request.group_id:
        return _refuse(ErrorCode.INVALID_GROUP_ID)
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return _refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if context.version < 3:
        # The shard has only the form of v3, with a list of members.
        request.members = [MemberIdentity(member_id=request.member_id)]
    reply = DeferredReply(context, _refuse)

    def send_reply(response: Any) -> None:
        if context.version < 3 and isinstance(response, LeaveGroupResponse) and response.members:
            # Up to v2 the response has no list of members.
            response.error_code = response.error_code or response.members[0].error_code
        reply(response)

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.leave(request, now, reply_to)

    submit_to(services, request.group_id, decide, send_reply)
    return ANSWERED


def _refuse(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)
