"""DeleteGroups, v0-2: remove groups without members, and their offsets.

NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND when there is no such group.
v2 flexible
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from klamm.server.coordinators.group_requests import submit_all
from klamm.server.requests.access.checks import group_denied
from klamm.server.requests.context import RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> SliceSteps[object]:
    """Ask the shard of every group."""
    # A group that is named twice is deleted and answered once, as in Kafka.
    requested = list(dict.fromkeys(request.groups_names))
    denied = {group_id for group_id in requested if group_denied(services, context, AclOperation.DELETE, group_id)}
    group_ids = [group_id for group_id in requested if group_id not in denied]
    reply = DeferredReply(context, _refuse)

    def decide(group_id: str, shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.delete_groups([group_id], reply_to)

    def finish(responses: list[Any]) -> None:
        results = [_build_result(group_id, response) for group_id, response in zip(group_ids, responses, strict=True)]
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        results += [DeletableGroupResult(group_id=group_id, error_code=code) for group_id in denied]
        reply(DeleteGroupsResponse(results=results))

    return (yield from submit_all(services, group_ids, decide, finish))


def _refuse(_code: ErrorCode) -> DeleteGroupsResponse:
    # The response has no error of its own; errors of groups come with their responses.
    return DeleteGroupsResponse()


def _build_result(group_id: str, response: Any) -> DeletableGroupResult:
    if isinstance(response, KlammError):
        return DeletableGroupResult(group_id=group_id, error_code=ErrorCode(response.code))
    result: DeletableGroupResult = response[0]
    return result
