"""SyncGroup and Heartbeat: get one's assignment, stay alive."""

from klamm.coordinator.core.shard import ReplyTo
from klamm.coordinator.groups.classic.classic_decision import ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.rebalance import answer_sync, prepare_or_complete, synced
from klamm.coordinator.groups.classic.records import group_record
from klamm.coordinator.groups.classic.state import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def sync(builder: ClassicDecisionBuilder, group: ClassicGroup, request: SyncGroupRequest, reply_to: ReplyTo) -> None:
    """Give a member its assignment, or let it wait for the leader's."""
    code = _refusal(group, request)
    if code:
        builder.reply(reply_to, SyncGroupResponse(error_code=code))
        return
    member = group.members[request.member_id]
    synced(builder, group, member.member_id)
    if group.state is STABLE:
        builder.reply(reply_to, assigned(group, member.assignment))
        return
    if member.awaiting_sync is not None:
        builder.reply(member.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = reply_to
    if group.is_leader(member.member_id):
        _settle(builder, group, {each.member_id: bytes(each.assignment) for each in request.assignments})


def follow(
    group: ClassicGroup,
    generation_id: int,
    member_id: str,
    instance_id: str | None,
    protocol_type: str | None,
    protocol_name: str | None,
    reply_to: ReplyTo,
) -> SyncGroupResponse | bool:
    """The sync of a member that does not lead, if nothing else follows from it; False leaves it to `sync`.

    Its answer when the leader has assigned already; True when it has to wait for that.
    """
    member = group.members.get(member_id)
    if (
        member is None
        or group.state not in (COMPLETING_REBALANCE, STABLE)
        or generation_id != group.generation_id
        or member.instance_id != instance_id
        or member.awaiting_sync is not None
        or group.leader_id == member_id
        or len(group.pending_sync) <= 1
        or _differs(protocol_type, group.protocol_type)
        or _differs(protocol_name, group.protocol_name)
    ):
        return False
    group.pending_sync.discard(member_id)
    if group.state is STABLE:
        return assigned(group, member.assignment)
    member.awaiting_sync = reply_to
    return True


def _refusal(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except KlammError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(theirs: str | None, ours: str | None) -> bool:
    return theirs is not None and ours is not None and theirs != ours


def _settle(builder: ClassicDecisionBuilder, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """The leader has assigned: store it, and tell everybody who waits. Replaying the record makes the group stable."""
    assert group.state is COMPLETING_REBALANCE
    record = group_record(group, assignments, builder.now.wall_ms)
    size = len(record.value or b"")
    if size > builder.config.record_bytes_max:
        _refuse(builder, group, f"subscriptions and assignments of {size} bytes are more than the offsets topic takes")
        return
    builder.records.append(record)
    builder.log_event(
        "rebalance complete",
        group=group.group_id,
        generation=group.generation_id,
        members=len(group.members),
        protocol=group.protocol_name,
    )
    for member in group.members.values():
        if answer_sync(builder, member, assigned(group, assignments.get(member.member_id, b""))):
            builder.start_session_timer(group, member)


def _refuse(builder: ClassicDecisionBuilder, group: ClassicGroup, reason: str) -> None:
    """What the leader sent cannot be stored: everybody who waits is told, and the group gathers again."""
    for member in group.members.values():
        if answer_sync(builder, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)):
            builder.start_session_timer(group, member)
    prepare_or_complete(builder, group, reason)


def assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """An assignment of the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def heartbeat(builder: ClassicDecisionBuilder, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    """A sign of life; the answer tells the member when it must join anew."""
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except KlammError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    builder.start_session_timer(group, member)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else ErrorCode.NONE
