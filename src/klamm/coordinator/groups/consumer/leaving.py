"""Members go: they say so, fall silent, or do not give back in time what others wait for."""

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
from klamm.coordinator.groups.consumer.member import STATIC_LEAVE_EPOCH, Member, MemberState
from klamm.coordinator.groups.consumer.migration import downgrade, may_downgrade
from klamm.coordinator.groups.consumer.records import current_record, epoch_record, member_tombstones, regex_record
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def leave(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """A member leaves, for good or for a while."""
    member = group.identified(request.member_id, request.instance_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _leave_for_a_while(builder, group, member)
    else:
        remove(builder, group, [member], f"{member.member_id} leaves")
    return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)


def _leave_for_a_while(builder: ConsumerDecisionBuilder, group: ConsumerGroup, member: Member) -> None:
    """A static member keeps its place and its partitions until its session ends; its old process may commit no more."""
    away = replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        state=MemberState.STABLE,
        assigned={topic: dict.fromkeys(numbers, 0) for topic, numbers in member.assigned.items()},
        pending_revocation={},
    )
    builder.records.append(current_record(group.group_id, away))
    builder.update_revocation_timer(group, away)
    builder.log_event("a static member leaves for a while", group=group.group_id, member=member.member_id)


def remove(builder: ConsumerDecisionBuilder, group: ConsumerGroup, members: Collection[Member], reason: str) -> None:
    """Members are gone for good; when only classic ones remain, the group goes back to the classic protocol."""
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
    used = {member.subscribed_topic_regex for member in left}
    builder.records += [regex_record(group.group_id, regex, None) for regex in group.resolved if regex not in used]
    topics = frozenset().union(*(group.topics_of(member) for member in left))
    epoch = group.group_epoch + 1
    builder.records.append(epoch_record(group.group_id, epoch, builder.topology.metadata_hash(topics)))
    builder.log_event("rebalance", group=group.group_id, reason=reason, epoch=epoch, members=len(left))


def on_timer(builder: ConsumerDecisionBuilder, group: ConsumerGroup, word: str, member_id: str) -> None:
    """A member has let a deadline pass."""
    member = group.members.get(member_id)
    if member is None:
        return
    if word == REVOKE:
        if group.revoking.get(member_id) != member.member_epoch or member.state != MemberState.UNREVOKED_PARTITIONS:
            return
        reason = f"{member_id} has not given back its partitions within {member.rebalance_timeout_ms} ms"
    elif word == REJOIN:
        if member_id not in group.rejoining:
            return
        reason = f"{member_id} has not rejoined within {member.rebalance_timeout_ms} ms"
    elif word == SYNC_MEMBER:
        reason = f"{member_id} has not asked for its assignment within {member.rebalance_timeout_ms} ms"
    elif word == SESSION:
        reason = f"nothing was heard of {member_id} for {builder.session_timeout_ms(group.group_id, member)} ms"
    else:
        return
    remove(builder, group, [member], reason)


def on_loaded(builder: ConsumerDecisionBuilder, group: ConsumerGroup) -> None:
    """The members of a group that was loaded must be heard of again."""
    for member in group.members.values():
        builder.start_session_timer(group, member)
        builder.update_revocation_timer(group, member)
