"""DeleteGroups, v0-2: remove groups without members, and their offsets.

NON_EMPTY_GROUP while somebody is in it, GROUP_ID_NOT_FOUND when there is no such group.
v2 flexible
"""

from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from klamm.server.coordinators.group_requests import submit_to
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, Gathering
from klamm.server.requests.slices import Steps
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> Steps[object]:
    """Ask the shard of every group, each once."""
    names = list(dict.fromkeys(request.groups_names))
    reply = DeferredReply(context, lambda _: DeleteGroupsResponse())

    def done(answers: list[Any]) -> None:
        reply(DeleteGroupsResponse(results=[_one(name, a) for name, a in zip(names, answers, strict=True)]))

    gathering = Gathering(len(names), done)
    for i, name in enumerate(names):
        submit_to(
            services,
            name,
            lambda shard, _, reply_to, name=name: shard.delete_groups([name], reply_to),  # type: ignore[misc]
            gathering.place(i),
        )
        yield 1
    return ANSWERED


def _one(group_id: str, answer: Any) -> DeletableGroupResult:
    if isinstance(answer, KlammError):
        return DeletableGroupResult(group_id=group_id, error_code=ErrorCode(answer.code))
    found: DeletableGroupResult = answer[0]
    return found
