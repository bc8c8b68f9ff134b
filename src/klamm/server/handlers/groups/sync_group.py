"""SyncGroup, v0-5: hand out the assignment of a new generation.

The leader's request carries the assignments of all members; the other members wait for it. They are stored before any
member is answered.
v3 static members · v4 flexible · v5 protocol type and name are checked
"""

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.classic.syncing import FollowerSync
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.server.coordinators.group_requests import submit
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

PROTOCOL_REQUIRED_SINCE = 5


def handle(services: Services, context: RequestContext, request: SyncGroupRequest) -> object:
    """Answer the member with its assignment once the leader has sent it."""
    code = check_request(request, context.version)
    if code:
        return _refuse(code)
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return _refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.sync(request, now, reply_to)

    return submit(services, context, request.group_id, decide, _refuse)


def check_request(request: SyncGroupRequest | FollowerSync, version: int) -> ErrorCode:
    """Return the error of a request that no group can accept, or NONE."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    # KIP-559: from v5 null is refused, as in Kafka.
    if version >= PROTOCOL_REQUIRED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _refuse(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)
