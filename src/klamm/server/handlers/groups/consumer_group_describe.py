"""ConsumerGroupDescribe, v0-1: consumer groups with their members, current and target assignments.

A group that does not exist, or is a classic one, is GROUP_ID_NOT_FOUND.
v1 type of each member
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from klamm.server.coordinators.group_requests import submit_all
from klamm.server.handlers.groups.consumer_group_heartbeat import serves_consumer_groups
from klamm.server.requests.access.checks import group_denied, topic_denied
from klamm.server.requests.access.operations import group_operations
from klamm.server.requests.access.refusals import DENIALS
from klamm.server.requests.context import RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest) -> SliceSteps[object]:
    """Ask the shard of every group."""
    if not serves_consumer_groups(services):
        code = ErrorCode.UNSUPPORTED_VERSION
        groups = [DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
        return ConsumerGroupDescribeResponse(groups=groups)
    denied = {
        group_id for group_id in request.group_ids if group_denied(services, context, AclOperation.DESCRIBE, group_id)
    }
    allowed = [group_id for group_id in request.group_ids if group_id not in denied]
    reply = DeferredReply(context, _refuse)

    def decide(group_id: str, shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.describe_consumer_groups([group_id], reply_to)

    def finish(responses: list[Any]) -> None:
        described = [
            _hide_topics(services, context, _describe_group(group_id, response))
            for group_id, response in zip(allowed, responses, strict=True)
        ]
        if request.include_authorized_operations:
            for group in described:
                if not group.error_code:
                    group.authorized_operations = group_operations(services, context, group.group_id)
        described += [
            DescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
                error_message=DENIALS[ErrorCode.GROUP_AUTHORIZATION_FAILED],
            )
            for group_id in denied
        ]
        reply(ConsumerGroupDescribeResponse(groups=described))

    return (yield from submit_all(services, allowed, decide, finish))


def _hide_topics(services: Services, context: RequestContext, group: DescribedGroup) -> DescribedGroup:
    """Refuse to describe a group whose members have topics that the client may not describe."""
    if services.access is None:
        return group
    topics = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    if not any(topic_denied(services, context, AclOperation.DESCRIBE, name, audit=False) for name in topics):
        return group
    return DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )


def _refuse(_code: ErrorCode) -> ConsumerGroupDescribeResponse:
    # The response has no error of its own; errors of groups come with their responses.
    return ConsumerGroupDescribeResponse()


def _describe_group(group_id: str, response: Any) -> DescribedGroup:
    if isinstance(response, KlammError):
        return DescribedGroup(group_id=group_id, error_code=response.code, error_message=str(response))
    group: DescribedGroup = response[0]
    return group
