"""Members leave a consumer group: by request, by session expiry, or because they miss a rebalance deadline."""

from collections.abc import Collection
from dataclasses import replace

from klamm.coordinator.groups.consumer.consumer_decision import (
    REJOIN,
    REVOKE,
    SESSION,
    SYNC_MEMBER,
    ConsumerDecisionBuilder,
)
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import STATIC_LEAVE_EPOCH, ConsumerMember, MemberState
from klamm.coordinator.groups.consumer.migration import downgrade, may_downgrade
from klamm.coordinator.groups.consumer.records import current_record, epoch_record, member_tombstones, regex_record
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def leave(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Remove a member, or let a static member leave temporarily (epoch -2)."""
    member = group.find_member(request.member_id, request.instance_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _leave_temporarily(builder, group, member)
    else:
        remove(builder, group, [member], f"member {member.member_id} left")
    return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)


def _leave_temporarily(builder: ConsumerDecisionBuilder, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Keep a static member and its partitions until its session expires; its old process may no longer commit."""
    away = replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        state=MemberState.STABLE,
        assigned={topic: dict.fromkeys(numbers, 0) for topic, numbers in member.assigned.items()},
        pending_revocation={},
    )
    builder.records.append(current_record(group.group_id, away))
    builder.update_revocation_timer(group, away)
    builder.log_event("static member left temporarily", group=group.group_id, member=member.member_id)


def remove(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, members: Collection[ConsumerMember], reason: str
) -> None:
    """Remove members; downgrade the group when only classic members remain."""
    gone = {member.member_id for member in members}
    if not gone:
        return
    if may_downgrade(builder, group, gone):
        downgrade(builder, group, gone, reason)
        return
    for member_id in gone:
        builder.records += member_tombstones(group.group_id, member_id)
        builder.cancel_member_timers(group, member_id)
    left = [member for member_id, member in group.members.items() if member_id not in gone]
    # A pattern without subscribers is no longer resolved; its record would stay forever.
    used = {member.subscribed_topic_regex for member in left}
    builder.records += [regex_record(group.group_id, regex, None) for regex in group.resolved if regex not in used]
    topics = frozenset().union(*(group.topics_of(member) for member in left))
    # The target is computed by the next heartbeat of a remaining member, not here.
    epoch = group.group_epoch + 1
    builder.records.append(epoch_record(group.group_id, epoch, builder.topology.metadata_hash(topics)))
    builder.log_event("rebalance started", group=group.group_id, reason=reason, epoch=epoch, members=len(left))


def on_timer(builder: ConsumerDecisionBuilder, group: ConsumerGroup, kind: str, member_id: str) -> None:
    """Remove a member that missed a deadline."""
    member = group.members.get(member_id)
    if member is None:
        return
    if kind == REVOKE:
        # The timer may belong to an earlier revocation that the member has completed.
        if group.revoking.get(member_id) != member.member_epoch or member.state != MemberState.UNREVOKED_PARTITIONS:
            return
        reason = f"member {member_id} removed: partitions not revoked within {member.rebalance_timeout_ms} ms"
    elif kind == REJOIN:
        if member_id not in group.rejoining:
            return
        reason = f"member {member_id} removed: not rejoined within {member.rebalance_timeout_ms} ms"
    elif kind == SYNC_MEMBER:
        reason = f"member {member_id} removed: no SyncGroup within {member.rebalance_timeout_ms} ms"
    elif kind == SESSION:
        reason = (
            f"member {member_id} removed: session expired after {builder.session_timeout_ms(group.group_id, member)} ms"
        )
    else:
        return
    remove(builder, group, [member], reason)


def on_loaded(builder: ConsumerDecisionBuilder, group: ConsumerGroup) -> None:
    """Start the timers of all members after the group was loaded."""
    for member in group.members.values():
        builder.start_session_timer(group, member)
        # A rejoin timer is not restored: the next heartbeat of a classic member starts it.
        builder.update_revocation_timer(group, member)
