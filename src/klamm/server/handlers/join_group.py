"""JoinGroup, v0-9: become a member of a classic group and wait for its next generation.

Answered when the generation begins, which may take as long as the rebalance timeout. From v4 a member without an id is
given one first (MEMBER_ID_REQUIRED) and must come back with it.
v1 rebalance timeout · v5 static members · v6 flexible · v7 protocol type · v8 reason · v9 skip assignment (KIP-814)
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.server.context import RequestContext
from klamm.server.handlers.groups import caller_of, submit
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: JoinGroupRequest) -> object:
    """Let the member wait for the next generation."""

    def refused(code: ErrorCode) -> JoinGroupResponse:
        return JoinGroupResponse(error_code=code, member_id=request.member_id)

    if not request.group_id:
        return refused(ErrorCode.INVALID_GROUP_ID)
    if context.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    caller = caller_of(context)
    return submit(
        services,
        context,
        request.group_id,
        lambda shard, now, reply_to: shard.join(request, caller, now, reply_to),
        refused,
    )
