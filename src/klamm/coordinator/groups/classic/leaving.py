"""Members leave a classic group: by LeaveGroup, by an administrator, by session expiry."""

from klamm.coordinator.groups.classic.classic_decision import ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.rebalance import (
    complete_if_all_joined,
    complete_join,
    prepare_or_complete,
    remove_member,
)
from klamm.coordinator.groups.classic.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse


def leave(builder: ClassicDecisionBuilder, group: ClassicGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members, each with its own error code, and rebalance once."""
    members = []
    gone = []
    for identity in request.members:
        code = _leave_member(builder, group, identity)
        if not code:
            gone.append(f"{identity.group_instance_id or identity.member_id}{_client_reason(identity)}")
        members.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if gone:
        # One rebalance for all members of the request.
        if group.state in (STABLE, COMPLETING_REBALANCE):
            prepare_or_complete(builder, group, f"members left: {', '.join(gone)}")
        elif group.state is PREPARING_REBALANCE:
            complete_if_all_joined(builder, group)
    return LeaveGroupResponse(members=members)


def _leave_member(builder: ClassicDecisionBuilder, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if not member_id:
        # An administrator removes a static member by its instance id alone.
        if instance_id is None or instance_id not in group.static_members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = group.static_members[instance_id]
    elif member_id in group.pending_members:
        group.remove(member_id)
        builder.cancel_session_timer(group, member_id)
        return ErrorCode.NONE
    try:
        member = group.check_member(member_id, instance_id)
    except KlammError as error:
        return error.code
    remove_member(builder, group, member)
    return ErrorCode.NONE


def _client_reason(identity: MemberIdentity) -> str:
    return f" ({identity.reason})" if identity.reason else ""


def on_session_timer(builder: ClassicDecisionBuilder, group: ClassicGroup, member_id: str) -> None:
    """Remove a member whose session has expired."""
    if member_id in group.pending_members:
        group.remove(member_id)
        if group.state is PREPARING_REBALANCE and group.has_all_members_joined and group.members:
            complete_if_all_joined(builder, group)
        return
    member = group.members.get(member_id)
    # A member that waits in a join or sync sends no heartbeats; its session restarts with the response.
    if member is None or member.has_satisfied_heartbeat:
        return
    remove_member(builder, group, member)
    if group.state in (STABLE, COMPLETING_REBALANCE):
        prepare_or_complete(
            builder, group, f"member {member_id} removed: session expired after {member.session_timeout_ms} ms"
        )
    elif group.state is PREPARING_REBALANCE and group.has_all_members_joined:
        complete_join(builder, group)
