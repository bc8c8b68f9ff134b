"""ConsumerGroupHeartbeat: the one request by which members join, stay, acknowledge and leave."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from klamm.coordinator.groups.consumer.consumer_decision import ConsumerDecisionBuilder
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ConsumerMember, Held, MemberState
from klamm.coordinator.groups.consumer.member_update import MemberUpdate, replace_static, update_member
from klamm.coordinator.groups.group import Caller
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOIN_EPOCH = 0
WAITING_INTERVAL_MS = 1000
"""Heartbeat interval of a member that waits for partitions of others, or for a topic to exist."""


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Iterable[str]) -> None:
    """KlammError unless the fields fit together."""
    # From v1 on the client generates its member id (KIP-1082); v0 gets one from the coordinator.
    epoch = request.member_epoch
    if (version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH) and not request.member_id.strip():
        raise KlammError(ErrorCode.INVALID_REQUEST, "MemberId must not be empty")
    for name in ("group_id", "instance_id", "rack_id"):
        value = getattr(request, name)
        if value is not None and not value.strip():
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{name} must not be empty")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise KlammError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs is required in the first request")
        if request.topic_partitions is None or request.topic_partitions:
            raise KlammError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when joining")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise KlammError(
                ErrorCode.INVALID_REQUEST, "SubscribedTopicNames or SubscribedTopicRegex is required when joining"
            )
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise KlammError(ErrorCode.INVALID_REQUEST, "InstanceId is required for member epoch -2")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{epoch} is not a valid member epoch")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise KlammError(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"group.consumer.assignors are {', '.join(assignors)}, not {assignor}"
        )


def heartbeat(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerGroupHeartbeatResponse:
    """Let a member join or stay; KlammError when it is refused."""
    builder.may_describe = caller.may_describe
    _check_capacity(builder, group, request.member_id, request.instance_id)
    replaced: str | None = None
    if request.instance_id is None:
        before = _find_dynamic(group, request)
    else:
        before, replaced = _find_static(builder, group, request)
    after = _updated_member(before, request, caller)
    owned = None
    if request.topic_partitions is not None:
        owned = [(bytes(topic.topic_id), topic.partitions) for topic in request.topic_partitions]
    update = update_member(builder, group, before, after, owned, replaced=replaced)
    member = update.member
    builder.start_session_timer(group, member)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=_next_heartbeat_ms(builder, group, update),
    )
    sends_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    # Only changed assignments are sent, except to a member that has just joined or that sends all its fields again.
    in_full = request.member_epoch == JOIN_EPOCH or (sends_subscription and request.topic_partitions is not None)
    if in_full or _differ(before.assigned, member.assigned):
        response.assignment = to_wire(member.assigned)
    return response


def _next_heartbeat_ms(builder: ConsumerDecisionBuilder, group: ConsumerGroup, update: MemberUpdate) -> int:
    """Return the heartbeat interval of the member: the group's, or a shorter one while it waits for partitions.

    Kafka always returns the group's interval, so a member waits that long although a delayed target, partitions that
    others revoke, or its topic are there much earlier. Clients use the interval of the last response.
    """
    interval_ms = builder.config.consumer.heartbeat_interval_of(builder.topology.group_values(group.group_id))
    if update.wait_ms is not None:
        # One more: a heartbeat a fraction of a millisecond early would have to wait once again.
        return min(interval_ms, update.wait_ms + 1)
    # A topic created just before or after the join may not have reached this broker yet.
    if update.matches_nothing or update.member.state == MemberState.UNRELEASED_PARTITIONS:
        return min(interval_ms, WAITING_INTERVAL_MS)
    return interval_ms


def _check_capacity(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, member_id: str, instance_id: str | None
) -> None:
    limit = builder.config.consumer.max_size
    known = member_id in group.members or instance_id in group.static_members
    if len(group.members) >= limit and not known:
        raise KlammError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} has reached its maximum of {limit} members"
        )


def _find_dynamic(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    if request.member_epoch == JOIN_EPOCH:
        return group.members.get(request.member_id, ConsumerMember(request.member_id))
    member = group.member(request.member_id)
    _check_epoch(member, request)
    return member


def _find_static(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> tuple[ConsumerMember, str | None]:
    """Return the member, and the id of the member it replaces, if any."""
    instance_id = request.instance_id
    if request.member_epoch != JOIN_EPOCH:
        member = group.find_member(request.member_id, instance_id)
        _check_epoch(member, request)
        return member, None
    holder = group.static_member(instance_id)
    if holder is None:
        return group.members.get(request.member_id, ConsumerMember(request.member_id)), None
    if holder.member_id == request.member_id:
        # A rejoin under the same member id begins at epoch 0 and keeps its partitions.
        return replace(holder, member_epoch=0, previous_member_epoch=0), None
    # The instance must leave with epoch -2 first; a classic member cannot, so it is replaced at once.
    if not holder.uses_classic_protocol and holder.member_epoch != STATIC_LEAVE_EPOCH:
        raise KlammError(
            ErrorCode.UNRELEASED_INSTANCE_ID, f"instance id {instance_id} still belongs to member {holder.member_id}"
        )
    return replace_static(builder, group, holder, request.member_id), holder.member_id


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """Require the member's epoch, or the previous one if the response with the new epoch may have been lost."""
    epoch = request.member_epoch
    if epoch == member.member_epoch:
        return
    # KIP-848: the previous epoch is accepted while the member claims no partition it does not have.
    if epoch == member.previous_member_epoch < member.member_epoch and request.topic_partitions is not None:
        claimed = ((bytes(t.topic_id), number) for t in request.topic_partitions for number in t.partitions)
        if all(number in member.assigned.get(topic, ()) for topic, number in claimed):
            return
    raise KlammError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the epoch of {member.member_id} is {member.member_epoch}, not {epoch}: it has to revoke all and rejoin",
    )


def _updated_member(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> ConsumerMember:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else member.rebalance_timeout_ms
        ),
        server_assignor=request.server_assignor if request.server_assignor is not None else member.server_assignor,
        subscribed_topic_names=frozenset(names) if names is not None else member.subscribed_topic_names,
        subscribed_topic_regex=regex if regex is not None else member.subscribed_topic_regex,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def _differ(first: Held, second: Held) -> bool:
    return first is not second and (
        first.keys() != second.keys() or any(first[topic].keys() != second[topic].keys() for topic in first)
    )


def to_wire(assigned: Mapping[bytes, Iterable[int]]) -> Assignment:
    """Return an assignment as ConsumerGroupHeartbeat carries it."""
    topics = [TopicPartitions(topic_id=topic, partitions=sorted(assigned[topic])) for topic in sorted(assigned)]
    return Assignment(topic_partitions=topics)
