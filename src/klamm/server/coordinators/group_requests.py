"""What the handlers of group requests share: from a group's name to its shard, and from a refusal to an answer."""

from collections.abc import Callable
from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.group import Caller
from klamm.model.errors import ErrorCode, KlammError
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services

Decide = Callable[[GroupShard, Now, ReplyTo], Decision]


def submit(
    services: Services, context: RequestContext, group_id: str, decide: Decide, refused: Callable[[ErrorCode], Any]
) -> object:
    """Let the shard of a group decide; `refused` makes an answer of an error."""
    submit_to(services, group_id, decide, DeferredReply(context, refused))
    return ANSWERED


def submit_to(services: Services, group_id: str, decide: Decide, reply_to: ReplyTo) -> None:
    """Let the shard of a group decide and `reply_to` hear of it."""
    runtime = services.coordinators.groups
    try:
        partition = runtime.partition_for(group_id)
    except KlammError as error:
        reply_to(error)
        return
    runtime.submit(partition, decide, reply_to)


def caller_of(context: RequestContext) -> Caller:
    """Who asks, as Kafka writes it into the group's records."""
    return Caller(context.client_id or "", f"/{context.channel.peer_address[0]}", context.version)
