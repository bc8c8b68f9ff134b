"""ConsumerGroupHeartbeat, v0-1: join, stay in, acknowledge in and leave a consumer group (KIP-848).

Every request is answered once what it changed is committed; no member waits for others.
v1 the client generates its member id (KIP-1082), subscription by pattern
"""

from typing import Any

from klamm.controller.context import GROUP_VERSION
from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupShard
from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.server.coordinators.group_requests import build_caller, submit_to
from klamm.server.requests.access.checks import group_denied, topic_denied
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.deferred_reply import DeferredReply
from klamm.server.services import Services


def handle(services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> object:
    """Let the group's shard take the member's next step."""
    # UNSUPPORTED_VERSION is what Kafka answers; clients then fail instead of retrying.
    if not serves_consumer_groups(services):
        return _refuse(KlammError(ErrorCode.UNSUPPORTED_VERSION, "consumer groups are not enabled: group.version"))
    if not request.group_id:
        return _refuse(KlammError(ErrorCode.INVALID_REQUEST, "GroupId must not be empty"))
    if group_denied(services, context, AclOperation.READ, request.group_id):
        return _refuse_code(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    # An assignment shows that a topic exists, so the member needs the right to describe all that it subscribes to.
    for name in request.subscribed_topic_names or ():
        if topic_denied(services, context, AclOperation.DESCRIBE, name):
            return _refuse_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    caller = build_caller(services, context)
    reply = DeferredReply(context, _refuse_code)

    def decide(shard: GroupShard, now: Now, reply_to: ReplyTo) -> Decision:
        return shard.consumer_heartbeat(request, caller, now, reply_to)

    def send_reply(response: Any) -> None:
        # Unlike the classic protocol's, the response has a place for the error's text.
        reply(_refuse(response) if isinstance(response, KlammError) else response)

    submit_to(services, request.group_id, decide, send_reply)
    return ANSWERED


def serves_consumer_groups(services: Services) -> bool:
    """Whether group.version enables the consumer protocol and this node's configs allow it."""
    protocols = services.config.value("group.coordinator.rebalance.protocols")
    return (
        services.image.features.get(GROUP_VERSION, 0) >= 1 and isinstance(protocols, tuple) and "consumer" in protocols
    )


def _refuse_code(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return _refuse(KlammError(code))


def _refuse(error: KlammError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))
