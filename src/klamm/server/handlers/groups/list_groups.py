"""ListGroups, v0-5: the groups this broker coordinates.

COORDINATOR_LOAD_IN_PROGRESS while one of its shards is being loaded, since the list would not be whole.
v3 flexible · v4 filter by state · v5 filter by type
"""

from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, Gathering
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> object:
    """Ask every shard that is served here."""
    runtime = services.coordinators.groups
    if runtime.loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    reply = DeferredReply(context, lambda code: ListGroupsResponse(error_code=code))

    def done(answers: list[Any]) -> None:
        # A shard that moved away meanwhile is another broker's to list.
        reply(ListGroupsResponse(groups=[g for a in answers if not isinstance(a, KlammError) for g in a]))

    partitions = runtime.active
    gathering = Gathering(len(partitions), done)
    for i, partition in enumerate(partitions):
        runtime.submit(
            partition,
            lambda shard, _, reply_to: shard.list_groups(request.states_filter, request.types_filter, reply_to),
            gathering.place(i),
        )
    return ANSWERED
