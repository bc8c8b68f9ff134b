"""JoinGroup, v0-9: become a member of a classic group and wait for its next generation.

Answered when the generation begins, which may take as long as the rebalance timeout. From v4 a member without an id
gets one with MEMBER_ID_REQUIRED and joins again with it (KIP-394).
v1 rebalance timeout · v5 static members · v6 flexible · v7 protocol type · v8 reason · v9 skip assignment (KIP-814)
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.server.coordinators.group_requests import build_caller, submit_to
from klamm.server.handlers.groups.rebalance_replies import encode_join_reply
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services

NULL_PROTOCOL_SINCE = 7


def handle(services: Services, context: RequestContext, request: JoinGroupRequest) -> object:
    """Submit the join; the reply waits for the next generation."""

    def refuse(code: ErrorCode) -> JoinGroupResponse:
        return JoinGroupResponse(error_code=code, member_id=request.member_id)

    if not request.group_id:
        return _set_no_protocol(context.version, refuse(ErrorCode.INVALID_GROUP_ID))
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return _set_no_protocol(context.version, refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if context.version == 0:
        # v0 has one timeout for both.
        request.rebalance_timeout_ms = request.session_timeout_ms
    caller = build_caller(services, context)
    reply = DeferredReply(context, refuse)

    def send_reply(response: Any) -> None:
        if isinstance(response, KlammError):
            response = refuse(response.code)
        _set_no_protocol(caller.version, response)
        # Only the leader's response lists members; all others differ in one field and come from a template.
        if response.error_code or response.members:
            reply(response)
        else:
            reply.send(encode_join_reply(context.correlation_id, caller.version, response))

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.join(request, caller, now, reply_to)

    submit_to(services, request.group_id, decide, send_reply)
    return ANSWERED


def _set_no_protocol(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    """Write the absence of a protocol as the version does: an empty string up to v6, null from v7 on."""
    response.protocol_name = response.protocol_name or (None if version >= NULL_PROTOCOL_SINCE else "")
    return response
