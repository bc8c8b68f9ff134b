"""ListGroups, v0-5: the groups this broker coordinates.

COORDINATOR_LOAD_IN_PROGRESS while one of its shards is being loaded, since the list would be incomplete.
v3 flexible · v4 filter by state · v5 filter by type
"""

from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.server.requests.access.checks import cluster_denied, group_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, ReplyCollector
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> object:
    """Ask every shard that is served here."""
    runtime = services.coordinators.groups
    if runtime.loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    reply = DeferredReply(context, _refuse)

    def decide(shard: GroupShard, _now: Now, reply_to: ReplyTo) -> Decision:
        return shard.list_groups(request.states_filter, request.types_filter, reply_to)

    def finish(responses: list[Any]) -> None:
        # A shard that moved away meanwhile is listed by the broker that coordinates it now.
        groups = [group for response in responses if not isinstance(response, KlammError) for group in response]
        # The right on the cluster shows all groups; without it a listing has those the client may describe.
        if cluster_denied(services, context, AclOperation.DESCRIBE, audit=False):
            groups = [
                group
                for group in groups
                if not group_denied(services, context, AclOperation.DESCRIBE, group.group_id, audit=False)
            ]
        reply(ListGroupsResponse(groups=groups))

    partitions = runtime.active
    collector = ReplyCollector(len(partitions), finish)
    for position, partition in enumerate(partitions):
        runtime.submit(partition, decide, collector.place(position))
    return ANSWERED


def _refuse(code: ErrorCode) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=code)
