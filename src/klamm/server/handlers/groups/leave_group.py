"""LeaveGroup, v0-5: leave a classic group without waiting for the session to end.

Up to v2 one member leaves and the error is the answer's; from v3 each of several has its own.
v3 many members, static ones by instance id · v4 flexible · v5 reason
"""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> object:
    """Take members out."""
    if not request.group_id:
        return _refused(ErrorCode.INVALID_GROUP_ID)
    if context.version < 3:
        request.members = [MemberIdentity(member_id=request.member_id)]
    reply = DeferredReply(context, _refused)

    def answer(response: Any) -> None:
        if context.version < 3 and isinstance(response, LeaveGroupResponse) and response.members:
            response.error_code = response.error_code or response.members[0].error_code
        reply(response)

    submit_to(services, request.group_id, lambda shard, now, reply_to: shard.leave(request, now, reply_to), answer)
    return ANSWERED


def _refused(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)
