"""A classic group from one generation to the next: wait for all members, choose a protocol, let the leader assign.

Every function takes the group and the builder of the decision being made, and adds what follows to it.
"""

from klamm.coordinator.groups.classic.classic_decision import JOIN, SYNC, ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.member import ClassicMember
from klamm.coordinator.groups.classic.records import empty_record
from klamm.coordinator.groups.classic.state import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
)
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from klamm.protocol.messages.sync_group import SyncGroupResponse


def prepare_or_complete(builder: ClassicDecisionBuilder, group: ClassicGroup, reason: str) -> None:
    """Start a rebalance, or continue the one under way."""
    if group.can_rebalance:
        prepare_rebalance(builder, group, reason)
    else:
        complete_if_all_joined(builder, group)


def prepare_rebalance(builder: ClassicDecisionBuilder, group: ClassicGroup, reason: str) -> None:
    """Start a rebalance. A group without members waits `group.initial.rebalance.delay.ms` for more of them."""
    # Members that wait for this generation's assignments must rejoin for the next one.
    if group.state is COMPLETING_REBALANCE:
        _cancel_syncs(builder, group)
    stop_expecting_syncs(builder, group)
    initial = group.state is EMPTY
    group.transition_to(PREPARING_REBALANCE, builder.now.wall_ms)
    builder.log_event(
        "rebalance started",
        group=group.group_id,
        reason=reason,
        generation=group.generation_id,
        members=len(group.members),
    )
    if initial:
        # KIP-134: members of one deployment start within seconds; one rebalance for all of them is cheaper.
        delay_ms = builder.config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        builder.set_timer((JOIN, group.group_id), builder.now.ms + delay_ms)
    elif group.has_all_members_joined:
        complete_join(builder, group)
    else:
        builder.set_timer((JOIN, group.group_id), builder.now.ms + group.rebalance_timeout_ms)


def complete_if_all_joined(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    """Complete the join phase when all members have joined.

    The initial delay is waited out; a session expiry may end it early.
    """
    if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.has_all_members_joined:
        complete_join(builder, group)


def on_join_timer(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    """Complete the join phase, unless the initial delay is extended."""
    if group.state is not PREPARING_REBALANCE:
        return
    # The delay is extended while members keep joining, up to the rebalance timeout in total.
    left_ms = group.initial_delay_left_ms
    if group.previous_state is EMPTY and group.new_member_added and left_ms > 0:
        group.new_member_added = False
        delay_ms = min(builder.config.initial_rebalance_delay_ms, left_ms)
        group.initial_delay_left_ms = max(left_ms - builder.config.initial_rebalance_delay_ms, 0)
        builder.set_timer((JOIN, group.group_id), builder.now.ms + delay_ms)
    else:
        complete_join(builder, group)


def complete_join(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    """Start the next generation with the members that joined. A static member stays while its session lasts."""
    builder.cancel_timer((JOIN, group.group_id))
    missing = [m.member_id for m in group.members.values() if m.awaiting_join is None and not m.is_static]
    for member_id in missing:
        group.remove(member_id)
        builder.cancel_session_timer(group, member_id)
    if missing:
        builder.log_event(
            "members removed: not rejoined within the rebalance timeout",
            group=group.group_id,
            members=",".join(missing),
        )
    if not group.members:
        # The transition to Empty happens in replay, so that it survives only if the record does.
        builder.records.append(empty_record(group, group.generation_id + 1, builder.now.wall_ms))
        builder.log_event("group empty", group=group.group_id, generation=group.generation_id + 1)
        return
    if not group.elect_joined_leader():
        # Only static members are left and none of them has joined: wait for their sessions to expire.
        builder.set_timer((JOIN, group.group_id), builder.now.ms + group.rebalance_timeout_ms)
        return
    # Soft until the leader's assignments are stored: a crash before that repeats the rebalance.
    group.generation_id += 1
    group.protocol_name = group.select_protocol()
    group.remember_subscriptions()
    group.transition_to(COMPLETING_REBALANCE, builder.now.wall_ms)
    group.pending_sync.clear()
    for member in group.members.values():
        reply_to = group.take_join(member)
        if reply_to is not None:
            builder.reply(reply_to, join_response(group, member))
        # Sessions restart with the response: a client sends no heartbeats while its join waits.
        builder.start_session_timer(group, member)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    builder.set_timer((SYNC, group.group_id), builder.now.ms + group.rebalance_timeout_ms)


def on_sync_timer(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    """Remove members that did not send SyncGroup within the rebalance timeout."""
    if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync:
        return
    # Such a member may still send heartbeats, so its session would never expire.
    missing = sorted(group.pending_sync)
    for member_id in missing:
        remove_member(builder, group, group.members[member_id])
    prepare_rebalance(
        builder, group, f"members removed: no SyncGroup within the rebalance timeout: {', '.join(missing)}"
    )


def remove_member(builder: ClassicDecisionBuilder, group: ClassicGroup, member: ClassicMember) -> None:
    """Remove a member; answer its waiting join or sync with UNKNOWN_MEMBER_ID."""
    reply_to = group.take_join(member)
    if reply_to is not None:
        builder.reply(reply_to, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    reply_to_sync(builder, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member.member_id)
    builder.cancel_session_timer(group, member.member_id)


def reply_to_sync(builder: ClassicDecisionBuilder, member: ClassicMember, response: SyncGroupResponse) -> bool:
    """Answer a waiting sync; return False when the member has none."""
    reply_to, member.awaiting_sync = member.awaiting_sync, None
    if reply_to is None:
        return False
    builder.reply(reply_to, response)
    return True


def _cancel_syncs(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    for member in group.members.values():
        member.assignment = b""
        if reply_to_sync(builder, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)):
            builder.start_session_timer(group, member)


def stop_expecting_syncs(builder: ClassicDecisionBuilder, group: ClassicGroup) -> None:
    """Forget which members have to sync."""
    group.pending_sync.clear()
    builder.cancel_timer((SYNC, group.group_id))


def join_response(group: ClassicGroup, member: ClassicMember, *, with_members: bool | None = None) -> JoinGroupResponse:
    """Return the response that announces the generation to a member; the leader's also lists the members."""
    # Only the leader needs the subscriptions; to send them to all would grow with the square of the group.
    if with_members is None:
        with_members = group.is_leader(member.member_id)
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.protocol_name) or b"",
            )
            for other in group.members.values()
        ]
        if with_members
        else [],
    )
