"""DescribeGroups, v0-6: classic groups with their members.

A group nobody knows is GROUP_ID_NOT_FOUND in v6 and a dead group before.
v3 authorized operations · v4 static members · v5 flexible · v6 error message
"""

from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.authorized_operations import GROUP_OPERATIONS
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, Gathering
from klamm.server.requests.slices import Steps
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: DescribeGroupsRequest) -> Steps[object]:
    """Ask the shard of every group."""
    version = context.version
    reply = DeferredReply(context, lambda _: DescribeGroupsResponse())

    def done(answers: list[Any]) -> None:
        described = [_one(group_id, answer) for group_id, answer in zip(request.groups, answers, strict=True)]
        if request.include_authorized_operations:
            for group in described:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        reply(DescribeGroupsResponse(groups=described))

    gathering = Gathering(len(request.groups), done)
    for i, group_id in enumerate(request.groups):
        submit_to(
            services,
            group_id,
            lambda shard, _, reply_to, group_id=group_id: shard.describe([group_id], version, reply_to),  # type: ignore[misc]
            gathering.place(i),
        )
        yield 1
    return ANSWERED


def _one(group_id: str, answer: Any) -> DescribedGroup:
    if isinstance(answer, KlammError):
        return DescribedGroup(group_id=group_id, error_code=ErrorCode(answer.code))
    found: DescribedGroup = answer[0]
    return found
