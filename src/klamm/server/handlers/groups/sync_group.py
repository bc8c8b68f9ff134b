"""SyncGroup, v0-5: hand out the assignment of a new generation.

The leader's request carries everybody's assignment; the others wait for it. It is stored before anybody is answered.
v3 static members · v4 flexible · v5 protocol type and name are checked
"""

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.server.coordinators.group_requests import submit
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: SyncGroupRequest) -> object:
    """Let the member wait for its assignment."""
    if not request.group_id:
        return _refused(ErrorCode.INVALID_GROUP_ID)
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return submit(
        services,
        context,
        request.group_id,
        lambda shard, now, reply_to: shard.sync(request, now, reply_to),
        _refused,
    )


def _refused(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)
