"""ConsumerGroupDescribe, v0-1: consumer groups with their members, what they have and what they should have.

A group that does not exist, or is a classic one, is GROUP_ID_NOT_FOUND.
v1 type of each member
"""

from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.handlers.groups.consumer_group_heartbeat import serves_consumer_groups
from klamm.server.requests.authorized_operations import GROUP_OPERATIONS
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, Gathering
from klamm.server.requests.slices import Steps
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Steps[object]:
    """Ask the shard of every group."""
    if not serves_consumer_groups(services):
        code = ErrorCode.UNSUPPORTED_VERSION
        groups = [DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
        return ConsumerGroupDescribeResponse(groups=groups)
    reply = DeferredReply(context, lambda _: ConsumerGroupDescribeResponse())

    def done(answers: list[Any]) -> None:
        described = [_one(group_id, answer) for group_id, answer in zip(request.group_ids, answers, strict=True)]
        if request.include_authorized_operations:
            for group in described:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        reply(ConsumerGroupDescribeResponse(groups=described))

    gathering = Gathering(len(request.group_ids), done)
    for i, group_id in enumerate(request.group_ids):
        submit_to(
            services,
            group_id,
            lambda shard, _, reply_to, group_id=group_id: shard.describe_consumer_groups([group_id], reply_to),  # type: ignore[misc]
            gathering.place(i),
        )
        yield 1
    return ANSWERED


def _one(group_id: str, answer: Any) -> DescribedGroup:
    if isinstance(answer, KlammError):
        return DescribedGroup(group_id=group_id, error_code=answer.code, error_message=str(answer))
    found: DescribedGroup = answer[0]
    return found
