"""Hands group requests to the shard that coordinates the group, and turns its refusals into responses."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.group import Caller
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.server.requests.access.checks import topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply, ReplyCollector
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services

DecideForGroup = Callable[[GroupShard, Now, ReplyTo], Decision]


def submit(
    services: Services,
    context: RequestContext,
    group_id: str,
    decide: DecideForGroup,
    refuse: Callable[[ErrorCode], Any],
) -> object:
    """Let the shard of a group decide and reply to the request; `refuse` makes a response of an error."""
    submit_to(services, group_id, decide, DeferredReply(context, refuse))
    return ANSWERED


def submit_to(services: Services, group_id: str, decide: DecideForGroup, reply_to: ReplyTo) -> None:
    """Let the shard of a group decide; `reply_to` gets its response or a KlammError."""
    runtime = services.coordinators.groups
    try:
        partition = runtime.partition_for(group_id)
    except KlammError as error:
        reply_to(error)
        return
    runtime.submit(partition, decide, reply_to)


def submit_all(
    services: Services,
    group_ids: Sequence[str],
    decide: Callable[[str, GroupShard, Now, ReplyTo], Decision],
    finish: Callable[[list[Any]], None],
) -> SliceSteps[object]:
    """Let the shard of every group decide; `finish` gets all answers at once, in the order of `group_ids`."""
    collector = ReplyCollector(len(group_ids), finish)
    for position, group_id in enumerate(group_ids):
        submit_to(services, group_id, partial(decide, group_id), collector.place(position))
        yield 1
    return ANSWERED


def build_caller(services: Services, context: RequestContext) -> Caller:
    """Return the client as Kafka writes it into the group's records."""
    may_describe = None if services.access is None else partial(_may_describe, services, context)
    # Kafka's host is Java's InetAddress.toString(), which puts a slash before the address.
    return Caller(context.client_id or "", f"/{context.channel.peer_address[0]}", context.version, may_describe)


def _may_describe(services: Services, context: RequestContext, topic: str) -> bool:
    return not topic_denied(services, context, AclOperation.DESCRIBE, topic, audit=False)
