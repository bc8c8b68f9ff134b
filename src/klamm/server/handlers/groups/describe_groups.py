"""DescribeGroups, v0-6: classic groups with their members.

An unknown group is GROUP_ID_NOT_FOUND in v6 and a dead group in older versions.
v3 authorized operations · v4 static members · v5 flexible · v6 error message
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from klamm.server.coordinators.group_requests import submit_all
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.access.operations import group_operations
from klamm.server.requests.context import RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services

_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED


def handle(services: Services, context: RequestContext, request: DescribeGroupsRequest) -> SliceSteps[object]:
    """Ask the shard of every group."""
    version = context.version
    denied = {
        group_id for group_id in request.groups if group_denied(services, context, AclOperation.DESCRIBE, group_id)
    }
    allowed = [group_id for group_id in request.groups if group_id not in denied]
    reply = DeferredReply(context, _refuse)

    def decide(group_id: str, shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.describe([group_id], version, reply_to)

    def finish(responses: list[Any]) -> None:
        described = [_describe_group(group_id, response) for group_id, response in zip(allowed, responses, strict=True)]
        if request.include_authorized_operations:
            for group in described:
                if not group.error_code:
                    group.authorized_operations = group_operations(services, context, group.group_id)
        described += [_describe_group(group_id, KlammError(_DENIED)) for group_id in denied]
        reply(DescribeGroupsResponse(groups=described))

    return (yield from submit_all(services, allowed, decide, finish))


def _refuse(_code: ErrorCode) -> DescribeGroupsResponse:
    # The response has no error of its own; errors of groups come with their responses.
    return DescribeGroupsResponse()


def _describe_group(group_id: str, response: Any) -> DescribedGroup:
    if isinstance(response, KlammError):
        return DescribedGroup(group_id=group_id, error_code=ErrorCode(response.code))
    group: DescribedGroup = response[0]
    return group
